// Codec int8, the definition: blocks of 256 elements, each with its scale followed by one signed code per element.
// scale pow2: one byte k+127 (0 = all codes zero), value q*2^k. scale absmax: fp32 s = fl(max/127), value fl(q*s).
#pragma once

#include <cstring>
#include <limits>

#include "compress/quantize.h"

namespace tally {

struct AbsmaxScale {
  static constexpr std::size_t kBytes = 4;
  static constexpr bool kExact = false;
  static constexpr int kMaxCode = 127;

  // The largest scale for which 127*s does not overflow: fl(FLT_MAX/127) may be one step beyond it.
  static constexpr float kMaxScale = [] {
    constexpr float kMax = std::numeric_limits<float>::max();
    const auto guess = static_cast<float>(static_cast<double>(kMax) / 127.0);
    if (static_cast<double>(guess) * 127.0 <= static_cast<double>(kMax)) return guess;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(guess) - 1u);
  }();

  static float Choose(std::uint32_t largest, bool /*stochastic*/) {
    return std::min(std::bit_cast<float>(largest) / 127.0f, kMaxScale);
  }
  static float Multiplier(float scale) { return scale; }
  static float Quotient(float p, float scale) { return p / scale; }

  static void Store(float scale, std::byte* out) { std::memcpy(out, &scale, kBytes); }
  static float Load(const std::byte* in) {
    float scale = 0;
    std::memcpy(&scale, in, kBytes);
    return scale;
  }
  static bool IsValid(const std::byte* in) {
    const auto bits = std::bit_cast<std::uint32_t>(Load(in));
    return bits == 0 || (bits >= kMinNormalBits && bits <= std::bit_cast<std::uint32_t>(kMaxScale));
  }
  static Status Check(std::string_view codec, std::size_t block, const std::byte* in) {
    if (IsValid(in)) return Status::Ok();
    return CorruptAt(codec, "scale of block", block, "0 or a normal number up to FLT_MAX/127",
                     std::to_string(Load(in)));
  }
};

template <typename ScaleType>
struct Int8 {
  using Scale = ScaleType;
  static constexpr std::uint8_t kId = 3;
  static constexpr std::string_view kName = "int8";
  static constexpr CodecTraits kTraits{
      .lossy = true, .exact_residual = Scale::kExact, .divided_by = DividedBy::kReceiver};
  static constexpr std::size_t kBlock = 256;
  static constexpr std::size_t Bytes(std::size_t n) { return n == 0 ? 0 : Scale::kBytes + n; }

  static void Encode(const EncodeKey& key, std::size_t first, const float* p, std::size_t n, std::byte* out) {
    const float scale = Scale::Choose(LargestMagnitude(p, n), key.stochastic);
    std::int8_t codes[kBlock];
    Quantize<Scale>(key, first, p, n, scale, codes);
    Scale::Store(scale, out);
    std::memcpy(out + Scale::kBytes, codes, n);
  }

  static void Decode(const std::byte* in, std::size_t n, float* out) {
    const float scale = Scale::Load(in);
    const auto* codes = reinterpret_cast<const std::int8_t*>(in + Scale::kBytes);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) * scale;
  }

  static Status Check(std::size_t block, const std::byte* in, std::size_t n) {
    TALLY_RETURN_IF_ERROR(Scale::Check(kName, block, in));
    for (std::size_t i = 0; i < n; ++i) {
      const std::byte code = in[Scale::kBytes + i];
      if (code == std::byte{0x80}) return CorruptAt(kName, "a code of block", block, "-127..127", "-128");
      if (code != std::byte{0} && Scale::Load(in) == 0.0f) {
        return CorruptAt(kName, "a code of zero block", block, "0", "another");
      }
    }
    return Status::Ok();
  }
};

}  // namespace tally
