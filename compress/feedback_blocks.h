// The shared inner loop of EncodeWithFeedback for codecs that work block by block: p = fl(fl(w*g) + e) in registers and
// L1, encode, e' = p - decoded, in one pass over memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace tally {

inline constexpr std::size_t kFeedbackBlock = 256;  // elements

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

// encode_block(p, first, count, decoded): encodes p[0..count), which is the slab's [first, first+count), and, if
// decoded is not null, writes what receivers decode.
template <typename EncodeBlock>
bool EncodeBlocksWithFeedback(const float* g, float w, const float* e, float* e_out, std::size_t n,
                              const EncodeBlock& encode_block) {
  float p[kFeedbackBlock];
  float decoded[kFeedbackBlock];
  for (std::size_t first = 0; first < n; first += kFeedbackBlock) {
    const std::size_t count = std::min(kFeedbackBlock, n - first);
    if (!WeightAndAdd(g + first, w, e == nullptr ? nullptr : e + first, count, p)) return false;
    encode_block(static_cast<const float*>(p), first, count, e_out == nullptr ? nullptr : decoded);
    if (e_out == nullptr) continue;
    float* rest = e_out + first;
    for (std::size_t i = 0; i < count; ++i) rest[i] = p[i] - decoded[i];
  }
  return true;
}

}  // namespace tally
