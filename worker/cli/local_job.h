// LocalJob: a whole job on this machine: S tally-servers and N copies of a worker program, on loopback, with free ports
// and the launcher variables that a worker reads (RANK, WORLD_SIZE, …, TALLY_*). For run, demo, compare and bench.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"
#include "worker/cli/launcher.h"

namespace tally::cli {

struct LocalJobOptions {
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
  std::string server_program;                      // path of tally-server; needed if servers > 0
  std::vector<std::string> worker_command;         // of every rank; tells itself apart by RANK
  std::string config_file;                         // the job's TOML file, for servers and workers; empty = none
  std::vector<std::string> overrides;              // "section.key=value", for servers and workers
  std::vector<std::string> server_overrides;       // for servers only; {index} is replaced: "link.nic=s{index}"
  std::map<std::string, std::string> worker_environment_extra;  // added for workers; {rank} and {node} in
                                                                // a value are replaced
  std::uint32_t workers_per_node = 1;              // node = rank / this
  std::map<std::string, std::string> environment;  // what children start from
  std::string work_directory;                      // for port files and server reports; empty = a fresh one, removed
  bool server_reports = false;                     // each server writes <work_directory>/server<i>.json at its end
  bool check_mode = false;                         // the workers will join: their mode must be one that this build has
  Nanos start_timeout = std::chrono::seconds(30);  // of each server
  LauncherOptions launcher;
};

class LocalJob {
 public:
  explicit LocalJob(LocalJobOptions options);
  ~LocalJob();  // ends everything

  // Starts servers, the first first, waits for their ports, then starts the workers. Errors: kInvalidArgument,
  // kUnavailable, kTimeout, kPeerLost (a server died; its label and exit).
  Status Start();

  // Waits until all workers, and then all servers, have ended. Errors as Launcher::WaitFor; afterwards nothing runs.
  Status Wait(Nanos timeout);

  Launcher& launcher();
  std::uint32_t workers() const;
  std::uint32_t servers() const;
  // Process numbers in the launcher: servers are 0..S-1, workers follow.
  std::size_t server_process(std::uint32_t index) const { return index; }
  std::size_t worker_process(std::uint32_t rank) const { return servers() + rank; }
  // Control addresses of the servers that have started.
  const std::vector<std::string>& server_addresses() const;
  const std::string& work_directory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally::cli
