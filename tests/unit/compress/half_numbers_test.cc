// Gradients of 16 bits: every code there and back, and what rounding does to numbers between.
#include "compress/half_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tally {
namespace {

// By the definition of the formats: sign, exponent, fraction.
float ByDefinition(DType type, unsigned code) {
  const int fraction_bits = type == DType::kFloat16 ? 10 : 7, bias = type == DType::kFloat16 ? 15 : 127;
  const unsigned fraction = code & ((1U << fraction_bits) - 1), exponent = (code & 0x7FFFU) >> fraction_bits;
  const unsigned ones = (0x7FFFU >> fraction_bits);
  const float sign = (code & 0x8000U) != 0 ? -1.0F : 1.0F;
  if (exponent == ones) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  const int point = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - fraction_bits;
  return sign * std::ldexp(static_cast<float>(fraction + (exponent == 0 ? 0 : 1U << fraction_bits)), point);
}

TEST(HalfNumbers, EveryCodeThereAndBack) {
  std::vector<std::uint16_t> codes(65536);
  for (unsigned i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  for (const DType type : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<float> wide(codes.size());
    std::vector<std::uint16_t> back(codes.size());
    HalfNumbers(type).Widen(codes.data(), codes.size(), wide.data());
    HalfNumbers(type).Narrow(wide.data(), wide.size(), back.data());
    for (unsigned i = 0; i < codes.size(); ++i) {
      const float expected = ByDefinition(type, i);
      ASSERT_EQ(std::isnan(wide[i]), std::isnan(expected)) << DTypeName(type) << " " << i;
      if (std::isnan(expected)) {
        std::uint16_t again = back[i];
        float value = 0;
        HalfNumbers(type).Widen(&again, 1, &value);
        ASSERT_TRUE(std::isnan(value)) << DTypeName(type) << " " << i;
        continue;
      }
      ASSERT_EQ(wide[i], expected) << DTypeName(type) << " " << i;
      ASSERT_EQ(std::signbit(wide[i]), std::signbit(expected)) << DTypeName(type) << " " << i;
      const bool denormal = std::abs(expected) < 0x1p-126F;  // of fp32, as bf16's are: zero
      ASSERT_EQ(back[i], denormal ? i & 0x8000U : i) << DTypeName(type);
    }
  }
}

TEST(HalfNumbers, RoundsToTheNearestTiesToEvenAndSaturates) {
  const std::vector<float> values = {1.0F + 0x1p-11F, 1.0F + 3 * 0x1p-11F, -65504.0F, 65520.0F, 1e30F, 0x1p-25F, 3 * 0x1p-25F};
  std::vector<std::uint16_t> codes(values.size());
  HalfNumbers(DType::kFloat16).Narrow(values.data(), values.size(), codes.data());
  EXPECT_EQ(codes, (std::vector<std::uint16_t>{0x3C00, 0x3C02, 0xFBFF, 0x7BFF, 0x7BFF, 0x0000, 0x0002}));
  const std::vector<float> others = {1.0F + 0x1p-8F, 1.0F + 3 * 0x1p-8F, std::numeric_limits<float>::max()};
  codes.resize(others.size());
  HalfNumbers(DType::kBFloat16).Narrow(others.data(), others.size(), codes.data());
  EXPECT_EQ(codes, (std::vector<std::uint16_t>{0x3F80, 0x3F82, 0x7F7F}));
}

}  // namespace
}  // namespace tally
