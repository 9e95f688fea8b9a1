// The order of positions, its slow edges, and tours by bandwidth against every permutation.
#include "common/schedule/topology.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace tally {
namespace {

using Order = std::vector<std::uint32_t>;

Order Ranks(std::uint32_t n) {
  Order order(n);
  std::iota(order.begin(), order.end(), 0u);
  return order;
}

TEST(Topology, OneNodeOrEachItsOwnKeepsTheOrderOfRanks) {
  for (const std::uint32_t n : {0u, 1u, 2u, 3u, 4u, 7u, 64u}) {
    std::vector<Placed> one(n, {"a", ""}), own;
    for (std::uint32_t r = 0; r < n; ++r) own.push_back({"n" + std::to_string(r), ""});
    EXPECT_EQ(OrderPositions(one), Ranks(n));
    EXPECT_EQ(OrderPositions(own), Ranks(n));
    EXPECT_EQ(OrderPositions(std::vector<Placed>(n)), Ranks(n)) << "nobody knows where it is";
    EXPECT_EQ(CountEdges(one, Ranks(n)).leave_node, 0u);
    EXPECT_EQ(CountEdges(own, Ranks(n)).leave_node, n > 1 ? n : 0);
    EXPECT_EQ(CountEdges(own, Ranks(n)).leave_switch, 0u);
  }
}

TEST(Topology, NeighboursShareANodeThenASwitchOfAnyDepth) {
  // Ranks dealt round robin over four nodes below two leaves of one spine, and one node below another spine.
  std::vector<Placed> members;
  const std::vector<Placed> nodes = {
      {"a", "s1/l1"}, {"b", "s1/l2"}, {"c", "s1/l1"}, {"d", "s2/x/l9"}, {"e", "s1/l2"}};
  for (std::uint32_t r = 0; r < 10; ++r) members.push_back(nodes[r % 5]);
  const Order order = OrderPositions(members);
  EXPECT_EQ(order, (Order{0, 5, 2, 7, 1, 6, 4, 9, 3, 8}));
  const RingEdges before = CountEdges(members, Ranks(10)), after = CountEdges(members, order);
  EXPECT_EQ(before.leave_node, 10u);
  EXPECT_EQ(before.leave_switch, 10u);
  EXPECT_EQ(after.leave_node, 5u) << "one for each node";
  EXPECT_EQ(after.leave_switch, 3u) << "one for each leaf";
}

TEST(Topology, ANodeIsWhereItsLeastRankSaysAndSomeKnowNoSwitch) {
  const std::vector<Placed> members = {{"a", "l1"}, {"b", ""}, {"a", "l2"}, {"c", "l1"}, {"b", "l1"}, {"", "l1"}};
  EXPECT_EQ(OrderPositions(members), (Order{0, 2, 3, 5, 1, 4}));
}

TEST(Topology, SwitchPathsAreChecked) {
  EXPECT_TRUE(CheckSwitchPath("").ok());
  EXPECT_TRUE(CheckSwitchPath("spine1/leaf3").ok());
  for (const std::string& bad : {std::string("/a"), std::string("a/"), std::string("a//b"), std::string("a b"),
                                 std::string("a\n"), std::string(129, 'a'), std::string("\xC3\xA4")}) {
    EXPECT_FALSE(CheckSwitchPath(bad).ok()) << bad;
  }
}

// Every order of every random launcher has as few slow edges as there are nodes and leaves.
TEST(Topology, RandomOrdersOfALauncherEndTheSame) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Placed> members;
    const std::uint32_t leaves = 1 + static_cast<std::uint32_t>(random() % 4);
    std::set<std::string> nodes, used;
    for (std::uint32_t r = 0; r < 24; ++r) {
      const auto node = static_cast<std::uint32_t>(random() % 9);
      members.push_back({"n" + std::to_string(node), "l" + std::to_string(node % leaves)});
      nodes.insert(members.back().node);
      used.insert(members.back().switch_path);
    }
    const Order order = OrderPositions(members);
    Order sorted = order;
    std::ranges::sort(sorted);
    EXPECT_EQ(sorted, Ranks(24));
    const RingEdges edges = CountEdges(members, order);
    EXPECT_EQ(edges.leave_node, nodes.size() > 1 ? nodes.size() : 0);
    EXPECT_EQ(edges.leave_switch, used.size() > 1 ? used.size() : 0);
  }
}

double Best(const std::vector<double>& bandwidth, std::uint32_t n) {
  Order order = Ranks(n);
  double best = 0;
  do {
    best = std::max(best, LeastBandwidth(bandwidth, order));
  } while (std::next_permutation(order.begin() + 1, order.end()));
  return best;
}

std::vector<double> RandomMatrix(std::uint32_t n, std::uint32_t values, std::mt19937& random) {
  std::vector<double> bandwidth(std::size_t{n} * n);
  for (double& b : bandwidth) b = static_cast<double>(random() % values);
  return bandwidth;
}

TEST(BottleneckTour, IsExactForSmallNumbers) {
  std::mt19937 random(11);
  for (std::uint32_t n = 1; n <= 8; ++n) {
    for (int round = 0; round < (n < 8 ? 20 : 5); ++round) {
      const std::vector<double> bandwidth = RandomMatrix(n, round % 2 == 0 ? 4 : 1000, random);
      const Result<Tour> tour = BottleneckTour(bandwidth, n);
      ASSERT_TRUE(tour.ok());
      EXPECT_EQ(tour->least, Best(bandwidth, n)) << n;
      EXPECT_EQ(tour->least, LeastBandwidth(bandwidth, tour->order));
      EXPECT_TRUE(tour->optimal());
      Order sorted = tour->order;
      std::ranges::sort(sorted);
      EXPECT_EQ(sorted, Ranks(n));
    }
  }
}

// A fast ring in a random order among slow edges, and dense random graphs: found, or the bound says what may be missed.
TEST(BottleneckTour, FindsAPlantedRingAmongMany) {
  std::mt19937 random(5);
  for (const std::uint32_t n : {17u, 40u, 128u}) {
    std::vector<double> bandwidth = RandomMatrix(n, 50, random);
    Order planted = Ranks(n);
    std::shuffle(planted.begin() + 1, planted.end(), random);
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::uint32_t a = planted[i], b = planted[(i + 1) % n];
      bandwidth[a * n + b] = bandwidth[b * n + a] = 100;
    }
    const Result<Tour> tour = BottleneckTour(bandwidth, n);
    ASSERT_TRUE(tour.ok());
    EXPECT_EQ(tour->bound, 100);
    EXPECT_GE(tour->least, 100) << n << ": a ring and nothing else is that fast";
    EXPECT_EQ(tour->least, LeastBandwidth(bandwidth, tour->order));

    const std::vector<double> dense = RandomMatrix(n, 1000, random);
    const Result<Tour> free = BottleneckTour(dense, n);
    ASSERT_TRUE(free.ok());
    EXPECT_LE(free->least, free->bound);
    EXPECT_GT(free->least, LeastBandwidth(dense, Ranks(n)));
  }
}

TEST(BottleneckTour, RefusesWhatIsNoMatrix) {
  EXPECT_FALSE(BottleneckTour({}, 0).ok());
  EXPECT_FALSE(BottleneckTour(std::vector<double>(5), 2).ok());
  EXPECT_FALSE(BottleneckTour(std::vector<double>{0, -1, 1, 0}, 2).ok());
  EXPECT_FALSE(BottleneckTour(std::vector<double>{0, NAN, 1, 0}, 2).ok());
}

}  // namespace
}  // namespace tally
