// Shares: how much of the bytes each owner gets so that all NICs finish together (DESIGN §2), for any rates of NICs and
// any members on one NIC. Pure. All times are of bytes alone: rounds and computation are the cost model's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/schedule/ownership.h"

namespace tally {

// Encoded size of one worker's whole gradient on its way to the owners, and of the sums on the way back.
struct ExchangeBytes {
  double up = 0, down = 0;
};

// NICs that are alike. With W workers of N on a NIC and owners there that have the share S together it sends
// W(1-S)up + (N-W)S down and receives W(1-S)down + (N-W)S up: what stays behind one NIC does not cross it.
struct NicKind {
  double bytes_per_s = 0;     // of each one, in each direction; > 0
  std::uint32_t workers = 0;  // on each one
  bool owns = false;          // an owner lives there
  std::uint64_t count = 1;
};

struct NicLoad {
  double sent_bytes = 0, received_bytes = 0;
  double seconds(double bytes_per_s) const;  // of the busier direction
};

// The shares of a NIC of each kind with which the busiest one is done first of all, found by bisection on its time.
// Requires a worker and an owner.
struct NicShares {
  std::vector<double> shares;  // per kind, of each of its NICs; with `count` they add up to 1
  double seconds = 0;
};
NicShares SolveNicShares(std::span<const NicKind> nics, const ExchangeBytes& bytes);

// Who lives on which NIC.
struct Placement {
  std::vector<double> nic_bytes_per_s;     // > 0
  std::vector<std::uint32_t> worker_nics;  // per position, at least one: an index into the above
  std::vector<std::uint32_t> server_nics;  // per server
};

// The shares of an exchange, the load of each NIC under them, and the time of the busiest.
struct ShareTable {
  std::vector<Share> shares;  // servers by index, then positions; without those that get nothing
  std::vector<NicLoad> loads;
  double seconds = 0;
  std::uint32_t busiest_nic = 0;
};
// Owners on one NIC get equal parts of its share. Requires that `set` is not empty.
ShareTable SolveShares(const Placement& placement, OwnerSet set, const ExchangeBytes& bytes);

// Sets the time and the NIC of the busiest one from the loads.
void FindBusiestNic(const Placement& placement, ShareTable* table);

// What crosses each NIC under shares, which are relative.
std::vector<NicLoad> LoadsOfShares(const Placement& placement, std::span<const Share> shares,
                                   const ExchangeBytes& bytes);

}  // namespace tally
