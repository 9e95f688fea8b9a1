// PlanGroup: what all workers declared, compared and turned into the group's published layout: buckets, exchange, owner
// of every slab, codec of every tensor. Pure; only the coordinator calls it.
#pragma once

#include <span>

#include "common/config/config.h"
#include "common/control.h"
#include "common/status.h"
#include "compress/advisor.h"

namespace tally {

// `declarations[r]` is rank r's; all of one group. `group` and `epoch` of the result are left to the caller.
// Errors: kMismatch, naming each misfit with both values and its rank (the first ten); kInvalidArgument for what rank 0
// declares badly (a name twice, an unknown tensor in a bucket, sizes beyond the bounds).
// `auto_codecs`: what compression.codec = auto stands for in this job.
Result<LayoutMessage> PlanGroup(std::span<const DeclareMessage> declarations, const Config& job,
                                const AutoCodecs& auto_codecs = {});

}  // namespace tally
