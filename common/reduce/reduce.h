// Sums and checks over fp32 runs: the inner loops of owners and schedules. Plain IEEE single operations, no FMA, no
// reassociation, so every target gives the same bits. Denormals are kept. No buffer needs more alignment than a float;
// no overlap unless the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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
// out[i] = a[i], `stream` as below. Where memory is copied by the megabyte this is up to four times as fast as memcpy, which
// glibc makes of "rep movsb": slow if the two addresses differ by little modulo 4 KiB, as those of an arena and of
// anything that malloc has mapped do (benchmarks/RESULTS.md).
void Copy(float* out, const float* a, std::size_t n, bool stream);
// The same for numbers as they came over a wire: `a` may begin at any byte.
void Copy(float* out, const std::byte* a, std::size_t n);
void Copy(std::byte* out, const float* a, std::size_t n);
// n bytes of numbers of any type, from and to any byte: by the loop of Copy (ARCHITECTURE D28) where both addresses are
// multiples of 4, else by memcpy.
void CopyBytes(std::byte* out, const std::byte* a, std::size_t n);
// One of several vectors that are added: each value counts `factor` times, rounded.
struct Term {
  const float* values = nullptr;
  float factor = 1;
};
// out[i] = (f0*a0[i] + f1*a1[i] + … from left to right) / divisor, every operation rounded; one term or more. True if
// every out[i] is finite. `out` may be one of the terms. `stream`: past the cache, for results that are not read soon.
bool SumTerms(float* out, std::span<const Term> terms, float divisor, std::size_t n, bool stream);
// True if every element is finite.
bool AllFinite(const float* a, std::size_t n);

}  // namespace tally
