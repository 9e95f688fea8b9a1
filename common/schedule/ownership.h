// Who owns which slab. Only the coordinator computes it (DESIGN §2, Shares) and publishes the table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/control.h"
#include "common/schedule/layout.h"

namespace tally {

struct Share {
  OwnerRef owner;
  double share = 0;  // > 0, relative
};

// Gives u = 0, 1, … to the owner with the least (assigned bytes + bytes of u)/share; ties: servers by index, then
// positions. Result: per slab an index into `shares`. `shares` is at most 65,535 long and not empty.
std::vector<std::uint16_t> AssignOwners(const Layout& layout, std::span<const Share> shares);

// Schedules: owner of u is position u mod N.
std::vector<std::uint16_t> AssignRoundRobin(const Layout& layout, std::uint32_t positions);

// The equal shares that a mode stands for: ps = servers, direct = workers, hybrid = both.
enum class OwnerSet : std::uint8_t { kServers, kWorkers, kBoth };
std::vector<Share> EqualShares(OwnerSet set, std::uint32_t servers, std::uint32_t workers);

}  // namespace tally
