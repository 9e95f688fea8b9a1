// Which switches are above which host, as files of SLURM say. Takes hostile text: everything is bounded, nothing recurses.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::size_t kMaxTopologyBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxTopologyHosts = 65536;

// By host: names of switches from the top down, joined by '/'.
using SwitchMap = std::map<std::string, std::string, std::less<>>;

// SLURM's host list: "node[01-03,7],x" -> node01 node02 node03 node7 x. One pair of brackets a name.
// Errors: kInvalidArgument with what is wrong; more than kMaxTopologyHosts names.
Result<std::vector<std::string>> ExpandHostList(std::string_view text);

// topology.conf: lines "SwitchName=s1 Nodes=node[1-4]" and "SwitchName=s0 Switches=s[1-2]"; LinkSpeed and comments are
// read over. Errors: kInvalidArgument with the line: other keys, a switch or host below two, a cycle, a path too long.
Result<SwitchMap> ParseTopologyConf(std::string_view text);

// topology.yaml as SLURM 25.05 documents it, of which the tree of the first topology is read: the entries `topology`,
// `cluster_default`, `tree`, `switches`, `switch`, `nodes`, `children`, one a line. A `block` or `flat` topology, or any
// other YAML, is an error with its line.
Result<SwitchMap> ParseTopologyYaml(std::string_view text);

// SLURM_TOPOLOGY_ADDR ("s0.s4.node7") by SLURM_TOPOLOGY_ADDR_PATTERN ("switch.switch.node"): "s0/s4". Empty where the
// two do not fit or make no switch path.
std::string SwitchPathOfAddress(std::string_view address, std::string_view pattern);

}  // namespace tally
