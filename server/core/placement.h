// Which NIC each member of a job uses, by what members said at join. Pure.
#pragma once

#include <optional>
#include <span>

#include "common/control.h"
#include "common/schedule/shares.h"

namespace tally {

// Members of one node that name the same NIC share it; its rate is the least that one of them says. A NIC of which nobody
// says a rate counts as fast as the fastest known one. None if no member has a NIC: the job stays on one machine.
// `workers` by position, `servers` by index.
std::optional<Placement> PlaceMembers(std::span<const JoinMessage> workers, std::span<const JoinMessage> servers);

}  // namespace tally
