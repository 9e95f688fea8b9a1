// SplitMix64 (Steele, Lea, Flood 2014): the same numbers with every compiler, unlike std's distributions.
#pragma once

#include <cstdint>

namespace tally::mlp {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t Next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, 1).
  float Uniform() { return static_cast<float>(Next() >> 40) * 0x1p-24f; }
  // In [0, bound); the bias is below bound / 2^32.
  std::uint32_t Below(std::uint32_t bound) { return static_cast<std::uint32_t>(((Next() >> 32) * bound) >> 32); }

 private:
  std::uint64_t state_;
};

}  // namespace tally::mlp
