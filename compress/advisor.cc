#include "compress/advisor.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/check.h"
#include "common/human.h"
#include "common/reduce/reduce.h"
#include "common/schedule/ways.h"
#include "compress/codec.h"
#include "compress/linear.h"

namespace tally {
namespace {

// The first travels as if nothing compressed it. Of two codecs of 16 bits a number keeps its own.
constexpr std::string_view kForFp32[] = {"none", "bf16", "int8"};
constexpr std::string_view kForFp16[] = {"fp16", "int8"}, kForBf16[] = {"bf16", "int8"};
constexpr std::string_view kCandidates[] = {"none", "fp16", "bf16", "int8"};
constexpr double kWorthIt = 0.9;  // of the time without a codec: what is lost in accuracy wants a reason
constexpr std::size_t kElements = 65536, kSlabs = 16;  // together beyond the nearest caches, as gradients are
constexpr std::size_t kSide = 256;
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

constexpr std::size_t kNumbers = kElements * kSlabs;
constexpr std::size_t kMostOverhead = 65536;  // of a slab's encoding over its numbers, far above any codec's

struct Numbers {
  std::vector<float> gradients = std::vector<float>(kNumbers), residuals = std::vector<float>(kNumbers);

  // Bell-shaped, as gradients are, and in no order: what selects among numbers takes longer for those.
  Numbers() {
    std::uint64_t state = 1;
    const auto bell = [&state] {
      state = state * 6364136223846793005U + 1442695040888963407U;
      const auto part = [](std::uint64_t bits) { return static_cast<float>(bits & 0xFFFF) - 32767.5F; };
      return part(state >> 16) + part(state >> 32) + part(state >> 48);
    };
    for (float& g : gradients) g = bell() * 1e-7F;
    for (float& e : residuals) e = bell() * 1e-9F;
  }
};

// A square matrix of a slab's size, as layers have them; both phases of a codec that has two.
Result<CodecCost> MeasureLinearCost(Config::Compression options, const Clock& clock, const Numbers& numbers) {
  options.min_compress_bytes = 0;
  options.exclude.clear();
  TALLY_ASSIGN_OR_RETURN(const std::unique_ptr<LinearCodec> codec,
                         MakeLinearCodec(CodecForTensor("", kElements, options), options));
  LinearPlace place;
  place.spec = {"", ElementCount(kElements), DType::kFloat32, {kSide, kElements / kSide}};
  place.slab_elements = kElements;
  const std::vector<TensorSpec> vectors = codec->Vectors(place.spec, place.slab_elements);
  if (vectors.empty()) return Unsupported("codec " + options.codec + " makes no vectors of a square matrix");
  const std::unique_ptr<LinearTensor> tensor = codec->Make(place);
  std::vector<float> next(kElements), mean(kElements);
  std::vector<std::vector<float>> sent;
  CodecCost cost{.codec = codec->name()};
  for (const TensorSpec& vector : vectors) {
    sent.emplace_back(vector.elements.value);
    cost.bytes += static_cast<double>(vector.elements.value * sizeof(float)) / static_cast<double>(kElements);
  }
  std::uint64_t step = 0;
  cost.encode_s = SecondsPerElement(clock, [&](std::size_t slab) {
    const std::size_t at = slab * kElements;
    (void)tensor->Encode(step++, &numbers.gradients[at], 1.0F, &numbers.residuals[at], next.data(), sent[0].data());
    if (sent.size() > 1) tensor->EncodeSecond(sent[0].data(), next.data(), sent[1].data());
  });
  cost.decode_s = SecondsPerElement(clock, [&](std::size_t) { tensor->Decode(sent.back().data(), mean.data()); });
  cost.decode_add_s = SecondsPerElement(clock, [&](std::size_t) {
    for (const std::vector<float>& vector : sent) AddInto(mean.data(), vector.data(), vector.size());
  });
  return cost;
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

Result<CodecCost> MeasureCodecCost(std::string_view name, const Config::Compression& options, const Clock& clock) {
  const Numbers numbers;
  Config::Compression own = options;
  own.codec = name;
  TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(name, own));
  if (traits.linear && name != "none") return MeasureLinearCost(std::move(own), clock, numbers);
  TALLY_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> made, MakeCodec(name, own));
  const Codec& codec = *made;
  const bool feedback = traits.lossy && options.error_feedback;
  std::vector<float> residual = numbers.residuals, next(kNumbers), sum(kNumbers), velocity(kNumbers), next_velocity(kNumbers);
  std::vector<std::byte> payload(kNumbers * sizeof(float) + kSlabs * kMostOverhead);
  const std::size_t bytes = codec.EncodedBytes(kElements);
  const auto encoded = [&](std::size_t slab) { return std::span(payload).subspan(slab * bytes, bytes); };
  EncodeKey key;
  key.stochastic = StochasticRounding(options);
  CodecCost cost{.codec = codec.name(), .bytes = static_cast<double>(bytes) / static_cast<double>(kElements)};
  cost.encode_s = SecondsPerElement(clock, [&](std::size_t slab) {
    const std::size_t at = slab * kElements;
    const float* g = &numbers.gradients[at];
    if (traits.momentum) {
      (void)codec.EncodeWithMomentum(key, g, 1.0F, &velocity[at], &next_velocity[at], &residual[at], &next[at], kElements,
                                     encoded(slab).data());
    } else {
      (void)codec.EncodeWithFeedback(key, g, 1.0F, feedback ? &residual[at] : nullptr, feedback ? &next[at] : nullptr,
                                     kElements, encoded(slab).data());
    }
  });
  cost.decode_s = SecondsPerElement(
      clock, [&](std::size_t slab) { codec.Decode(encoded(slab), kElements, &sum[slab * kElements]); });
  cost.decode_add_s = SecondsPerElement(
      clock, [&](std::size_t slab) { codec.DecodeAdd(encoded(slab), kElements, &sum[slab * kElements]); });
  return cost;
}

std::vector<CodecCost> MeasureCodecCosts(const Config::Compression& options, const Clock& clock) {
  std::vector<CodecCost> costs;
  for (const std::string_view name : kCandidates) {
    const Result<CodecCost> cost = MeasureCodecCost(name, options, clock);
    TALLY_CHECK(cost.ok(), cost.status().text());
    costs.push_back(*cost);
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
