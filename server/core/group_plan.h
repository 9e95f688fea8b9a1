// PlanGroup: what all workers declared, compared and turned into the group's published layout: buckets, exchange, owner
// of every slab, codec of every tensor. Pure; only the coordinator calls it.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "common/config/config.h"
#include "common/control.h"
#include "common/schedule/shares.h"
#include "common/status.h"
#include "compress/advisor.h"
#include "server/core/positions.h"

namespace tally {

// What a plan rests on besides job and declarations.
struct PlanBasis {
  AutoCodecs auto_codecs;              // what compression.codec = auto stands for in this job
  std::optional<Placement> placement;  // none: the job stays on one machine, shares are equal. With node stages its
                                       // workers are nodes
  std::uint32_t nodes = 1;             // that the workers are on
  Positions positions{};               // whose ranks notes name
  std::optional<Placement> measured{};  // as above with what this run has measured: shares may follow it, what is
                                        // chosen must not
};

// What was decided, for the log.
struct PlanNotes {
  std::string group, exchange;  // "owners on servers and workers", "schedule ring"
  std::string shares;           // "server 0 40 %, rank 0 30 %, …"; empty for a schedule
  double bytes_s = 0;           // time of the busiest NIC; 0 on one machine
  std::string reason;           // of mode auto and schedule auto: what each way would take
};

// `declarations[r]` is rank r's; all of one group. `group` and `epoch` of the result are left to the caller.
// Errors: kMismatch, naming each misfit with both values and its rank (the first ten); kInvalidArgument for what rank 0
// declares badly (a name twice, an unknown tensor in a bucket, sizes beyond the bounds).
Result<LayoutMessage> PlanGroup(std::span<const DeclareMessage> declarations, const Config& job,
                                const PlanBasis& basis = {}, PlanNotes* notes = nullptr);

}  // namespace tally
