// Cluster: a virtual cluster for the simulator (simulate.h): hosts with workers and a fast link inside, a NIC each, leaf
// switches below a spine. Pure. Processes are numbered: workers 0, 1, …, host by host, then servers.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::uint32_t kMaxClusterWorkers = 65536;

// Rates are per direction; everything is full duplex.
struct Cluster {
  std::uint32_t workers = 1;
  std::uint32_t workers_per_host = 1;
  std::uint32_t servers = 0;
  bool servers_colocated = false;    // spread over the workers' hosts; else each has a host of its own
  double nic_bytes_per_s = 0;        // of each host
  double server_nic_bytes_per_s = 0;  // of a server's own host; 0: as the others
  std::vector<double> other_nics_bytes_per_s;  // of the first of the workers' hosts, where they differ
  double inside_bytes_per_s = 0;     // of each process towards the others of its host; 0: takes no time
  double alpha_s = 0;                // a message between hosts arrives so much after its last byte was sent
  double inside_alpha_s = 0;         // the same inside a host
  std::uint32_t leaf_hosts = 0;      // workers' hosts below one leaf switch; 0: one switch for all
  double oversubscription = 1;       // rate of the NICs below a leaf over that of its uplink; 1: never in the way
};

// Errors: kInvalidArgument: counts or rates out of range, more other_nics than hosts.
Status CheckCluster(const Cluster& cluster);

enum class LinkKind : std::uint8_t { kInsideOut, kInsideIn, kNicOut, kNicIn, kLeafUp, kLeafDown };
struct ClusterLink {
  LinkKind kind = LinkKind::kNicOut;
  std::uint32_t index = 0;  // of the process, host or leaf
};
// The links that a message passes in their order; none if it stays in its process.
struct ClusterPath {
  std::array<ClusterLink, 4> links;
  std::uint32_t count = 0;
};

// Who is where. Requires a cluster that CheckCluster accepts.
class ClusterMap {
 public:
  explicit ClusterMap(const Cluster& cluster);

  std::uint32_t worker_hosts() const { return worker_hosts_; }
  std::uint32_t hosts() const { return hosts_; }    // a separate server's follow the workers'
  std::uint32_t leaves() const { return leaves_; }  // at least 1; servers' hosts are spread evenly over them
  std::uint32_t processes() const { return cluster_.workers + cluster_.servers; }
  std::uint32_t HostOf(std::uint32_t process) const;
  std::uint32_t LeafOf(std::uint32_t host) const;
  std::uint32_t WorkersOn(std::uint32_t host) const;  // of a workers' host; the last one may have fewer
  bool uplinks_matter() const { return leaves_ > 1 && cluster_.oversubscription > 1; }

  ClusterPath Path(std::uint32_t from, std::uint32_t to) const;
  double BytesPerS(const ClusterLink& link) const;  // 0: takes no time

 private:
  double Nic(std::uint32_t host) const;

  Cluster cluster_;
  std::uint32_t worker_hosts_, hosts_, leaves_;
  std::vector<double> uplinks_;  // by leaf, where they matter
};

}  // namespace tally
