#include "compress/half_numbers.h"

#include <bit>

#include "common/check.h"
#include "compress/codec.h"
#include "compress/half.h"

namespace tally {
namespace {

// Without branches, so that compilers vectorise the loops below.
constexpr std::uint32_t kInfinity = 0x7F800000U;

// Half16::ToFloat is for finite numbers: an exponent of ones comes out as 143, where fp32's ones are 255.
float WidenHalf(std::uint16_t code) {
  const std::uint32_t ones = (code & Half16::kInfinity) == Half16::kInfinity ? 112U << 23 : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(Half16::ToFloat(code)) + ones);
}

template <typename Half>
std::uint16_t NarrowOne(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t a_nan = magnitude > kInfinity ? 0x7FU : 0U;  // any fraction but 0
  const std::uint32_t other = (bits >> 16 & 0x8000U) | Half::kInfinity | a_nan;
  const std::uint32_t finite = magnitude < kInfinity ? ~0U : 0U;
  return static_cast<std::uint16_t>((Half::FromFloat(value) & finite) | (other & ~finite));
}

}  // namespace

std::uint8_t PlainCodec(DType type) {
  return type == DType::kFloat32 ? kCodecNone : type == DType::kFloat16 ? Half16::kId : BFloat16::kId;
}

void Widen(DType type, const std::uint16_t* in, std::size_t n, float* out) {
  TALLY_CHECK(type != DType::kFloat32, "a type of 16 bits");
  if (type == DType::kFloat16) {
    for (std::size_t i = 0; i < n; ++i) out[i] = WidenHalf(in[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(in[i]) << 16);
  }
}

void Narrow(DType type, const float* in, std::size_t n, std::uint16_t* out) {
  TALLY_CHECK(type != DType::kFloat32, "a type of 16 bits");
  if (type == DType::kFloat16) {
    for (std::size_t i = 0; i < n; ++i) out[i] = NarrowOne<Half16>(in[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) out[i] = NarrowOne<BFloat16>(in[i]);
  }
}

}  // namespace tally
