// Closed-form times of one aggregation through owners (alpha-beta model), every NIC full duplex, no computation. Seconds,
// bytes, bytes per second. M = one worker's gradient, n workers, k servers, B = bytes per second of a NIC in each direction,
// alpha = time that a round of messages costs whatever its size. Schedules are priced in their table (schedule.h).
#pragma once

#include <cstdint>

namespace tally {

struct ClusterModel {
  double bytes_per_s = 0;   // B > 0
  double alpha_s = 0;
  std::uint32_t workers = 1;  // n >= 1
  std::uint32_t servers = 0;  // k; 0 = none: the ps times are then 0
};

struct ModelTimes {
  double ps_central_s = 0;    // one server: n M/B + 2 alpha (0 if k = 0)
  double ps_sharded_s = 0;    // k servers on NICs of their own, push and reply overlapped: max(1, n/k) M/B + 2 alpha
  double ps_colocated_s = 0;  // on the NICs of min(k, n) workers: (1 + (n-2)/k) M/B + 2 alpha
  double direct_s = 0;        // 2(n-1)/n M/B + 2 alpha
  double hybrid_s = 0;        // best shares (shares.h): max(1, 2n(n-1)/(n^2+kn-2k)) M/B + 2 alpha
};

// up_bytes, down_bytes: encoded size of one worker's whole gradient in each direction. The comments above are for both
// equal to M; otherwise the busier direction of the busiest NIC counts. One worker alone needs no peer: 0.
ModelTimes PredictTimes(const ClusterModel& cluster, double up_bytes, double down_bytes);

}  // namespace tally
