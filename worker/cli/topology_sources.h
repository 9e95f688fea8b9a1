// What `tally topology` is told of a job's members: a file of members, a list of hosts, a matrix of bandwidths.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/schedule/topology.h"
#include "common/status.h"
#include "common/topology/switch_map.h"

namespace tally::cli {

inline constexpr std::size_t kMaxTopologyMembers = 65536;

// {"members": [{"rank": 0, "node": "a", "switch": "spine1/leaf3"}, …]}, "switch" may be left out; ranks 0, 1, …, each once.
// Errors: kInvalidArgument with what is wrong.
Result<std::vector<Placed>> MembersOfJson(std::string_view text);

// Ranks host by host (or dealt around them, if `cyclic`): `tasks` as SLURM_TASKS_PER_NODE, "2(x3),1", or one number for
// all. Hosts that `switches` does not name have no switch path.
Result<std::vector<Placed>> MembersOfHosts(std::string_view hosts, std::string_view tasks, bool cyclic,
                                           const SwitchMap& switches);

// Errors: kInvalidArgument with option and path: it cannot be read, or is larger than `most` bytes.
Result<std::string> ReadInput(std::string_view option, const std::string& path, std::size_t most);

}  // namespace tally::cli
