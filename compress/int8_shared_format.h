// Codec int8_shared, the definition of what it adds to int8: a block encoded with the scale that all workers share. The
// block's byte is the exponent of its own largest magnitude, for the next step; the codes are those of the shared scale,
// clamped, so that the rest of a block that grew stays in the residual.
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

  // p[0..n) of one block -> out[0..Own::Bytes(n)); rest[i] = p[i] - what the code stands for. rest may be p.
  static void Encode(const float* p, std::size_t n, float shared, std::byte* out, float* rest) {
    Scale::Store(Scale::Choose(LargestMagnitude(p, n), false), out);
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
