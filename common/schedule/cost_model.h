// Closed-form times of one aggregation (alpha-beta model). Sources: the bounds of DESIGN §2 and, for the ring,
// 2(N-1) alpha + 2(N-1)/N * M/B (Patarasuk & Yuan 2009). Seconds, bytes, bytes per second.
#pragma once

#include <cstdint>

namespace tally {

struct ClusterModel {
  double bytes_per_s = 0;   // per NIC and direction
  double alpha_s = 0;       // per message
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
};

struct ModelTimes {
  double ps_central_s = 0;    // one server: N*M/B
  double ps_sharded_s = 0;    // k servers on NICs of their own, push and reply overlapped: max(1, N/k)*M/B
  double ps_colocated_s = 0;  // servers on the workers' NICs
  double ring_s = 0;
  double direct_s = 0;
  double tree_s = 0;
  double hybrid_s = 0;        // 2n(n-1)M/((n^2+kn-2k)B)
};
// up_bytes, down_bytes: encoded size of one worker's whole gradient in each direction (equal for codec none).
ModelTimes PredictTimes(const ClusterModel& cluster, double up_bytes, double down_bytes);

}  // namespace tally
