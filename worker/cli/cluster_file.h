// The file of `tally model --cluster`: a virtual cluster, a gradient, the numbers of workers to go through (TOML).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/schedule/cluster.h"
#include "common/status.h"

namespace tally::cli {

struct ClusterFile {
  // [hosts]
  std::uint32_t workers_per_host = 1;
  double nic_bytes_per_s = 12.5e9;
  double inside_bytes_per_s = 0;
  Nanos alpha = std::chrono::microseconds(10), inside_alpha{0};
  std::uint32_t slow_hosts = 0;  // the first of them, with
  double slow_nic_bytes_per_s = 0;
  // [network]
  std::uint32_t leaf_hosts = 0;
  double oversubscription = 1;
  // [servers]
  std::uint32_t servers = 0;     // of every size; or
  std::uint32_t workers_per_server = 0;
  bool colocated = false;
  double server_nic_bytes_per_s = 0;
  // [gradient]
  std::uint64_t bytes = 100'000'000;
  std::string codec = "none";
  // [sweep]
  std::vector<std::uint32_t> workers;

  std::uint32_t ServersFor(std::uint32_t worker_count) const;
  // Of so many workers with their servers.
  Cluster At(std::uint32_t worker_count) const;
};

// Errors: kInvalidArgument: a file that cannot be read, else *all* faults, one a line, each with its
// place, what was expected and, for an unknown key, the nearest.
Result<ClusterFile> ReadClusterFile(const std::string& path);

// The same of its text; `name` is the file's in places.
Result<ClusterFile> ParseClusterFile(std::string_view text, std::string_view name);

}  // namespace tally::cli
