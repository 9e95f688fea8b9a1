// Owner tables: greedy by share, and the schedules' round robin.
#include "common/schedule/ownership.h"

#include <limits>
#include <tuple>

#include "common/check.h"

namespace tally {
namespace {

// Servers by index, then positions.
bool TieBefore(const OwnerRef& a, const OwnerRef& b) {
  const auto key = [](const OwnerRef& o) { return std::tuple{o.role != Role::kServer, o.index}; };
  return key(a) < key(b);
}

}  // namespace

std::vector<std::uint16_t> AssignOwners(const Layout& layout, std::span<const Share> shares) {
  TALLY_CHECK(!shares.empty() && shares.size() <= std::numeric_limits<std::uint16_t>::max(), "1 to 65,535 owners");
  std::vector<double> assigned_bytes(shares.size(), 0);
  std::vector<std::uint16_t> owners;
  owners.reserve(layout.slabs.size());
  for (const Slab& slab : layout.slabs) {
    const double bytes = static_cast<double>(slab.elements * DTypeBytes(layout.tensors[slab.tensor].dtype));
    std::size_t best = 0;
    double best_load = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const double load = (assigned_bytes[i] + bytes) / shares[i].share;
      if (load < best_load || (!(best_load < load) && TieBefore(shares[i].owner, shares[best].owner))) {
        best = i;
        best_load = load;
      }
    }
    assigned_bytes[best] += bytes;
    owners.push_back(static_cast<std::uint16_t>(best));
  }
  return owners;
}

std::vector<std::uint16_t> AssignRoundRobin(const Layout& layout, std::uint32_t positions) {
  TALLY_CHECK(positions >= 1 && positions <= std::numeric_limits<std::uint16_t>::max(), "1 to 65,535 positions");
  std::vector<std::uint16_t> owners(layout.slabs.size());
  for (std::size_t u = 0; u < owners.size(); ++u) owners[u] = static_cast<std::uint16_t>(u % positions);
  return owners;
}

std::vector<Share> EqualShares(OwnerSet set, std::uint32_t servers, std::uint32_t workers) {
  std::vector<Share> shares;
  if (set != OwnerSet::kWorkers) {
    for (std::uint32_t i = 0; i < servers; ++i) shares.push_back({{Role::kServer, i}, 1});
  }
  if (set != OwnerSet::kServers) {
    for (std::uint32_t i = 0; i < workers; ++i) shares.push_back({{Role::kWorker, i}, 1});
  }
  return shares;
}

}  // namespace tally
