// The arithmetic of PowerSGD: products of a row-major matrix M (rows x columns) with a few columns, and their
// orthonormalisation. P (rows x rank) and Q (columns x rank) are stored column by column. fp32; RowProducts and
// ColumnProducts may differ in the last bits between processors, the rest is the same everywhere. Rank is at most 32.
#pragma once

#include <cstddef>

namespace tally {

inline constexpr std::size_t kMaxRank = 32;

struct LowRankShape {
  std::size_t rows = 0, columns = 0, rank = 0;
};

// P = M Q
void RowProducts(const LowRankShape& shape, const float* m, const float* q, float* p);
// Q = M^T P
void ColumnProducts(const LowRankShape& shape, const float* m, const float* p, float* q);
// out = P Q^T: each element's products are added in the order of the columns.
void Reconstruct(const LowRankShape& shape, const float* p, const float* q, float* out);
// m = m - P Q^T, with the same numbers as Reconstruct.
void SubtractReconstruction(const LowRankShape& shape, const float* p, const float* q, float* m);
// Gram-Schmidt over the `rank` columns of `rows` elements, each orthogonalised twice. A column that depends on those
// before it (what is left of it is below 2^-18 of its length) becomes zero. Powers of two times P give the same result.
void Orthonormalize(std::size_t rows, std::size_t rank, float* p);

}  // namespace tally
