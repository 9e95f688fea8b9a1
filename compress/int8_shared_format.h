// Codec int8_shared, the definition of what it adds to int8: a block encoded with the scale that all workers share. The
// block's byte is the exponent of its own largest magnitude, for the next step; the codes are those of the shared scale,
// clamped, so that the rest of a block that grew stays in the residual; all of it if p would be too long a number to
// take a code off exactly.
#pragma once

#include <algorithm>

#include "compress/int8_format.h"
#include "compress/shared_scales.h"

namespace tally {

struct Int8Shared {
  using Scale = Pow2Scale<8>;
  using Own = Int8<Scale>;
  static constexpr std::size_t kBlock = Own::kBlock;
  static_assert(kBlock == kSharedBlock);

  // The scale that a block is encoded with: the shared one, or 0 if |p| may reach 2^24 of it (own scale: 127.5 < 2^7).
  static float Usable(float shared, float own) {
    constexpr std::uint32_t kMostGrowth = 24 - 7;
    const std::uint32_t most = (std::bit_cast<std::uint32_t>(shared) >> 23) + kMostGrowth;
    return std::bit_cast<std::uint32_t>(own) >> 23 > most ? 0.0f : shared;
  }

  // p[0..n) of one block -> out[0..Own::Bytes(n)); rest[i] = p[i] - what the code stands for. rest may be p.
  static void Encode(const float* p, std::size_t n, float shared, std::byte* out, float* rest) {
    const float own = Scale::Choose(LargestMagnitude(p, n), false);
    Scale::Store(own, out);
    shared = Usable(shared, own);
    auto* codes = reinterpret_cast<std::int8_t*>(out + Scale::kBytes);
    constexpr auto kMost = static_cast<float>(Scale::kMaxCode);
    const float by = shared == 0.0f ? 0.0f : Scale::Multiplier(shared);
    float clamped[kBlock];
    for (std::size_t i = 0; i < n; ++i) clamped[i] = std::clamp(p[i] * by, -kMost, kMost);
    RoundNearest<Scale::kMaxCode>(clamped, n, codes);
    for (std::size_t i = 0; i < n; ++i) rest[i] = p[i] - static_cast<float>(codes[i]) * shared;
  }
};

}  // namespace tally
