#include "compress/advisor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/human.h"
#include "common/schedule/ways.h"
#include "compress/codec.h"

namespace tally {
namespace {

// The first travels as if nothing compressed it. Of two codecs of 16 bits a number keeps its own.
constexpr std::string_view kForFp32[] = {"none", "bf16", "int8"};
constexpr std::string_view kForFp16[] = {"fp16", "int8"}, kForBf16[] = {"bf16", "int8"};
constexpr std::string_view kCandidates[] = {"none", "fp16", "bf16", "int8"};
constexpr double kWorthIt = 0.9;  // of the time without a codec: what is lost in accuracy wants a reason
constexpr std::size_t kElements = 65536, kSlabs = 16;  // together beyond the nearest caches, as gradients are
constexpr int kPasses = 3;

template <typename Work>
double SecondsPerElement(const Clock& clock, const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int pass = 0; pass < kPasses; ++pass) {
    const TimePoint start = clock.Now();
    for (std::size_t slab = 0; slab < kSlabs; ++slab) work(slab);
    const std::chrono::duration<double> took = clock.Now() - start;
    best = std::min(best, took.count());
  }
  return best / static_cast<double>(kElements * kSlabs);
}

// What one worker and one server own of a gradient.
struct Shares {
  double worker = 0, server = 0;
};
Shares SharesOf(const AdviceQuestion& question) {
  const double owners = (question.server_shares ? question.servers : 0) + (question.worker_shares ? question.workers : 0);
  const double share = 1 / std::max(owners, 1.0);
  return {question.worker_shares ? share : 0, question.server_shares ? share : 0};
}

// Per element, each way: a worker sends all but its own share and answers the others for that, a server answers all.
double WireSeconds(const AdviceQuestion& question, double bytes) {
  const auto [worker, server] = SharesOf(question);
  const double n = question.workers;
  return std::max((1 - worker) + (n - 1) * worker, n * server) * bytes / question.bytes_per_s;
}

}  // namespace

std::vector<CodecCost> MeasureCodecCosts(const Config::Compression& options, const Clock& clock) {
  const std::size_t n = kElements * kSlabs;
  std::vector<float> g(n), e(n), e_out(n), sum(n);
  for (std::size_t i = 0; i < n; ++i) {
    g[i] = static_cast<float>(static_cast<int>(i * 7919 % 2001) - 1000) * 1e-4F;
    e[i] = g[(i * 31 + 7) % n] * 1e-2F;
  }
  std::vector<std::byte> payload(n * sizeof(float));
  std::vector<CodecCost> costs;
  for (const std::string_view name : kCandidates) {
    auto made = MakeCodec(name, options);
    TALLY_CHECK(made.ok(), made.status().text());
    const Codec& codec = **made;
    const bool feedback = codec.traits().lossy && options.error_feedback;
    const std::size_t bytes = codec.EncodedBytes(kElements);
    const auto encoded = [&](std::size_t slab) { return std::span(payload).subspan(slab * bytes, bytes); };
    EncodeKey key;
    key.stochastic = StochasticRounding(options);
    CodecCost cost{.codec = name, .bytes = static_cast<double>(bytes) / static_cast<double>(kElements)};
    cost.encode_s = SecondsPerElement(clock, [&](std::size_t slab) {
      const std::size_t at = slab * kElements;
      (void)codec.EncodeWithFeedback(key, &g[at], 1.0F, feedback ? &e[at] : nullptr, feedback ? &e_out[at] : nullptr,
                                     kElements, encoded(slab).data());
    });
    cost.decode_s = SecondsPerElement(
        clock, [&](std::size_t slab) { codec.Decode(encoded(slab), kElements, &sum[slab * kElements]); });
    cost.decode_add_s = SecondsPerElement(
        clock, [&](std::size_t slab) { codec.DecodeAdd(encoded(slab), kElements, &sum[slab * kElements]); });
    costs.push_back(cost);
  }
  return costs;
}

double CodecSeconds(const AdviceQuestion& question, const CodecCost& cost) {
  const auto [worker, server] = SharesOf(question);
  const double owner = question.workers * cost.decode_add_s + cost.encode_s;
  return std::max(cost.encode_s + cost.decode_s + worker * owner, server * owner);
}

Advice AdviseCodec(const AdviceQuestion& question, std::span<const CodecCost> costs) {
  TALLY_CHECK(!costs.empty(), "advice among no codecs");
  if (question.bytes_per_s <= 0) return {std::string(costs.front().codec), "nothing crosses a wire"};
  constexpr double kMegabytes = 100e6 / sizeof(float);
  const CodecCost* best = &costs.front();
  double best_s = 0, plain_s = 0;
  std::string reason = "per 100 MB of gradients";
  for (const CodecCost& cost : costs) {
    const double wire = WireSeconds(question, cost.bytes) * kMegabytes;
    const double codec = CodecSeconds(question, cost) * kMegabytes;
    const double all = wire + codec;
    reason += (&cost == &costs.front() ? ": " : ", ") + std::string(cost.codec) + " " + HumanSeconds(all) + " (wire " +
              HumanSeconds(wire) + ")";
    if (&cost == &costs.front()) {
      plain_s = best_s = all;
    } else if (all < best_s && all < kWorthIt * plain_s) {
      best = &cost;
      best_s = all;
    }
  }
  return {std::string(best->codec), reason};
}

const std::string& AutoCodecs::For(DType type) const {
  return type == DType::kFloat16 ? fp16 : type == DType::kBFloat16 ? bf16 : fp32;
}

AutoAdvice AdviseCodecs(const AdviceQuestion& question, std::span<const CodecCost> costs) {
  const auto among = [&](std::span<const std::string_view> names) {
    std::vector<CodecCost> candidates;
    for (const std::string_view name : names) candidates.push_back(*std::ranges::find(costs, name, &CodecCost::codec));
    return AdviseCodec(question, candidates);
  };
  Advice fp32 = among(kForFp32);
  return {{std::move(fp32.codec), among(kForFp16).codec, among(kForBf16).codec}, std::move(fp32.reason)};
}

}  // namespace tally
