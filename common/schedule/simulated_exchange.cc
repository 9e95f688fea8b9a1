// What is asked of the simulation: is it sound, and which rotation of the positions leaves it as it is.
#include <cmath>
#include <numeric>

#include "common/schedule/simulate.h"

namespace tally {
namespace {

bool AllEqual(const std::vector<double>& values) {
  for (const double value : values) {
    if (value != values.front()) return false;
  }
  return true;
}

// Whether the programs of rotated owners and positions are the rotated programs: compared for every owner that the
// rotation reaches from 0, at positions spread over the circle, and whole for the first rotation.
bool RotationKeeps(ScheduleGenerator generate, std::uint32_t n, std::uint32_t period) {
  std::vector<ScheduleStep> steps, rotated;
  const auto same = [&](std::uint32_t owner, std::uint32_t self, std::uint32_t by) {
    generate(Position{owner}, Position{self}, n, &steps);
    generate(Position{(owner + by) % n}, Position{(self + by) % n}, n, &rotated);
    for (ScheduleStep& step : steps) {
      if (step.op != StepOp::kFinish) step.peer.value = (step.peer.value + by) % n;
    }
    return steps == rotated;
  };
  for (std::uint32_t self = 0; self < n; ++self) {
    if (!same(0, self, period) || !same(period - 1, self, period)) return false;
  }
  for (std::uint64_t by = period; by < n; by += period) {
    for (std::uint32_t self = 1; self < n; self *= 2) {
      if (!same(0, self, static_cast<std::uint32_t>(by))) return false;
    }
  }
  return true;
}

std::uint32_t Positions(const Cluster& cluster, const SimulatedExchange& exchange) {
  return exchange.node_stages ? ClusterMap(cluster).worker_hosts() : cluster.workers;
}

}  // namespace

Status CheckExchange(const Cluster& cluster, const SimulatedExchange& exchange) {
  const std::uint32_t positions = Positions(cluster, exchange);
  for (const double bytes : {exchange.bytes, exchange.up_bytes, exchange.down_bytes}) {
    if (!std::isfinite(bytes) || bytes < 0) return InvalidArgument("an exchange carries 0 bytes or more");
  }
  if (exchange.schedule != nullptr) {
    if (exchange.server_shares.empty() && exchange.position_shares.empty()) return Status::Ok();
    return InvalidArgument("a schedule has no shares");
  }
  const bool counts = (exchange.server_shares.empty() || exchange.server_shares.size() == cluster.servers) &&
                      (exchange.position_shares.empty() || exchange.position_shares.size() == positions);
  double sum = 0;
  bool positive = true;
  for (const auto* shares : {&exchange.server_shares, &exchange.position_shares}) {
    for (const double share : *shares) {
      positive = positive && share >= 0;
      sum += share;
    }
  }
  if (counts && positive && std::abs(sum - 1) < 1e-6) return Status::Ok();
  return InvalidArgument("shares are one for each server, or each position, or both, and add up to 1");
}

std::uint32_t SymmetryPeriod(const Cluster& cluster, const SimulatedExchange& exchange) {
  const ClusterMap map(cluster);
  const std::uint32_t n = Positions(cluster, exchange);
  const std::uint32_t per_host = exchange.node_stages ? 1 : cluster.workers_per_host;
  const bool regular = cluster.workers % cluster.workers_per_host == 0 && cluster.other_nics_bytes_per_s.empty() &&
                       AllEqual(exchange.server_shares) && AllEqual(exchange.position_shares);
  if (!regular) return n;
  std::uint32_t period = per_host;
  if (map.uplinks_matter()) {
    if (map.worker_hosts() % cluster.leaf_hosts != 0) return n;
    period = cluster.leaf_hosts * per_host;
  }
  // Servers' own hosts widen the uplinks of their leaves, asked or not.
  const bool servers_count =
      !exchange.server_shares.empty() || (map.uplinks_matter() && map.hosts() > map.worker_hosts());
  if (servers_count) period = std::lcm(period, n / std::gcd(n, cluster.servers));
  if (period < n && exchange.schedule != nullptr && !RotationKeeps(exchange.schedule->generate, n, period)) return n;
  return period;
}

}  // namespace tally
