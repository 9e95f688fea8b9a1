#include "common/schedule/cost_model.h"

#include <algorithm>
#include <bit>

namespace tally {
namespace {

// Shares w per worker and v per server with n w + k v = 1, for which no NIC moves more than `bound` bytes in either
// direction (DESIGN §2): worker (1-w) up + (n-1) w down and (n-1) w up + (1-w) down, server n v up and n v down.
bool SharesExist(double bound, double n, double k, double up, double down) {
  double w_low = 0, w_high = 1 / n;
  const auto limit = [&](double at_zero, double slope) {  // at_zero + slope * w <= bound
    if (slope > 0) {
      w_high = std::min(w_high, (bound - at_zero) / slope);
    } else if (slope < 0) {
      w_low = std::max(w_low, (at_zero - bound) / -slope);
    } else if (at_zero > bound) {
      w_high = -1;
    }
  };
  limit(up, (n - 1) * down - up);
  limit(down, (n - 1) * up - down);
  return w_low <= w_high && n * w_high + k * bound / (n * std::max(up, down)) >= 1;
}

// Bytes of the busiest NIC under the best shares, by bisection.
double HybridBytes(double n, double k, double up, double down) {
  double low = 0, high = n * (up + down);
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (SharesExist(middle, n, k, up, down) ? high : low) = middle;
  }
  return high;
}

}  // namespace

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
  const double around = (n - 1) / n * (up + down);
  times.ring_s = around + 2 * (n - 1) * alpha;
  times.direct_s = around + 2 * alpha;
  const double rounds = std::bit_width(cluster.workers - 1);
  times.tree_s = up + down + 2 * std::max(rounds, 2 * rounds - 3) * alpha;
  times.halving_doubling_s = around + 2 * rounds * alpha;
  times.hybrid_s = HybridBytes(n, k, up, down) + 2 * alpha;
  return times;
}

}  // namespace tally
