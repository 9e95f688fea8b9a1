// The first step of EncodeWithFeedback, as the definitions take it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tally {

// p[i] = fl(fl(w*g[i]) + e[i]), or fl(w*g[i]) if e is null. False if any p is not finite (it then covers a non-finite
// input, weight or product as well, residuals being finite). p does not overlap g or e.
inline bool WeightAndAdd(const float* g, float w, const float* e, std::size_t n, float* p) {
  if (e != nullptr) {
    for (std::size_t i = 0; i < n; ++i) p[i] = w * g[i] + e[i];
  } else {
    for (std::size_t i = 0; i < n; ++i) p[i] = w * g[i];
  }
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    bad |= (std::bit_cast<std::uint32_t>(p[i]) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
  }
  return bad == 0;
}

// The same where g may be null, for zeros.
inline bool WeightedSum(const float* g, float w, const float* e, std::size_t n, float* p) {
  if (g != nullptr) return WeightAndAdd(g, w, e, n, p);
  if (e != nullptr) return WeightAndAdd(e, 1.0F, nullptr, n, p);
  std::fill_n(p, n, 0.0F);
  return true;
}

}  // namespace tally
