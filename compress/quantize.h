// Integer codes with a common scale: what the definitions of int8 and int4 share (CODECS.md §1). A code q is in
// [-kMaxCode, kMaxCode] and stands for q * scale; everything here expects FlushDenormals.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/status.h"
#include "compress/codec.h"
#include "compress/philox.h"
#include "compress/validate.h"

namespace tally {

inline constexpr std::uint32_t kMinNormalBits = 0x00800000;  // 2^-126
inline constexpr std::uint32_t kInfinityBits = 0x7F800000;

// The largest |p| of a block as fp32 bits, whose order is that of the magnitudes.
inline std::uint32_t LargestMagnitude(const float* p, std::size_t n) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(p[i]) & 0x7FFFFFFF);
  return static_cast<std::uint32_t>(largest);
}

// Scale 2^k, stored as the biased exponent k+127, which is also the exponent field of 2^k as fp32.
template <int kCodeBits>
struct Pow2Scale {
  static constexpr std::size_t kBytes = 1;
  static constexpr bool kExact = true;
  static constexpr int kMaxCode = (1 << (kCodeBits - 1)) - 1;
  static constexpr int kShift = kCodeBits - 2;  // 2^kShift <= kMaxCode < 2^(kShift+1)
  static constexpr int kMaxK = 127 - kShift;    // kMaxCode * 2^kMaxK is still finite

  // Largest magnitude of a block -> its scale; 0 for a block that counts as zero.
  static float Choose(std::uint32_t largest, bool stochastic) {
    if (largest < kMinNormalBits) return 0.0f;
    // Fractions of kMaxCode + 1/2, which ties to the even code beyond, and of kMaxCode, as numbers in [1, 2).
    constexpr std::uint32_t kHalfBeyond = (2 * kMaxCode + 1 - (2 << kShift)) << (23 - kShift - 1);
    constexpr std::uint32_t kWhole = (kMaxCode - (1 << kShift)) << (23 - kShift);
    const std::uint32_t fraction = largest & 0x007FFFFFu;
    const int exponent = static_cast<int>(largest >> 23) - 127;
    const bool needs_next = stochastic ? fraction > kWhole : fraction >= kHalfBeyond;
    const int k = std::clamp(exponent - kShift + (needs_next ? 1 : 0), -126, kMaxK);
    return FromByte(static_cast<std::uint32_t>(k + 127));
  }
  // p/scale; the reciprocal of a power of two is exact.
  static float Multiplier(float scale) {
    return std::bit_cast<float>((254u << 23) - std::bit_cast<std::uint32_t>(scale));
  }
  static float Quotient(float p, float multiplier) { return p * multiplier; }

  static void Store(float scale, std::byte* out) {
    *out = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
  }
  static float Load(const std::byte* in) { return FromByte(std::to_integer<std::uint32_t>(*in)); }
  static bool IsValid(const std::byte* in) { return std::to_integer<int>(*in) <= kMaxK + 127; }
  static Status Check(std::string_view codec, std::size_t block, const std::byte* in) {
    if (IsValid(in)) return Status::Ok();
    return CorruptAt(codec, "exponent of block", block, "at most " + std::to_string(kMaxK + 127),
                     std::to_string(std::to_integer<int>(*in)));
  }

 private:
  static float FromByte(std::uint32_t byte) { return std::bit_cast<float>(byte << 23); }
};

// x[i] = p[i]/scale -> codes, nearest even. |x| is at most kMaxCode + 1.
template <int kMaxCode>
void RoundNearest(const float* x, std::size_t n, std::int8_t* codes) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t q = std::bit_cast<std::int32_t>(x[i] + kMagic) - std::bit_cast<std::int32_t>(kMagic);
    codes[i] = static_cast<std::int8_t>(std::clamp(q, -kMaxCode, kMaxCode));
  }
}

// Away from zero with the probability of the fraction, in steps of 2^-24; element `offset + i` of the tensor.
template <int kMaxCode>
void RoundStochastic(const EncodeKey& key, std::uint64_t offset, const float* x, std::size_t n, std::int8_t* codes) {
  PhiloxBlock random{};
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t element = offset + i;
    if (i == 0 || element % 4 == 0) random = RoundingBits(key, element / 4);
    const float magnitude =
        std::min(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu), static_cast<float>(kMaxCode));
    const auto whole = static_cast<std::int32_t>(magnitude);
    const float draw = static_cast<float>(random[element % 4] >> 8) * 0x1p-24f;
    const std::int32_t q = whole + (draw < magnitude - static_cast<float>(whole) ? 1 : 0);
    codes[i] = static_cast<std::int8_t>(x[i] < 0 ? -q : q);
  }
}

// Codes of the slab's elements from `first`; all 0 in a block whose scale is 0. At most 256 elements.
template <typename Scale>
void Quantize(const EncodeKey& key, std::size_t first, const float* p, std::size_t n, float scale,
              std::int8_t* codes) {
  if (scale == 0.0f) {
    std::fill_n(codes, n, std::int8_t{0});
    return;
  }
  float x[256];
  const float by = Scale::Multiplier(scale);
  for (std::size_t i = 0; i < n; ++i) x[i] = Scale::Quotient(p[i], by);
  if (key.stochastic) {
    RoundStochastic<Scale::kMaxCode>(key, key.offset + first, x, n, codes);
  } else {
    RoundNearest<Scale::kMaxCode>(x, n, codes);
  }
}

}  // namespace tally
