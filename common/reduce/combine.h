// The definition of what a collective makes of two numbers, type by type; loops around it vectorise (typed.cc).
// fp16 and bf16 are widened to fp32, and each result is rounded once to nearest even (beyond the range to infinity).
// Sums and products of integers wrap. NaN wins in a minimum and a maximum, the first one of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "common/units.h"

#if defined(__GNUC__)
#define TALLY_INLINE [[gnu::always_inline]] inline  // into the code of each instruction set
#else
#define TALLY_INLINE inline
#endif

namespace tally {

// The bits of a number of 16 bits.
struct Float16Bits {
  std::uint16_t bits;
};
struct BFloat16Bits {
  std::uint16_t bits;
};

// By masks: a branch would keep loops from being vectorised.
TALLY_INLINE std::uint32_t Select(bool first, std::uint32_t a, std::uint32_t b) {
  const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
  return (a & mask) | (b & ~mask);
}

TALLY_INLINE float Widen(Float16Bits value) {
  const std::uint32_t magnitude = (value.bits & 0x7FFFu) << 13;
  const std::uint32_t exponent = value.bits & 0x7C00u;
  // Infinity and NaN move by two steps of 112 to fp32's largest exponent.
  const std::uint32_t normal = magnitude + Select(exponent == 0x7C00u, 224u << 23, 112u << 23);
  const auto small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) - std::bit_cast<float>(113u << 23));
  return std::bit_cast<float>(Select(exponent == 0, small, normal) | (value.bits & 0x8000u) << 16);
}

TALLY_INLINE void Narrow(float value, Float16Bits* out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t normal =
      std::min((magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13, std::uint32_t{0x7C00});
  // The spacing of fp32 in [0.5, 1) is that of fp16's denormals, so this addition rounds to it.
  const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000u;
  const std::uint32_t finite = Select(magnitude < (113u << 23), small, normal);
  out->bits = static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | Select(magnitude > 0x7F800000u, 0x7E00u, finite));
}

TALLY_INLINE float Widen(BFloat16Bits value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

TALLY_INLINE void Narrow(float value, BFloat16Bits* out) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t rounded = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
  out->bits = static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | Select(magnitude > 0x7F800000u, 0x7FC0u, rounded));
}

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16Bits> || std::is_same_v<T, BFloat16Bits>;

// a op b. kMean adds; the division is Average's.
template <ReduceOp kOp, typename T>
TALLY_INLINE T Combine(T a, T b) {
  if constexpr (kIsHalf<T>) {
    const float x = Widen(a), y = Widen(b);
    if constexpr (kOp == ReduceOp::kMin || kOp == ReduceOp::kMax) {
      // One of the two as it is, bit by bit.
      const bool beyond = kOp == ReduceOp::kMin ? y < x : y > x;
      const bool second = beyond | ((y != y) & (x == x));
      return {static_cast<std::uint16_t>(Select(second, b.bits, a.bits))};
    } else {
      T out;
      Narrow(Combine<kOp>(x, y), &out);
      return out;
    }
  } else if constexpr (std::is_floating_point_v<T>) {
    if constexpr (kOp == ReduceOp::kMin || kOp == ReduceOp::kMax) {
      const bool beyond = kOp == ReduceOp::kMin ? b < a : b > a;
      return beyond | ((b != b) & (a == a)) ? b : a;
    } else if constexpr (kOp == ReduceOp::kProduct) {
      return a * b;
    } else {
      return a + b;
    }
  } else {
    using U = std::make_unsigned_t<T>;
    // At least 32 bits, so that no unsigned short is promoted to an int that overflows.
    using Wide = std::conditional_t<sizeof(T) < 4, std::uint32_t, U>;
    const Wide x = static_cast<U>(a), y = static_cast<U>(b);
    if constexpr (kOp == ReduceOp::kSum) return static_cast<T>(static_cast<U>(x + y));
    if constexpr (kOp == ReduceOp::kProduct) return static_cast<T>(static_cast<U>(x * y));
    if constexpr (kOp == ReduceOp::kMin) return b < a ? b : a;
    if constexpr (kOp == ReduceOp::kMax) return b > a ? b : a;
    if constexpr (kOp == ReduceOp::kAnd) return static_cast<T>(static_cast<U>(x & y));
    if constexpr (kOp == ReduceOp::kOr) return static_cast<T>(static_cast<U>(x | y));
    if constexpr (kOp == ReduceOp::kXor) return static_cast<T>(static_cast<U>(x ^ y));
  }
}

// One division, of 16 bits in fp32 and rounded once.
template <typename T>
TALLY_INLINE T Average(T sum, std::uint32_t count) {
  if constexpr (kIsHalf<T>) {
    T out;
    Narrow(Widen(sum) / static_cast<float>(count), &out);
    return out;
  } else {
    return sum / static_cast<T>(count);
  }
}

}  // namespace tally
