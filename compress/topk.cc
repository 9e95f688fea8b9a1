// Codec topk: a fast way to the selection that topk_reference.h defines. One pass finds the candidates, the elements of at least
// a magnitude that a sample of the slab suggests; the k largest are among them if there are at least k.
#include "compress/topk_reference.h"

#ifndef TALLY_COMPRESS_TOPK_CC_
#define TALLY_COMPRESS_TOPK_CC_
namespace tally {
inline constexpr std::size_t kCollectSlack = 64;
}
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/topk.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_stream.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What one pass over a slab finds.
struct Candidates {
  std::int32_t threshold;  // of |p|, as bits
  std::size_t limit;
  std::uint32_t* indices;
  std::size_t count = 0;
};

// p[i..] of kVectors vectors; false if any p is not finite. A vector without a candidate is the rule, so several share a
// branch.
template <bool kStreaming, std::size_t kVectors, class D>
HWY_INLINE bool CollectVectors(D d, const float* g, float w, const float* e, std::size_t i, float* p,
                               Candidates& found) {
  const hn::RebindToSigned<D> di;
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  hn::Vec<decltype(di)> magnitudes[kVectors];
  auto largest = hn::Zero(di);
  for (std::size_t k = 0; k < kVectors; ++k) {
    const std::size_t at = i + k * kLanes;
    auto v = hn::Mul(hn::Set(d, w), hn::LoadU(d, g + at));
    if (e != nullptr) v = hn::Add(v, hn::LoadU(d, e + at));
    if constexpr (kStreaming) {
      StreamPieces(v, d, p + at);
    } else if (p != nullptr) {
      hn::StoreU(v, d, p + at);
    }
    magnitudes[k] = hn::And(hn::BitCast(di, v), hn::Set(di, 0x7FFFFFFF));
    largest = hn::Max(largest, magnitudes[k]);
  }
  const auto below = hn::Set(di, found.threshold - 1);
  if (HWY_LIKELY(hn::AllFalse(di, hn::Gt(largest, below)))) return true;
  if (!hn::AllFalse(di, hn::Gt(largest, hn::Set(di, 0x7F7FFFFF)))) return false;
  if (found.count > found.limit) return true;
  // Not by CompressStore, which with GCC 12 and Highway 1.0.3 copies its tables for every vector.
  std::uint64_t hits = 0;
  for (std::size_t k = 0; k < kVectors; ++k) {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(di, hn::Gt(magnitudes[k], below), bytes);
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes, sizeof bits);
    hits |= bits << (k * kLanes);
  }
  for (; hits != 0; hits &= hits - 1) {
    found.indices[found.count++] = static_cast<std::uint32_t>(i) + static_cast<std::uint32_t>(std::countr_zero(hits));
  }
  return true;
}

// p[i] = fl(fl(w*g[i]) + e[i]), without e fl(w*g[i]), stored unless p is null. Adds the indices of all |p| of at least
// `threshold` (as bits) to `indices`, which has room for `limit` and kCollectSlack more, and counts them; once there are
// more than `limit` it need not. False if any p is not finite.
template <bool kStreaming>
bool CollectInto(const float* g, float w, const float* e, std::size_t n, float* p, std::uint32_t threshold,
                 std::size_t limit, std::uint32_t* indices, std::size_t* count) {
  const hn::CappedTag<float, 16> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::CappedTag<float, 16>()), kTogether = 4;
  static_assert(kLanes * kTogether <= kCollectSlack && kCollectSlack <= 64);  // bits of a word
  Candidates found{static_cast<std::int32_t>(threshold), limit, indices};
  std::size_t i = 0;
  for (; i + kTogether * kLanes <= n; i += kTogether * kLanes) {
    if (!CollectVectors<kStreaming, kTogether>(d, g, w, e, i, p, found)) return false;
  }
  for (; i < n; ++i) {
    if (!CollectVectors<false, 1>(hn::CappedTag<float, 1>(), g, w, e, i, p, found)) return false;
  }
  *count = found.count;
  return true;
}

bool Collect(const float* g, float w, const float* e, std::size_t n, float* p, std::uint32_t threshold,
             std::size_t limit, std::uint32_t* indices, std::size_t* found) {
  if (!CanStream(p, n)) return CollectInto<false>(g, w, e, n, p, threshold, limit, indices, found);
  const bool finite = CollectInto<true>(g, w, e, n, p, threshold, limit, indices, found);
  hwy::FlushStream();
  return finite;
}

auto CollectLoopOfTarget() { return &Collect; }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(CollectLoopOfTarget);

