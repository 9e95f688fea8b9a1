// `tally model --cluster`: one aggregation, simulated on the cluster of a file for each number of workers, by every way.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "common/status.h"
#include "worker/cli/cluster_file.h"
#include "worker/cli/console.h"
#include "worker/cli/options.h"

namespace tally::cli {

// {"rows":[{workers, servers, hosts, ps_central_s, …, fastest}], "crossings":[{faster, than, from_workers}]}; a time is
// null where the way does not exist (no servers) or would take more messages than the simulation's bound (then named in
// "not_simulated"). Progress goes to `console`.
Result<nlohmann::json> SimulateCluster(const ClusterFile& file, Console& console);

// Runs it, prints the table and where ways cross. Returns the exit code.
int RunClusterModel(const std::string& path, const JsonOption& json, Console& console);

}  // namespace tally::cli
