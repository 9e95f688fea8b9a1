// fp32 sums for every target that Highway offers (up to AVX-512), the best one chosen at run time. Each element is one
// IEEE operation whatever the target, so all give the same bits.
#include "common/reduce/reduce.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/reduce/reduce.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Bits = hn::RebindToUnsigned<Floats>;
using Single = hn::CappedTag<float, 1>;  // the tail, one element at a time, through the same operations

// Calls step(tag, i) for whole vectors and then for single elements, over 0..n.
template <typename Step>
HWY_INLINE void ForEach(std::size_t n, const Step& step) {
  const std::size_t lanes = hn::Lanes(Floats());
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) step(Floats(), i);
  for (; i < n; ++i) step(Single(), i);
}

void Add(float* out, const float* a, const float* b, std::size_t n) {
  ForEach(n, [=](auto d, std::size_t i)
                 HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i); });
}

void Scale(float* out, const float* a, float w, std::size_t n) {
  ForEach(n, [=](auto d, std::size_t i)
                 HWY_ATTR { hn::StoreU(hn::Mul(hn::Set(d, w), hn::LoadU(d, a + i)), d, out + i); });
}

void Divide(float* out, const float* a, float w, std::size_t n) {
  ForEach(n, [=](auto d, std::size_t i)
                 HWY_ATTR { hn::StoreU(hn::Div(hn::LoadU(d, a + i), hn::Set(d, w)), d, out + i); });
}

bool AllFinite(const float* a, std::size_t n) {
  // Infinities and NaNs are the values whose exponent bits are all ones. Checked per block, to end early on a bad one.
  constexpr std::size_t kBlock = 4096;
  constexpr std::uint32_t kExponent = 0x7F800000u;
  const Floats d;
  const Bits bits;
  const std::size_t lanes = hn::Lanes(d);
  const auto exponent = hn::Set(bits, kExponent);
  std::size_t i = 0;
  while (i + lanes <= n) {
    const std::size_t end = n - i > kBlock ? i + kBlock : n;
    auto bad = hn::Zero(bits);
    for (; i + lanes <= end; i += lanes) {
      const auto found = hn::And(hn::BitCast(bits, hn::LoadU(d, a + i)), exponent);
      bad = hn::Or(bad, hn::VecFromMask(bits, hn::Eq(found, exponent)));
    }
    if (!hn::AllTrue(bits, hn::Eq(bad, hn::Zero(bits)))) return false;
  }
  for (; i < n; ++i) {
    std::uint32_t word;
    hwy::CopyBytes<sizeof(word)>(a + i, &word);
    if ((word & kExponent) == kExponent) return false;
  }
  return true;
}

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Add);
HWY_EXPORT(Scale);
HWY_EXPORT(Divide);
HWY_EXPORT(AllFinite);

void AddInto(float* a, const float* b, std::size_t n) { HWY_DYNAMIC_DISPATCH(Add)(a, a, b, n); }

void AddInto(float* a, const std::byte* b, std::size_t n) {
  if (reinterpret_cast<std::uintptr_t>(b) % alignof(float) == 0) {
    return AddInto(a, reinterpret_cast<const float*>(b), n);
  }
  constexpr std::size_t kChunk = 2048;  // elements: 8 KiB of stack that stay in L1
  float aligned[kChunk];
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t count = std::min(kChunk, n - first);
    std::memcpy(aligned, b + first * sizeof(float), count * sizeof(float));
    AddInto(a + first, aligned, count);
  }
}

void Add(float* out, const float* a, const float* b, std::size_t n) { HWY_DYNAMIC_DISPATCH(Add)(out, a, b, n); }
void Scale(float* out, const float* a, float w, std::size_t n) { HWY_DYNAMIC_DISPATCH(Scale)(out, a, w, n); }
void Divide(float* out, const float* a, float w, std::size_t n) { HWY_DYNAMIC_DISPATCH(Divide)(out, a, w, n); }
bool AllFinite(const float* a, std::size_t n) { return HWY_DYNAMIC_DISPATCH(AllFinite)(a, n); }

}  // namespace tally
#endif  // HWY_ONCE