namespace {

constexpr std::size_t kMaxCandidates = 8192;
using CollectLoop = decltype(&HWY_STATIC_DISPATCH(Collect));

// A magnitude that probably somewhat more than k elements reach, from 256 runs of 8 elements.
std::uint32_t EstimateThreshold(const float* g, float w, const float* e, std::size_t n, std::size_t k) {
  constexpr std::size_t kRuns = 256, kRun = 8;
  std::array<std::uint16_t, 2048> counts{};  // by exponent and three bits of the fraction
  for (std::size_t run = 0; run < kRuns; ++run) {
    const std::size_t first = run * (n - kRun) / (kRuns - 1);
    float p[kRun];
    (void)WeightAndAdd(g + first, w, e == nullptr ? nullptr : e + first, kRun, p);
    for (const float x : p) ++counts[Magnitude(x) >> 20];
  }
  const std::size_t wanted = k * kRuns * kRun * 3 / (2 * n) + 4;
  std::size_t found = 0, digit = counts.size() - 1;
  while ((found += counts[digit]) < wanted && digit > 0) --digit;
  return static_cast<std::uint32_t>(digit) << 20;
}

template <typename Value>
class SimdTopkCodec final : public TopkCodec<Value> {
 public:
  SimdTopkCodec(std::uint64_t ratio_ppm, bool union_reply, CollectLoop collect)
      : TopkCodec<Value>(ratio_ppm, union_reply), collect_(collect) {}

  std::unique_ptr<Codec> MakeReference() const override {
    return std::make_unique<TopkCodec<Value>>(this->ratio_ppm(), this->union_reply());
  }

  void Encode(const EncodeKey&, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    const auto take = [decoded](std::size_t i, float, float value) {
      if (decoded != nullptr) decoded[i] = value;
    };
    if (decoded != nullptr) std::fill_n(decoded, n, 0.0f);
    if (EncodeCandidates(p, 1.0f, nullptr, nullptr, n, out, take) != Outcome::kEncoded) {
      this->EncodeAll(p, n, out, decoded);
    }
  }

  // p is built in e_out, where all but the selected elements stay as they are; it is not read back, as it is stored past
  // the caches.
  bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    if (e_out == nullptr) return Codec::EncodeWithFeedback(key, g, w, e, e_out, n, out);
    const FlushDenormals flush;
    const auto take = [e_out](std::size_t i, float p, float value) { e_out[i] = p - value; };
    switch (EncodeCandidates(g, w, e, e_out, n, out, take)) {
      case Outcome::kEncoded: return true;
      case Outcome::kNotFinite: return false;
      case Outcome::kUndecided: break;
    }
    if (!WeightAndAdd(g, w, e, n, e_out)) return false;
    this->EncodeLargest(e_out, n, this->Kept(n), out, std::identity(), take);
    return true;
  }

 private:
  enum class Outcome { kEncoded, kNotFinite, kUndecided };

  template <typename Take>
  Outcome EncodeCandidates(const float* g, float w, const float* e, float* p, std::size_t n, std::byte* out,
                           const Take& take) const {
    const std::size_t k = this->Kept(n);
    if (n < kMaxCandidates / 2 || k > kMaxCandidates / 2) return Outcome::kUndecided;
    TALLY_CHECK(n <= kMaxElements, "topk encodes at most one slab");
    const std::uint32_t threshold = EstimateThreshold(g, w, e, n, k);
    std::uint32_t indices[kMaxCandidates + kCollectSlack];
    std::size_t count = 0;
    if (!collect_(g, w, e, n, p, threshold, kMaxCandidates, indices, &count)) return Outcome::kNotFinite;
    if (count < k || count > kMaxCandidates) return Outcome::kUndecided;
    float candidates[kMaxCandidates];
    for (std::size_t i = 0; i < count; ++i) {
      candidates[i] = w * g[indices[i]];
      if (e != nullptr) candidates[i] = candidates[i] + e[indices[i]];
    }
    this->EncodeLargest(candidates, count, k, out, [&indices](std::size_t i) { return indices[i]; }, take);
    return Outcome::kEncoded;
  }

  CollectLoop collect_;
};

}  // namespace

std::unique_ptr<Codec> MakeTopkCodec(const Config::Compression& options) {
  const auto ratio_ppm = static_cast<std::uint64_t>(std::llround(options.ratio * 1e6));
  const CollectLoop collect = HWY_DYNAMIC_DISPATCH(CollectLoopOfTarget)();
  const bool union_reply = options.reply == "union";
  if (options.topk_values == "fp16") return std::make_unique<SimdTopkCodec<HalfValue>>(ratio_ppm, union_reply, collect);
  return std::make_unique<SimdTopkCodec<FullValue>>(ratio_ppm, union_reply, collect);
}

}  // namespace tally
#endif  // HWY_ONCE
