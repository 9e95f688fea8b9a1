// The two 16-bit number formats: conversions by integer arithmetic and single IEEE operations, written so that
// compilers vectorise the loops around them. Nearest even; finite values beyond the range saturate. Inputs are finite.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string_view>

namespace tally {

// IEEE binary16: range ±65504, spacing 2^-24 below 2^-14. FromFloat expects FlushDenormals.
struct Half16 {
  static constexpr std::uint8_t kId = 1;
  static constexpr std::string_view kName = "fp16";
  static constexpr std::uint16_t kInfinity = 0x7C00, kLargest = 0x7BFF;

  static std::uint16_t FromFloat(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t normal =
        std::min((magnitude + 0xFFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13, std::uint32_t{kLargest});
    // The spacing of fp32 in [0.5, 1) is that of fp16's denormals, so this addition rounds to it.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | Select(magnitude < (113u << 23), small, normal));
  }

  static float ToFloat(std::uint16_t code) {
    const std::uint32_t magnitude = (code & 0x7FFFu) << 13;
    const std::uint32_t normal = magnitude + (112u << 23);
    const auto small =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude + (113u << 23)) - std::bit_cast<float>(113u << 23));
    return std::bit_cast<float>(Select((code & 0x7C00u) == 0, small, normal) | (code & 0x8000u) << 16);
  }

 private:
  // By masks: a branch around the floating-point operation would keep loops from being vectorised.
  static std::uint32_t Select(bool first, std::uint32_t a, std::uint32_t b) {
    const std::uint32_t mask = 0u - static_cast<std::uint32_t>(first);
    return (a & mask) | (b & ~mask);
  }
};

// bfloat16: fp32's range, 8 significant bits. Denormals count as signed zero in both directions.
struct BFloat16 {
  static constexpr std::uint8_t kId = 2;
  static constexpr std::string_view kName = "bf16";
  static constexpr std::uint16_t kInfinity = 0x7F80, kLargest = 0x7F7F;

  static std::uint16_t FromFloat(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t rounded =
        std::min((magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16, std::uint32_t{kLargest});
    return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | (magnitude < 0x00800000u ? 0u : rounded));
  }

  static float ToFloat(std::uint16_t code) {
    const auto bits = static_cast<std::uint32_t>(code) << 16;
    return std::bit_cast<float>((code & 0x7F80u) == 0 ? bits & 0x80000000u : bits);
  }
};

}  // namespace tally
