// What a collective does to runs of numbers of any type: the loops around common/reduce/combine.h, which says what one
// number becomes. Memory may begin at any byte; no overlap. All instruction sets give the same bits (but for which NaN
// comes of two).
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/units.h"

namespace tally {

// a[i] = a[i] op b[i]; kMean adds. Requires Reducible(type, op).
void ReduceInto(DType type, ReduceOp op, std::byte* a, const std::byte* b, std::size_t n);
// a[i] = a[i] / count. Requires a floating type.
void AverageInPlace(DType type, std::byte* a, std::uint32_t count, std::size_t n);

}  // namespace tally
