// Which switches are above this machine: as the configuration says, or a file that it names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/status.h"

namespace tally {

// topology.switch, else what topology.file says of topology.host; "" if neither is set. Reads the file.
// Errors: kInvalidArgument with the file and what is wrong in it, or that it does not name the host.
Result<std::string> OwnSwitchPath(const Config::Topology& topology);

// The same of a file's text: topology.conf or topology.yaml (switch_map.h), or labels, one key="value" a line, as
// Kubernetes' downward API writes them; their first words tell which. Of labels those in `labels` are the switches.
Result<std::string> SwitchPathIn(std::string_view text, const std::string& host,
                                 const std::vector<std::string>& labels);

}  // namespace tally
