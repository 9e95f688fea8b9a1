// Arrays that may have gaps: their size, whether they can be read where they lie, and a copy without the gaps.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/status.h"
#include "worker/c_api/tally.h"

namespace tally::c_api {

// The product of the dimensions. Errors: kInvalidArgument (too many dimensions, no shape, a product beyond 2^40).
Status CountElements(std::uint32_t dimensions, const std::uint64_t* shape, std::uint64_t* elements);

// "3x4"; "scalar".
std::string ShapeText(std::span<const std::uint64_t> shape);

// Row-major without gaps and aligned to its type. `array` has been checked.
bool IsPlain(const tally_array& array);

// Copies the numbers in row-major order to `out`, which has room for all of them and does not overlap.
void Pack(const tally_array& array, void* out);

}  // namespace tally::c_api
