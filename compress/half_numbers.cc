#include "compress/half_numbers.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/reduce/reduce.h"
#include "compress/half.h"

namespace tally {
namespace {

constexpr std::size_t kChunk = 4096;  // elements: what is looked at once more is in the nearest cache
constexpr std::uint32_t kInfinity = 0x7F800000U;

// Half16::ToFloat is for finite numbers: an exponent of ones comes out as 143, where fp32's ones are 255. Without a
// branch, so that compilers vectorise the loop.
float WidenHalf(std::uint16_t code) {
  const std::uint32_t ones = (code & Half16::kInfinity) == Half16::kInfinity ? 112U << 23 : 0U;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(Half16::ToFloat(code)) + ones);
}

template <typename Half>
std::uint16_t NarrowAny(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude < kInfinity) return Half::FromFloat(value);
  const std::uint32_t a_nan = magnitude > kInfinity ? 0x7FU : 0U;  // any fraction but 0
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | Half::kInfinity | a_nan);
}

}  // namespace

std::uint8_t PlainCodec(DType type) {
  return type == DType::kFloat32 ? kCodecNone : type == DType::kFloat16 ? Half16::kId : BFloat16::kId;
}

HalfNumbers::HalfNumbers(DType type) : type_(type) {
  TALLY_CHECK(type != DType::kFloat32, "a type of 16 bits");
  codec_ = std::move(MakeCodec(PlainCodec(type), {})).value();
}

void HalfNumbers::Widen(const std::uint16_t* in, std::size_t n, float* out) const {
  if (type_ == DType::kFloat16) {
    for (std::size_t i = 0; i < n; ++i) out[i] = WidenHalf(in[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(in[i]) << 16);
  }
}

void HalfNumbers::Narrow(const float* in, std::size_t n, std::uint16_t* out) const {
  const auto narrow = type_ == DType::kFloat16 ? &NarrowAny<Half16> : &NarrowAny<BFloat16>;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t count = std::min(kChunk, n - first);
    if (AllFinite(in + first, count)) {
      codec_->Encode({}, in + first, count, reinterpret_cast<std::byte*>(out + first), nullptr);
    } else {
      std::transform(in + first, in + first + count, out + first, narrow);
    }
  }
}

}  // namespace tally
