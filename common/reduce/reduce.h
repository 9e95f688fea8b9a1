// Sums and checks over fp32 runs: the inner loops of owners and schedules. Plain IEEE single operations, no FMA, no
// reassociation, so every target gives the same bits. Denormals are kept. No buffer needs more alignment than a float;
// no overlap unless the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tally {

// a[i] = a[i] + b[i]
void AddInto(float* a, const float* b, std::size_t n);
// The same for numbers as they came over a wire: `b` may begin at any byte.
void AddInto(float* a, const std::byte* b, std::size_t n);
// out[i] = a[i] + b[i]
void Add(float* out, const float* a, const float* b, std::size_t n);
// out[i] = w * a[i]  (one IEEE multiplication)
void Scale(float* out, const float* a, float w, std::size_t n);
// out[i] = a[i] / w  (one IEEE division). out may be a.
void Divide(float* out, const float* a, float w, std::size_t n);
// True if every element is finite.
bool AllFinite(const float* a, std::size_t n);

}  // namespace tally
