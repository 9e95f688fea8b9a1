// Codec onebit, the definition: blocks of 4096 elements, each an fp32 scale s, the mean of |p|, followed by the sign
// bits, the lowest first (1 = negative); bits left over are 0. Value s or -s. Zero block: s = 0 and all bits 0.
#pragma once

#include <cmath>
#include <cstring>

#include "compress/quantize.h"

namespace tally {

struct OneBit {
  static constexpr std::uint8_t kId = 6;
  static constexpr std::string_view kName = "onebit";
  static constexpr CodecTraits kTraits{
      .lossy = true, .feedback_forced = true, .exact_residual = false, .divided_by = DividedBy::kReceiver};
  static constexpr std::size_t kBlock = 4096;
  static constexpr std::size_t kScaleBytes = sizeof(float);
  static constexpr std::size_t Bytes(std::size_t n) { return n == 0 ? 0 : kScaleBytes + (n + 7) / 8; }

  // 2^(23-E), E = max(exponent of the block's largest magnitude, -102): it makes integers of the magnitudes whose sum
  // does not depend on the order of addition.
  static float Multiplier(std::uint32_t largest) {
    const std::uint32_t exponent = std::max(largest >> 23, 127u - 102u);
    return std::bit_cast<float>((127u + 23u + 127u - exponent) << 23);
  }
  // The mean of n magnitudes from the sum of rne(|p| * multiplier).
  static float Mean(std::uint64_t sum, std::size_t n, float multiplier) {
    const double mean = static_cast<double>(sum) / static_cast<double>(n) / static_cast<double>(multiplier);
    return mean < 0x1p-126 ? 0.0f : static_cast<float>(mean);
  }

  static void Encode(const EncodeKey&, std::size_t /*first*/, const float* p, std::size_t n, std::byte* out) {
    const float multiplier = Multiplier(LargestMagnitude(p, n));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<std::uint64_t>(std::nearbyint(std::abs(p[i]) * multiplier));
    const float scale = Mean(sum, n, multiplier);
    std::memset(out, 0, Bytes(n));
    std::memcpy(out, &scale, kScaleBytes);
    if (scale == 0.0f) return;
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned sign = std::bit_cast<std::uint32_t>(p[i]) >> 31;
      out[kScaleBytes + i / 8] |= static_cast<std::byte>(sign << i % 8);
    }
  }

  static float Scale(const std::byte* in) {
    float scale = 0;
    std::memcpy(&scale, in, kScaleBytes);
    return scale;
  }

  static void Decode(const std::byte* in, std::size_t n, float* out) {
    const auto scale = std::bit_cast<std::uint32_t>(Scale(in));
    for (std::size_t i = 0; i < n; ++i) out[i] = std::bit_cast<float>(scale | Sign(in, i) << 31);
  }

  static bool IsValidScale(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return bits == 0 || (bits >= kMinNormalBits && bits < kInfinityBits);
  }

  static Status Check(std::size_t block, const std::byte* in, std::size_t n) {
    const float scale = Scale(in);
    if (!IsValidScale(scale)) {
      return CorruptAt(kName, "scale of block", block, "0 or a normal positive number", std::to_string(scale));
    }
    const std::size_t bits = (Bytes(n) - kScaleBytes) * 8;
    for (std::size_t i = scale == 0.0f ? 0 : n; i < bits; ++i) {
      if (Sign(in, i) != 0) {
        return CorruptAt(kName, i < n ? "a sign of zero block" : "a bit left over of block", block, "0", "1");
      }
    }
    return Status::Ok();
  }

 private:
  static std::uint32_t Sign(const std::byte* in, std::size_t i) {
    return std::to_integer<std::uint32_t>(in[kScaleBytes + i / 8]) >> i % 8 & 1u;
  }
};

}  // namespace tally
