// Codec fp16: round to nearest even, saturate, keep the rest in the residual.
#include "compress/half.h"
#include "compress/half_codec.h"

namespace tally {

std::unique_ptr<Codec> MakeFp16Codec(const Config::Compression&) { return std::make_unique<HalfCodec<Half16>>(); }

}  // namespace tally
