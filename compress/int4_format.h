// Codec int4, the definition: blocks of 128 elements, each a byte k+127 (0 = all codes zero) followed by the codes
// q in [-7, 7], two to a byte, the lower half first; a half left over is 0. Value q*2^k.
#pragma once

#include "compress/quantize.h"

namespace tally {

struct Int4 {
  using Scale = Pow2Scale<4>;
  static constexpr std::uint8_t kId = 5;
  static constexpr std::string_view kName = "int4";
  static constexpr CodecTraits kTraits{
      .lossy = true, .feedback_forced = true, .exact_residual = true, .divided_by = DividedBy::kReceiver};
  static constexpr std::size_t kBlock = 128;
  static constexpr std::size_t Bytes(std::size_t n) { return n == 0 ? 0 : Scale::kBytes + (n + 1) / 2; }

  static void Encode(const EncodeKey& key, std::size_t first, const float* p, std::size_t n, std::byte* out) {
    const float scale = Scale::Choose(LargestMagnitude(p, n), key.stochastic);
    std::int8_t codes[kBlock + 1];
    Quantize<Scale>(key, first, p, n, scale, codes);
    codes[n] = 0;
    Scale::Store(scale, out);
    for (std::size_t i = 0; i < n; i += 2) {
      out[Scale::kBytes + i / 2] = static_cast<std::byte>((codes[i] & 15) | (codes[i + 1] & 15) << 4);
    }
  }

  static void Decode(const std::byte* in, std::size_t n, float* out) {
    const float scale = Scale::Load(in);
    for (std::size_t i = 0; i < n; ++i) {
      const int code = static_cast<int>(Nibble(in, i) ^ 8u) - 8;
      out[i] = static_cast<float>(code) * scale;
    }
  }

  static Status Check(std::size_t block, const std::byte* in, std::size_t n) {
    TALLY_RETURN_IF_ERROR(Scale::Check(kName, block, in));
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned code = Nibble(in, i);
      if (code == 8) return CorruptAt(kName, "a code of block", block, "-7..7", "-8");
      if (code != 0 && Scale::Load(in) == 0.0f) {
        return CorruptAt(kName, "a code of zero block", block, "0", "another");
      }
    }
    if (n % 2 != 0 && Nibble(in, n) != 0) {
      return CorruptAt(kName, "the half byte left over of block", block, "0", "another");
    }
    return Status::Ok();
  }

 private:
  static unsigned Nibble(const std::byte* in, std::size_t i) {
    return std::to_integer<unsigned>(in[Scale::kBytes + i / 2]) >> (i % 2 * 4) & 15u;
  }
};

}  // namespace tally
