// Placements that tests of shares and plans begin with.
#pragma once

#include <cstdint>

#include "common/schedule/shares.h"

namespace tally::test {

// n workers and k servers, each on a NIC of its own.
inline Placement Separate(std::uint32_t n, std::uint32_t k, double bytes_per_s) {
  Placement placement;
  placement.nic_bytes_per_s.assign(n + k, bytes_per_s);
  for (std::uint32_t i = 0; i < n; ++i) placement.worker_nics.push_back(i);
  for (std::uint32_t i = 0; i < k; ++i) placement.server_nics.push_back(n + i);
  return placement;
}

}  // namespace tally::test
