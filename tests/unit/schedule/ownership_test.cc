// Owner tables: balance, ties, shares that differ.
#include "common/schedule/ownership.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace tally {
namespace {

Layout MakeTestLayout(std::vector<std::uint64_t> sizes, std::uint32_t workers) {
  std::vector<TensorSpec> tensors;
  for (const std::uint64_t n : sizes) tensors.push_back({"t" + std::to_string(tensors.size()), ElementCount{n}, {}});
  return MakeLayout(tensors, BucketsByCap(tensors, 1u << 20), workers).value();
}

std::vector<double> Loads(const Layout& layout, const std::vector<std::uint16_t>& owners, std::size_t count) {
  std::vector<double> loads(count);
  for (std::size_t u = 0; u < owners.size(); ++u) loads[owners[u]] += layout.slabs[u].elements;
  return loads;
}

TEST(Ownership, GivesEqualSlabsInTurnServersFirst) {
  const Layout layout = MakeTestLayout({65536 * 5}, 1);
  // Listed workers first on purpose: ties go to servers whatever the place in the list.
  const std::vector<Share> shares = {{{Role::kWorker, 0}, 1}, {{Role::kWorker, 1}, 1}, {{Role::kServer, 1}, 1},
                                     {{Role::kServer, 0}, 1}};
  EXPECT_EQ(AssignOwners(layout, shares), (std::vector<std::uint16_t>{3, 2, 0, 1, 3}));
}

TEST(Ownership, BalancesWithinOneSlab) {
  const Layout layout = MakeTestLayout({1, 100000, 5, 4096, 70001, 999999, 0, 12345, 6}, 3);
  for (const std::uint32_t servers : {1u, 2u, 3u, 4u, 7u}) {
    const std::vector<Share> shares = EqualShares(OwnerSet::kServers, servers, 3);
    ASSERT_EQ(shares.size(), servers);
    const std::vector<double> loads = Loads(layout, AssignOwners(layout, shares), servers);
    const auto [low, high] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*high - *low, 65536) << servers;
  }
}

TEST(Ownership, FollowsShares) {
  const Layout layout = MakeTestLayout({65536 * 100}, 1);
  const std::vector<Share> shares = {{{Role::kServer, 0}, 3}, {{Role::kWorker, 0}, 1}};
  const std::vector<double> loads = Loads(layout, AssignOwners(layout, shares), 2);
  EXPECT_EQ(loads[0], 75 * 65536);
  EXPECT_EQ(loads[1], 25 * 65536);
}

TEST(Ownership, SetsOfOwners) {
  EXPECT_EQ(EqualShares(OwnerSet::kWorkers, 2, 3).size(), 3u);
  const std::vector<Share> both = EqualShares(OwnerSet::kBoth, 2, 3);
  ASSERT_EQ(both.size(), 5u);
  EXPECT_EQ(both[0].owner, (OwnerRef{Role::kServer, 0}));
  EXPECT_EQ(both[4].owner, (OwnerRef{Role::kWorker, 2}));
}

TEST(Ownership, RoundRobinIsSlabModuloPositions) {
  const Layout layout = MakeTestLayout({65536 * 7}, 1);
  EXPECT_EQ(AssignRoundRobin(layout, 3), (std::vector<std::uint16_t>{0, 1, 2, 0, 1, 2, 0}));
}

}  // namespace
}  // namespace tally
