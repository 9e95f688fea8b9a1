// Gradients that callers hold in 16 bits: widened before they are weighted, rounded once when the mean is there (DESIGN
// §5). Unlike codecs these keep infinities and NaNs, which a step has to see.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/units.h"

namespace tally {

// What numbers of a type travel as if nothing compresses them: a codec's id.
std::uint8_t PlainCodec(DType type);

// `type` is kFloat16 or kBFloat16. Exact.
void Widen(DType type, const std::uint16_t* in, std::size_t n, float* out);
// To the nearest, ties to even; finite numbers beyond the range become the largest.
void Narrow(DType type, const float* in, std::size_t n, std::uint16_t* out);

}  // namespace tally
