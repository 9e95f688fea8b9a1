// Kernels of low_rank.h for every target of Highway. Blocks of four rows and four columns keep a matrix's elements in
// registers while they are used.
#include "compress/low_rank.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/low_rank.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

template <std::size_t kValue>
using Constant = std::integral_constant<std::size_t, kValue>;

// Calls block(first row, constant rows, first column of the rank, constant columns) over all of them.
template <std::size_t kRows, typename Block>
HWY_INLINE void OverRank(std::size_t row, std::size_t rank, const Block& block) {
  std::size_t j = 0;
  for (; j + 4 <= rank; j += 4) block(row, Constant<kRows>(), j, Constant<4>());
  for (; j < rank; ++j) block(row, Constant<kRows>(), j, Constant<1>());
}
template <typename Block>
HWY_INLINE void OverBlocks(const LowRankShape& shape, const Block& block) {
  std::size_t i = 0;
  for (; i + 4 <= shape.rows; i += 4) OverRank<4>(i, shape.rank, block);
  for (; i < shape.rows; ++i) OverRank<1>(i, shape.rank, block);
}

void RowProducts(const LowRankShape& shape, const float* m, const float* q, float* p) {
  const std::size_t n = shape.columns, lanes = hn::Lanes(Floats());
  OverBlocks(shape, [=, rows = shape.rows](std::size_t i, auto row_count, std::size_t j, auto column_count) HWY_ATTR {
    constexpr std::size_t kRows = decltype(row_count)::value, kColumns = decltype(column_count)::value;
    const Floats d;
    Vector sums[kRows][kColumns];
    for (auto& row : sums) {
      for (auto& sum : row) sum = hn::Zero(d);
    }
    std::size_t k = 0;
    for (; k + lanes <= n; k += lanes) {
      Vector of_q[kColumns];
      for (std::size_t c = 0; c < kColumns; ++c) of_q[c] = hn::LoadU(d, q + (j + c) * n + k);
      for (std::size_t r = 0; r < kRows; ++r) {
        const auto of_m = hn::LoadU(d, m + (i + r) * n + k);
        for (std::size_t c = 0; c < kColumns; ++c) sums[r][c] = hn::MulAdd(of_m, of_q[c], sums[r][c]);
      }
    }
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        float sum = hn::GetLane(hn::SumOfLanes(d, sums[r][c]));
        for (std::size_t rest = k; rest < n; ++rest) sum += m[(i + r) * n + rest] * q[(j + c) * n + rest];
        p[(j + c) * rows + i + r] = sum;
      }
    }
  });
}

void ColumnProducts(const LowRankShape& shape, const float* m, const float* p, float* q) {
  const std::size_t n = shape.columns, lanes = hn::Lanes(Floats());
  std::fill_n(q, n * shape.rank, 0.0F);
  OverBlocks(shape, [=, rows = shape.rows](std::size_t i, auto row_count, std::size_t j, auto column_count) HWY_ATTR {
    constexpr std::size_t kRows = decltype(row_count)::value, kColumns = decltype(column_count)::value;
    const Floats d;
    Vector of_p[kRows][kColumns];
    for (std::size_t r = 0; r < kRows; ++r) {
      for (std::size_t c = 0; c < kColumns; ++c) of_p[r][c] = hn::Set(d, p[(j + c) * rows + i + r]);
    }
    std::size_t k = 0;
    for (; k + lanes <= n; k += lanes) {
      Vector of_m[kRows];
      for (std::size_t r = 0; r < kRows; ++r) of_m[r] = hn::LoadU(d, m + (i + r) * n + k);
      for (std::size_t c = 0; c < kColumns; ++c) {
        float* to = q + (j + c) * n + k;
        auto sum = hn::LoadU(d, to);
        for (std::size_t r = 0; r < kRows; ++r) sum = hn::MulAdd(of_m[r], of_p[r][c], sum);
        hn::StoreU(sum, d, to);
      }
    }
    for (; k < n; ++k) {
      for (std::size_t c = 0; c < kColumns; ++c) {
        for (std::size_t r = 0; r < kRows; ++r) q[(j + c) * n + k] += m[(i + r) * n + k] * p[(j + c) * rows + i + r];
      }
    }
  });
}

