// What compression.reply = "union" makes of topk's and dgc's replies: every non-zero of the sum. Per slab a u32 count c
// of at most min(n, N*k), c u16 indices, strictly rising, and c fp32 values; or the count 2^32-1 and n fp32 values,
// where that is smaller.
#pragma once

#include <cstdint>
#include <memory>

#include "compress/owner_sum.h"

namespace tally {

// `codec` is topk; it decodes pushes and outlives what is made.
std::unique_ptr<OwnerSum> MakeTopkUnionSum(const Codec* codec, std::uint32_t workers);

}  // namespace tally
