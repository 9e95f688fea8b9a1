// Every type and operation of collectives against a reference of its own, on every instruction set at hand.
#include "common/reduce/typed.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace tally {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 3, 7, 15, 16, 17, 31, 33, 97, 4095, 4096, 4097, 10007};
constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat64,
                            DType::kInt8,    DType::kUint8,   DType::kInt32,    DType::kInt64};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct, ReduceOp::kAnd, ReduceOp::kOr, ReduceOp::kXor};

// A format of 16 bits by arithmetic in double, which holds fp32's sums, products and quotients before they are rounded.
struct Format {
  int mantissa, least_exponent, largest_exponent;  // of normal numbers
};
constexpr Format kFp16{10, -14, 15}, kBf16{7, -126, 127};

double Value(const Format& f, std::uint16_t bits) {
  const int exponent_bits = 15 - f.mantissa, exponent = (bits & 0x7FFF) >> f.mantissa;
  const int fraction = bits & ((1 << f.mantissa) - 1);
  double value = 0;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, f.least_exponent - f.mantissa);
  } else {
    value = std::ldexp((1 << f.mantissa) + fraction, exponent - 1 + f.least_exponent - f.mantissa);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

std::uint16_t Rounded(const Format& f, float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<std::uint16_t>(((1 << (15 - f.mantissa)) - 1) << f.mantissa);
  if (std::isnan(value)) return static_cast<std::uint16_t>(infinity | 1);  // any
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | infinity);
  const double magnitude = std::fabs(static_cast<double>(value));
  int exponent = magnitude == 0 ? f.least_exponent : std::ilogb(magnitude);
  if (exponent < f.least_exponent) exponent = f.least_exponent;
  // nearbyint rounds to even; a carry into the next exponent comes out right as the codes follow one another.
  const auto steps = static_cast<std::int64_t>(std::nearbyint(std::ldexp(magnitude, f.mantissa - exponent)));
  const std::int64_t code = steps + (static_cast<std::int64_t>(exponent - f.least_exponent) << f.mantissa);
  return static_cast<std::uint16_t>(sign | (code >= infinity ? infinity : code));
}

template <typename T>
T Integer(ReduceOp op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  const auto wide_a = static_cast<__int128>(a), wide_b = static_cast<__int128>(b);
  switch (op) {
    case ReduceOp::kSum: return static_cast<T>(static_cast<U>(wide_a + wide_b));
    case ReduceOp::kProduct: return static_cast<T>(static_cast<U>(wide_a * wide_b));
    case ReduceOp::kMin: return wide_a < wide_b ? a : b;
    case ReduceOp::kMax: return wide_a > wide_b ? a : b;
    case ReduceOp::kAnd: return static_cast<T>(wide_a & wide_b);
    case ReduceOp::kOr: return static_cast<T>(wide_a | wide_b);
    default: return static_cast<T>(wide_a ^ wide_b);
  }
}

template <typename T>
T Floating(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kMin: return std::isnan(a) ? a : std::isnan(b) ? b : a <= b ? a : b;
    case ReduceOp::kMax: return std::isnan(a) ? a : std::isnan(b) ? b : a >= b ? a : b;
    case ReduceOp::kProduct: return a * b;
    default: return a + b;
  }
}

std::uint16_t Half(const Format& f, ReduceOp op, std::uint16_t a, std::uint16_t b) {
  const auto x = static_cast<float>(Value(f, a)), y = static_cast<float>(Value(f, b));
  if (op == ReduceOp::kMin) return std::isnan(x) || (!std::isnan(y) && x <= y) ? a : b;
  if (op == ReduceOp::kMax) return std::isnan(x) || (!std::isnan(y) && x >= y) ? a : b;
  return Rounded(f, Floating(op, x, y));
}

template <typename T>
T At(const std::vector<std::byte>& bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof value);
  return value;
}

template <typename T>
bool Same(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
  } else {
    return a == b;
  }
}

bool SameHalf(const Format& f, std::uint16_t a, std::uint16_t b) {
  return a == b || (std::isnan(Value(f, a)) && std::isnan(Value(f, b)));
}

template <typename T, typename Reference>
void Expect(const std::vector<std::byte>& a, const std::vector<std::byte>& b, const std::byte* got, std::size_t n,
            const Reference& reference) {
  std::size_t i = 0;
  for (T value; i < n; ++i) {
    std::memcpy(&value, got + i * sizeof(T), sizeof value);
    if (!reference(At<T>(a, i), At<T>(b, i), value)) break;
  }
  ASSERT_EQ(i, n) << "the first wrong element";
}

void ExpectReduced(DType type, ReduceOp op, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                   const std::byte* got, std::size_t n) {
  const auto floating = [op](auto x, auto y, auto z) { return Same(z, Floating(op, x, y)); };
  const auto integer = [op](auto x, auto y, auto z) { return Same(z, Integer(op, x, y)); };
  const auto half = [op](const Format& f) {
    return [op, &f](std::uint16_t x, std::uint16_t y, std::uint16_t z) { return SameHalf(f, z, Half(f, op, x, y)); };
  };
  switch (type) {
    case DType::kFloat32: return Expect<float>(a, b, got, n, floating);
    case DType::kFloat64: return Expect<double>(a, b, got, n, floating);
    case DType::kFloat16: return Expect<std::uint16_t>(a, b, got, n, half(kFp16));
    case DType::kBFloat16: return Expect<std::uint16_t>(a, b, got, n, half(kBf16));
    case DType::kInt8: return Expect<std::int8_t>(a, b, got, n, integer);
    case DType::kUint8: return Expect<std::uint8_t>(a, b, got, n, integer);
    case DType::kInt32: return Expect<std::int32_t>(a, b, got, n, integer);
    case DType::kInt64: return Expect<std::int64_t>(a, b, got, n, integer);
  }
}

