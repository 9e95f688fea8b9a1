// Which workers measure what connections between hosts carry, as a job starts whose link.connections leaves their number
// open. Pure: the coordinator, who waits for the results, and the members come to the same answer from the epoch alone.
#pragma once

#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/units.h"

namespace tally {

struct Measurement {
  Rank by;
  OwnerRef to;  // on another host
  bool operator==(const Measurement&) const = default;
};

// At most one per host with workers, by its first one, towards the next such host's first one; where only servers are
// linked to, the first hosts measure towards one server each. So no NIC carries two of them in one direction, which would
// make several connections look better than they are. Empty: nothing is open, the transport is not tcp, all members are
// on one node or reached over loopback.
std::vector<Measurement> Measurements(const std::vector<Member>& members, const Config& job);

// How many connections the job's links get: the upper median of what was found, 1 if nothing was.
std::uint32_t AgreedConnections(std::vector<std::uint32_t> found);

}  // namespace tally