// One multiplication and one addition at a time, in the order of the columns.
template <bool kSubtract>
HWY_INLINE void EachElement(const LowRankShape& shape, const float* p, const float* q, float* out) {
  const Floats d;
  const std::size_t n = shape.columns, lanes = hn::Lanes(d);
  for (std::size_t i = 0; i < shape.rows; ++i) {
    float* to = out + i * n;
    std::size_t k = 0;
    for (; k + lanes <= n; k += lanes) {
      auto sum = hn::Mul(hn::Set(d, p[i]), hn::LoadU(d, q + k));
      for (std::size_t j = 1; j < shape.rank; ++j) {
        sum = hn::Add(sum, hn::Mul(hn::Set(d, p[j * shape.rows + i]), hn::LoadU(d, q + j * n + k)));
      }
      hn::StoreU(kSubtract ? hn::Sub(hn::LoadU(d, to + k), sum) : sum, d, to + k);
    }
    for (; k < n; ++k) {
      float sum = p[i] * q[k];
      for (std::size_t j = 1; j < shape.rank; ++j) sum = sum + p[j * shape.rows + i] * q[j * n + k];
      to[k] = kSubtract ? to[k] - sum : sum;
    }
  }
}
void Reconstruct(const LowRankShape& shape, const float* p, const float* q, float* out) {
  EachElement<false>(shape, p, q, out);
}
void SubtractReconstruction(const LowRankShape& shape, const float* p, const float* q, float* m) {
  EachElement<true>(shape, p, q, m);
}

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {
namespace {

// Sum of a[i]*b[i] in a fixed order: 16 running sums, taken in turn, then added pairwise.
float Dot(const float* a, const float* b, std::size_t n) {
  float sums[16] = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (std::size_t l = 0; l < 16; ++l) sums[l] = sums[l] + a[i + l] * b[i + l];
  }
  for (; i < n; ++i) sums[i % 16] = sums[i % 16] + a[i] * b[i];
  for (std::size_t width = 8; width > 0; width /= 2) {
    for (std::size_t l = 0; l < width; ++l) sums[l] = sums[l] + sums[l + width];
  }
  return sums[0];
}

// Brings the largest magnitude into [1, 2), by a power of two, so that no square over- or underflows that matters.
void ScaleToOne(std::size_t n, float* column) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(column[i]) & 0x7FFFFFFF);
  const int exponent = (largest >> 23) - 127;
  if (largest < 0x00800000 || exponent == 0) return;
  // In two steps, as 2^-exponent itself may not be a normal number.
  const float half = std::ldexp(1.0F, -exponent / 2), rest = std::ldexp(1.0F, -exponent - -exponent / 2);
  for (std::size_t i = 0; i < n; ++i) column[i] = column[i] * half * rest;
}

}  // namespace

HWY_EXPORT(RowProducts);
HWY_EXPORT(ColumnProducts);
HWY_EXPORT(Reconstruct);
HWY_EXPORT(SubtractReconstruction);

void RowProducts(const LowRankShape& shape, const float* m, const float* q, float* p) {
  HWY_DYNAMIC_DISPATCH(RowProducts)(shape, m, q, p);
}
void ColumnProducts(const LowRankShape& shape, const float* m, const float* p, float* q) {
  HWY_DYNAMIC_DISPATCH(ColumnProducts)(shape, m, p, q);
}
void Reconstruct(const LowRankShape& shape, const float* p, const float* q, float* out) {
  HWY_DYNAMIC_DISPATCH(Reconstruct)(shape, p, q, out);
}
void SubtractReconstruction(const LowRankShape& shape, const float* p, const float* q, float* m) {
  HWY_DYNAMIC_DISPATCH(SubtractReconstruction)(shape, p, q, m);
}

void Orthonormalize(std::size_t rows, std::size_t rank, float* p) {
  constexpr float kDependent = 0x1p-36F;  // of the squared length
  for (std::size_t j = 0; j < rank; ++j) {
    float* column = p + j * rows;
    ScaleToOne(rows, column);
    const float before = Dot(column, column, rows);
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t other = 0; other < j; ++other) {
        const float* unit = p + other * rows;
        const float along = Dot(unit, column, rows);
        for (std::size_t i = 0; i < rows; ++i) column[i] = column[i] - along * unit[i];
      }
    }
    const float left = Dot(column, column, rows);
    if (!(left > kDependent * before)) {
      std::fill_n(column, rows, 0.0F);
      continue;
    }
    const float length = std::sqrt(left);
    for (std::size_t i = 0; i < rows; ++i) column[i] = column[i] / length;
  }
}

}  // namespace tally
#endif  // HWY_ONCE
