#include "common/schedule/cost_model.h"

#include <algorithm>
#include <vector>

#include "common/schedule/shares.h"

namespace tally {

ModelTimes PredictTimes(const ClusterModel& cluster, double up_bytes, double down_bytes) {
  const double n = cluster.workers, k = cluster.servers;
  const double up = up_bytes / cluster.bytes_per_s, down = down_bytes / cluster.bytes_per_s;
  const double busier = std::max(up, down);
  const double alpha = cluster.alpha_s;

  ModelTimes times;
  if (cluster.servers > 0) {
    times.ps_central_s = n * busier + 2 * alpha;
    times.ps_sharded_s = std::max(1.0, n / k) * busier + 2 * alpha;
    // A host of a server keeps the 1/hosts that it sends to itself; the others' all arrives.
    const double hosts = std::min(n, k);
    const double own = 1 - 1 / hosts, others = (n - 1) / hosts;
    const double host = std::max(own * up + others * down, others * up + own * down);
    times.ps_colocated_s = std::max(host, hosts < n ? busier : 0) + 2 * alpha;
  }
  if (cluster.workers == 1) return times;
  times.direct_s = (n - 1) / n * (up + down) + 2 * alpha;
  std::vector<NicKind> nics = {{.bytes_per_s = cluster.bytes_per_s, .workers = 1, .owns = true, .count = cluster.workers}};
  if (cluster.servers > 0) nics.push_back({.bytes_per_s = cluster.bytes_per_s, .owns = true, .count = cluster.servers});
  times.hybrid_s = SolveNicShares(nics, {up_bytes, down_bytes}).seconds + 2 * alpha;
  return times;
}

}  // namespace tally