// Any bits at all: denormals, infinities and NaNs among them; every third number is equal in both, every fifth is at an
// end.
std::vector<std::byte> Bits(DType type, std::size_t n, std::uint64_t seed) {
  const std::size_t size = DTypeBytes(type);
  std::vector<std::byte> bytes(n * size);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1, equal = 5;
  constexpr std::uint64_t kEnds[] = {0, ~std::uint64_t{0}, std::uint64_t{1} << 63, ~(std::uint64_t{1} << 63),
                                     0x7F80'7F80'7F80'7F80, 0x7C00'7C00'7C00'7C00, 0x7FF0'0000'0000'0000,
                                     0x8000'8000'8000'8000, 0x7BFF'7BFF'7BFF'7BFF, 0x7F7F'FFFF'7F7F'FFFF,
                                     0x0001'0001'0001'0001, 0x7F80'0000'7F80'0000, 0x8080'8080'8080'8080};
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t& source = i % 3 == 0 ? equal : state;
    source = source * 6364136223846793005u + 1442695040888963407u;
    std::uint64_t word = source ^ source >> 29;
    if (i % 5 == seed % 5) word = kEnds[word % std::size(kEnds)];
    std::memcpy(bytes.data() + i * size, &word, size);
  }
  return bytes;
}

class TypedOnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(TypedOnTarget, ReducesAsTheReference) {
  for (const DType type : kTypes) {
    for (const ReduceOp op : kOps) {
      if (!Reducible(type, op)) continue;
      SCOPED_TRACE(std::string(DTypeName(type)) + " " + ReduceOpName(op));
      for (const std::size_t n : kSizes) {
        const std::vector<std::byte> a = Bits(type, n, 1), b = Bits(type, n, 2);
        for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {  // aligned, and at any byte, with a guard behind the end
          std::vector<std::byte> out(a.size() + shift + 1, std::byte{77}), in(b.size() + shift);
          std::copy(a.begin(), a.end(), out.begin() + static_cast<std::ptrdiff_t>(shift));
          std::copy(b.begin(), b.end(), in.begin() + static_cast<std::ptrdiff_t>(shift));
          ReduceInto(type, op, out.data() + shift, in.data() + shift, n);
          ExpectReduced(type, op, a, b, out.data() + shift, n);
          ASSERT_EQ(out.back(), std::byte{77});
        }
      }
    }
  }
}

TEST_P(TypedOnTarget, DividesOnce) {
  for (const std::uint32_t count : {1U, 2U, 3U, 7U}) {
    for (const std::size_t n : kSizes) {
      const auto divided = [&](DType type) {
        std::vector<std::byte> out = Bits(type, n, 3);
        AverageInPlace(type, out.data(), count, n);
        return out;
      };
      const auto quotient = [count](auto x, auto, auto z) { return Same(z, x / static_cast<decltype(x)>(count)); };
      const auto half = [count](const Format& f) {
        return [count, &f](std::uint16_t x, std::uint16_t, std::uint16_t z) {
          return SameHalf(f, z, Rounded(f, static_cast<float>(Value(f, x)) / static_cast<float>(count)));
        };
      };
      const auto check = [&]<typename T>(T, DType type, const auto& reference) {
        const std::vector<std::byte> a = Bits(type, n, 3);
        Expect<T>(a, a, divided(type).data(), n, reference);
      };
      check(0.0F, DType::kFloat32, quotient);
      check(0.0, DType::kFloat64, quotient);
      check(std::uint16_t{}, DType::kFloat16, half(kFp16));
      check(std::uint16_t{}, DType::kBFloat16, half(kBf16));
    }
  }
}

// Every number of 16 bits, beside itself and beside one that makes results round.
TEST_P(TypedOnTarget, EveryNumberOf16Bits) {
  std::vector<std::byte> a(65536 * 2), b(65536 * 2);
  for (const auto& [type, format] : {std::pair(DType::kFloat16, kFp16), std::pair(DType::kBFloat16, kBf16)}) {
    for (const std::uint16_t other : {std::uint16_t{0}, std::uint16_t{0x3C01}, std::uint16_t{0x0001}, std::uint16_t{0xBF81}}) {
      for (std::uint32_t code = 0; code < 65536; ++code) {
        const auto bits = static_cast<std::uint16_t>(code);
        std::memcpy(a.data() + 2 * code, &bits, 2);
        std::memcpy(b.data() + 2 * code, &other, 2);
      }
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
        std::vector<std::byte> out = a;
        ReduceInto(type, op, out.data(), b.data(), 65536);
        ExpectReduced(type, op, a, b, out.data(), 65536);
      }
    }
  }
}

TEST(Typed, WhatATypeHas) {
  EXPECT_TRUE(Reducible(DType::kFloat16, ReduceOp::kMean));
  EXPECT_FALSE(Reducible(DType::kInt32, ReduceOp::kMean));
  EXPECT_FALSE(Reducible(DType::kFloat64, ReduceOp::kXor));
  EXPECT_TRUE(Reducible(DType::kUint8, ReduceOp::kAnd));
}

INSTANTIATE_TEST_SUITE_P(Cpu, TypedOnTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace tally
