#include "common/schedule/cluster.h"

#include <cmath>
#include <string>

namespace tally {
namespace {

bool IsRate(double bytes_per_s) { return std::isfinite(bytes_per_s) && bytes_per_s > 0; }
bool IsTime(double seconds) { return std::isfinite(seconds) && seconds >= 0; }

// floor(i * to / from): which of `to` equal parts the i-th of `from` falls into.
std::uint32_t Spread(std::uint32_t i, std::uint32_t from, std::uint32_t to) {
  return static_cast<std::uint32_t>(std::uint64_t{i} * to / from);
}

}  // namespace

Status CheckCluster(const Cluster& cluster) {
  if (cluster.workers == 0 || cluster.workers > kMaxClusterWorkers || cluster.servers > kMaxClusterWorkers) {
    return InvalidArgument("a virtual cluster has 1 to " + std::to_string(kMaxClusterWorkers) +
                           " workers and at most as many servers, not " + std::to_string(cluster.workers) + " and " +
                           std::to_string(cluster.servers));
  }
  if (cluster.workers_per_host == 0) return InvalidArgument("a host of a virtual cluster has at least one worker");
  bool rates = IsRate(cluster.nic_bytes_per_s) &&
               (cluster.server_nic_bytes_per_s == 0 || IsRate(cluster.server_nic_bytes_per_s)) &&
               (cluster.inside_bytes_per_s == 0 || IsRate(cluster.inside_bytes_per_s));
  for (const double rate : cluster.other_nics_bytes_per_s) rates = rates && IsRate(rate);
  if (!rates) return InvalidArgument("a NIC of a virtual cluster needs a rate above 0");
  if (!IsTime(cluster.alpha_s) || !IsTime(cluster.inside_alpha_s)) {
    return InvalidArgument("a virtual cluster's alpha is a time, 0 or more");
  }
  if (!(std::isfinite(cluster.oversubscription) && cluster.oversubscription >= 1)) {
    return InvalidArgument("oversubscription is 1 (none) or more");
  }
  if (cluster.other_nics_bytes_per_s.size() > ClusterMap(cluster).worker_hosts()) {
    return InvalidArgument(std::to_string(cluster.other_nics_bytes_per_s.size()) + " hosts have a NIC of their own, but " +
                           std::to_string(cluster.workers) + " workers stand on " +
                           std::to_string(ClusterMap(cluster).worker_hosts()) + " hosts");
  }
  return Status::Ok();
}

ClusterMap::ClusterMap(const Cluster& cluster)
    : cluster_(cluster),
      worker_hosts_((cluster.workers - 1) / cluster.workers_per_host + 1),
      hosts_(worker_hosts_ + (cluster.servers_colocated ? 0 : cluster.servers)),
      leaves_(cluster.leaf_hosts == 0 ? 1 : (worker_hosts_ - 1) / cluster.leaf_hosts + 1) {
  if (!uplinks_matter()) return;
  uplinks_.assign(leaves_, 0);
  for (std::uint32_t host = 0; host < hosts_; ++host) uplinks_[LeafOf(host)] += Nic(host) / cluster_.oversubscription;
}

std::uint32_t ClusterMap::HostOf(std::uint32_t process) const {
  if (process < cluster_.workers) return process / cluster_.workers_per_host;
  const std::uint32_t server = process - cluster_.workers;
  return cluster_.servers_colocated ? Spread(server, cluster_.servers, worker_hosts_) : worker_hosts_ + server;
}

std::uint32_t ClusterMap::LeafOf(std::uint32_t host) const {
  if (leaves_ == 1) return 0;
  if (host < worker_hosts_) return host / cluster_.leaf_hosts;
  return Spread(host - worker_hosts_, cluster_.servers, leaves_);
}

std::uint32_t ClusterMap::WorkersOn(std::uint32_t host) const {
  const std::uint32_t before = host * cluster_.workers_per_host;
  return before + cluster_.workers_per_host <= cluster_.workers ? cluster_.workers_per_host : cluster_.workers - before;
}

ClusterPath ClusterMap::Path(std::uint32_t from, std::uint32_t to) const {
  ClusterPath path;
  if (from == to) return path;
  const auto add = [&path](LinkKind kind, std::uint32_t index) { path.links[path.count++] = {kind, index}; };
  const std::uint32_t from_host = HostOf(from), to_host = HostOf(to);
  if (from_host == to_host) {
    add(LinkKind::kInsideOut, from);
    add(LinkKind::kInsideIn, to);
    return path;
  }
  add(LinkKind::kNicOut, from_host);
  if (uplinks_matter() && LeafOf(from_host) != LeafOf(to_host)) {
    add(LinkKind::kLeafUp, LeafOf(from_host));
    add(LinkKind::kLeafDown, LeafOf(to_host));
  }
  add(LinkKind::kNicIn, to_host);
  return path;
}

double ClusterMap::BytesPerS(const ClusterLink& link) const {
  switch (link.kind) {
    case LinkKind::kInsideOut:
    case LinkKind::kInsideIn: return cluster_.inside_bytes_per_s;
    case LinkKind::kNicOut:
    case LinkKind::kNicIn: return Nic(link.index);
    case LinkKind::kLeafUp:
    case LinkKind::kLeafDown: return uplinks_[link.index];
  }
  return 0;
}

double ClusterMap::Nic(std::uint32_t host) const {
  if (host < cluster_.other_nics_bytes_per_s.size()) return cluster_.other_nics_bytes_per_s[host];
  if (host < worker_hosts_ || cluster_.server_nic_bytes_per_s == 0) return cluster_.nic_bytes_per_s;
  return cluster_.server_nic_bytes_per_s;
}

}  // namespace tally
