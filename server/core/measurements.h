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

// At most one per host with workers, by its first one, towards the next such host's first one; where only servers are
// linked to, the first hosts measure towards one server each. So no NIC carries two of them in one direction, which would
// make several connections look better than they are. Empty: nothing is open, the transport is not tcp, all members are
// on one node or reached over loopback.
std::vector<Measurement> Measurements(const std::vector<Member>& members, const Config& job);

// What the NICs at both ends of measurements carry, in each direction, by role and rank or server index: one is as fast as
// the fastest connection that it takes part in, as the slower end limits each. What is within a fifth of the fastest of all
// counts as equal to it, so that what measurements vary by moves no shares. `found`: by rank.
std::map<OwnerRef, double> NicRatesOf(std::span<const Measurement> measurements, const Positions& positions,
                                      const std::map<std::uint32_t, MeasuredMessage>& found);

// How many connections the job's links get: the upper median of what was found, 1 if nothing was.
std::uint32_t AgreedConnections(std::vector<std::uint32_t> found);

}  // namespace tally
