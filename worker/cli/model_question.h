// What `tally model` is asked about a gradient, by flags or by a cluster file: rates, and what a codec makes of its size.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tally::cli {

// "25GBps", "25GB/s" (bytes) or "100gbit" (bits) -> bytes per second.
Result<double> ParseByteRate(std::string_view text);

// Encoded bytes per byte of fp32, to the owners and back.
struct Ratios {
  double push = 1, reply = 1;
};

// Of a codec's name (a full slab, default options) or a plain ratio, taken for one of a codec that a ring cannot carry.
// `linear` is set if a ring carries the encoded vectors.
Result<Ratios> CodecRatios(const std::string& text, std::uint32_t workers, bool* linear);

}  // namespace tally::cli
