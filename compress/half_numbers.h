// Gradients that callers hold in 16 bits: widened before they are weighted, rounded once when the mean is there (DESIGN
// §5). Unlike codecs these keep infinities and NaNs, which a step has to see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/units.h"
#include "compress/codec.h"

namespace tally {

// What numbers of a type travel as if nothing compresses them: a codec's id.
std::uint8_t PlainCodec(DType type);

class HalfNumbers {
 public:
  explicit HalfNumbers(DType type);  // kFloat16 or kBFloat16

  // Exact.
  void Widen(const std::uint16_t* in, std::size_t n, float* out) const;
  // To the nearest, ties to even; finite numbers beyond the range become the largest.
  void Narrow(const float* in, std::size_t n, std::uint16_t* out) const;

 private:
  DType type_;
  std::unique_ptr<Codec> codec_;  // rounds what is finite
};

}  // namespace tally
