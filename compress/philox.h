// Philox4x32-10 (Salmon et al., SC 2011): a counter-based generator, so that any element's random bits can be computed
// anywhere, in any order, from the key alone.
#pragma once

#include <array>
#include <cstdint>

#include "compress/codec.h"

namespace tally {

using PhiloxBlock = std::array<std::uint32_t, 4>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(a)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// The four words of elements 4*quad .. 4*quad+3 of the tensor. Key: the seed's halves folded, tensor. Counter: step,
// position, quad; the fourth word holds the high parts (step below 2^56, quad below 2^40).
constexpr PhiloxBlock RoundingBits(const EncodeKey& key, std::uint64_t quad) {
  const auto low = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  return Philox4x32({low(key.step), key.position, low(quad), low(key.step >> 32) << 8 | low(quad >> 32)},
                    low(key.seed) ^ low(key.seed >> 32), key.tensor);
}

}  // namespace tally
