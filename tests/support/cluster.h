// TestCluster: servers and workers of one job in this process, each with its own engine thread, over real sockets on
// loopback. `Run` gives every worker a thread of its own; failures are gathered.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/log.h"
#include "server/server.h"
#include "worker/client.h"

namespace tally::test {

struct ClusterOptions {
  std::uint32_t workers = 4;
  std::uint32_t servers = 0;
  std::vector<std::string> settings;  // "section.key=value", for everybody
  std::function<std::vector<std::string>(std::uint32_t rank)> rank_settings;  // further ones, per worker
  std::uint32_t nodes = 0;            // of the workers, rank r on node r mod this; 0: as this machine is
  bool dealt = false;                 // over `nodes` (0: three) and two switches, so that positions are no ranks
};

// A job of a table of tests.
struct JobSetting {
  const char* name;
  std::uint32_t servers = 0;
  std::vector<std::string> settings = {};
  bool exact = true;  // every number is exact in fp32
  std::uint32_t nodes = 0;
  bool dealt = false;

  ClusterOptions Options(std::uint32_t workers) const { return {workers, servers, settings, {}, nodes, dealt}; }
};
void PrintTo(const JobSetting& setting, std::ostream* out);

// Multiples of 1/64 below 2^8, whose sums over few workers and steps are exact.
float ExactGradient(std::uint32_t rank, std::uint64_t step, std::uint32_t tensor, std::size_t element);

class TestCluster {
 public:
  explicit TestCluster(ClusterOptions options);
  ~TestCluster();

  // Starts the servers, then each worker's Join and `body` on a thread of its own, and waits for all. Returns each
  // rank's status: of Join, or what the body returned.
  using Body = std::function<Status(Client& client, std::uint32_t rank)>;
  std::vector<Status> Run(const Body& body);

  // A worker's configuration, to join by hand: "section.key=value", and the same loaded.
  std::vector<std::string> WorkerSettings(std::uint32_t rank) const;
  Result<LoadedConfig> WorkerConfig(std::uint32_t rank);
  Server& server(std::uint32_t index) { return *servers_[index]; }
  void StopServer(std::uint32_t index) { servers_[index].reset(); }
  const std::string& coordinator() const { return coordinator_; }

 private:
  ClusterOptions options_;
  std::unique_ptr<Logger> logger_;
  std::vector<std::unique_ptr<Server>> servers_;
  std::vector<std::string> addresses_;
  std::string coordinator_;
  int held_port_ = -1;  // keeps the coordinator's port free for rank 0
};

// "rank 1: …" for every status that is not ok.
std::string Failures(const std::vector<Status>& statuses);

// INT data: worker i, element j holds (i+1)*((7j mod 251) - 125); sums are exact for up to 64 workers.
float IntValue(std::uint32_t worker, std::uint64_t element);
float IntSum(std::uint32_t workers, std::uint64_t element);

}  // namespace tally::test
