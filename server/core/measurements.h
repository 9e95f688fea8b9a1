// Which workers measure what connections between hosts carry, as a job starts whose link.connections leaves their number
// open. Pure: the coordinator, who waits for the results, and the members come to the same answer from the epoch alone.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/units.h"
#include "server/core/positions.h"

namespace tally {

struct Measurement {
  Rank by;
  OwnerRef to;  // on another host
  bool operator==(const Measurement&) const = default;
};

// At most one per node with workers, by its first one, towards the next such node's first one; where only servers are
// linked to, the first nodes measure towards one server each. So no node's NIC carries two of them in one direction, which
// would make several connections look better than they are; containers of one host are nodes of their own and may share
// one. Empty: nothing is open, the transport is not tcp, all members are on one node or reached over loopback.
std::vector<Measurement> Measurements(const std::vector<Member>& members, const Config& job);

// What the NICs at the ends of measurements carry, in each direction, by role and rank or server index: one is as fast as
// the fastest connection that it takes part in, as the slower end limits each. Left out is an end that was measured with one
// other alone, unless that one was faster elsewhere: either may be the slow one. What is within a fifth of the fastest of all
// counts as equal to it, so that what measurements vary by moves no shares. `found`: by rank.
std::map<OwnerRef, double> NicRatesOf(std::span<const Measurement> measurements, const Positions& positions,
                                      const std::map<std::uint32_t, MeasuredMessage>& found);

// How many connections the job's links get: the upper median of what was found, 1 if nothing was.
std::uint32_t AgreedConnections(std::vector<std::uint32_t> found);

}  // namespace tally
