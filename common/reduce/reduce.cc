// fp32 sums for every target that Highway offers (up to AVX-512), the best one chosen at run time. Each element is one
// IEEE operation whatever the target, so all give the same bits.
#include "common/reduce/reduce.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/reduce/reduce.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
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

template <bool kStream>
HWY_INLINE void CopyAs(float* out, const float* a, std::size_t n) {
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  const auto put = [=](auto tag, auto value, std::size_t at) HWY_ATTR {
    if constexpr (kStream) {
      hn::Stream(value, tag, out + at);
    } else {
      hn::StoreU(value, tag, out + at);
    }
  };
  if constexpr (kStream) {
    for (; i < n && reinterpret_cast<std::uintptr_t>(out + i) % (lanes * sizeof(float)) != 0; ++i) out[i] = a[i];
  }
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v0 = hn::LoadU(d, a + i), v1 = hn::LoadU(d, a + i + lanes);
    const auto v2 = hn::LoadU(d, a + i + 2 * lanes), v3 = hn::LoadU(d, a + i + 3 * lanes);
    put(d, v0, i);
    put(d, v1, i + lanes);
    put(d, v2, i + 2 * lanes);
    put(d, v3, i + 3 * lanes);
  }
  for (; i < n; ++i) out[i] = a[i];
  if constexpr (kStream) hwy::FlushStream();
}

void Copy(float* out, const float* a, std::size_t n, bool stream) {
  return stream ? CopyAs<true>(out, a, n) : CopyAs<false>(out, a, n);
}

// Four vectors at a time, so that a term's pointer is read once for all of them.
template <bool kScaled, bool kDivided, bool kStream>
HWY_INLINE bool SumTermsAs(float* out, const Term* terms, std::size_t count, float divisor, std::size_t n) {
  constexpr std::size_t kUnroll = 4;
  const auto term = [=](auto d, std::size_t t, std::size_t i) HWY_ATTR {
    const auto value = hn::LoadU(d, terms[t].values + i);
    return kScaled ? hn::Mul(hn::Set(d, terms[t].factor), value) : value;
  };
  const auto finish = [=](auto d, auto sum, std::size_t i) HWY_ATTR {
    if constexpr (kDivided) sum = hn::Div(sum, hn::Set(d, divisor));
    if constexpr (kStream) {
      hn::Stream(sum, d, out + i);
    } else {
      hn::StoreU(sum, d, out + i);
    }
    // x - x is 0 where x is finite, else NaN, which no further addition takes away.
    return hn::Sub(sum, sum);
  };
  const Floats d;
  const std::size_t lanes = hn::Lanes(d);
  auto bad = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kUnroll * lanes <= n; i += kUnroll * lanes) {
    auto s0 = term(d, 0, i), s1 = term(d, 0, i + lanes), s2 = term(d, 0, i + 2 * lanes), s3 = term(d, 0, i + 3 * lanes);
    for (std::size_t t = 1; t < count; ++t) {
      s0 = hn::Add(s0, term(d, t, i));
      s1 = hn::Add(s1, term(d, t, i + lanes));
      s2 = hn::Add(s2, term(d, t, i + 2 * lanes));
      s3 = hn::Add(s3, term(d, t, i + 3 * lanes));
    }
    bad = hn::Add(bad, hn::Add(hn::Add(finish(d, s0, i), finish(d, s1, i + lanes)),
                               hn::Add(finish(d, s2, i + 2 * lanes), finish(d, s3, i + 3 * lanes))));
  }
  bool finite = hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)));
  const Single one;
  for (; i < n; ++i) {
    auto sum = term(one, 0, i);
    for (std::size_t t = 1; t < count; ++t) sum = hn::Add(sum, term(one, t, i));
    if constexpr (kDivided) sum = hn::Div(sum, hn::Set(one, divisor));
    hn::StoreU(sum, one, out + i);
    finite = finite && hn::GetLane(hn::Sub(sum, sum)) == 0.0F;
  }
  if constexpr (kStream) hwy::FlushStream();
  return finite;
}

template <bool kScaled, bool kDivided>
HWY_INLINE bool SumTermsTo(float* out, const Term* terms, std::size_t count, float divisor, std::size_t n, bool stream) {
  return stream ? SumTermsAs<kScaled, kDivided, true>(out, terms, count, divisor, n)
                : SumTermsAs<kScaled, kDivided, false>(out, terms, count, divisor, n);
}

// A factor or divisor of 1 changes no bit, so it is not worth an operation.
bool SumTerms(float* out, const Term* terms, std::size_t count, float divisor, std::size_t n, bool stream) {
  const bool scaled = std::any_of(terms, terms + count, [](const Term& t) { return t.factor != 1.0F; });
  stream = stream && reinterpret_cast<std::uintptr_t>(out) % (hn::Lanes(Floats()) * sizeof(float)) == 0;
  if (scaled && divisor != 1.0F) return SumTermsTo<true, true>(out, terms, count, divisor, n, stream);
  if (scaled) return SumTermsTo<true, false>(out, terms, count, divisor, n, stream);
  if (divisor != 1.0F) return SumTermsTo<false, true>(out, terms, count, divisor, n, stream);
  return SumTermsTo<false, false>(out, terms, count, divisor, n, stream);
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
HWY_EXPORT(Copy);
HWY_EXPORT(SumTerms);
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
void Copy(float* out, const std::byte* a, std::size_t n) {
  if (reinterpret_cast<std::uintptr_t>(a) % alignof(float) == 0) return Copy(out, reinterpret_cast<const float*>(a), n, false);
  if (n != 0) std::memcpy(out, a, n * sizeof(float));  // neither may be null, not even for no bytes
}
void Copy(std::byte* out, const float* a, std::size_t n) {
  if (reinterpret_cast<std::uintptr_t>(out) % alignof(float) == 0) return Copy(reinterpret_cast<float*>(out), a, n, false);
  if (n != 0) std::memcpy(out, a, n * sizeof(float));
}
void CopyBytes(std::byte* out, const std::byte* a, std::size_t n) {
  std::size_t done = 0;
  if (reinterpret_cast<std::uintptr_t>(out) % alignof(float) == 0) {
    done = n / sizeof(float) * sizeof(float);
    Copy(reinterpret_cast<float*>(out), a, n / sizeof(float));
  }
  if (n > done) std::memcpy(out + done, a + done, n - done);
}
void Copy(float* out, const float* a, std::size_t n, bool stream) { HWY_DYNAMIC_DISPATCH(Copy)(out, a, n, stream); }
bool SumTerms(float* out, std::span<const Term> terms, float divisor, std::size_t n, bool stream) {
  return HWY_DYNAMIC_DISPATCH(SumTerms)(out, terms.data(), terms.size(), divisor, n, stream);
}
bool AllFinite(const float* a, std::size_t n) { return HWY_DYNAMIC_DISPATCH(AllFinite)(a, n); }

}  // namespace tally
#endif  // HWY_ONCE
