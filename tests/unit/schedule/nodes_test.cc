#include "common/schedule/nodes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tally {
namespace {

std::vector<Member> Workers(const std::vector<std::string>& node_of_position) {
  std::vector<Member> members;
  for (std::uint32_t p = 0; p < node_of_position.size(); ++p) {
    Member& member = members.emplace_back();
    member.index = static_cast<std::uint32_t>(node_of_position.size()) - 1 - p;  // ranks are not positions
    member.position = Position(p);
    member.node = node_of_position[p];
  }
  Member& server = members.emplace_back();
  server.role = Role::kServer;
  server.node = "a";
  std::swap(members.front(), members.back());
  return members;
}

TEST(Nodes, AreNumberedByTheirFirstPosition) {
  const Nodes nodes(Workers({"b", "a", "b", "c", "a", "b"}));
  ASSERT_EQ(nodes.count(), 3u);
  const std::vector<std::vector<std::uint32_t>> expected = {{0, 2, 5}, {1, 4}, {3}};
  for (std::uint32_t n = 0; n < 3; ++n) {
    ASSERT_EQ(nodes.positions(n).size(), expected[n].size());
    for (std::uint32_t l = 0; l < expected[n].size(); ++l) {
      const Position p = nodes.positions(n)[l];
      EXPECT_EQ(p.value, expected[n][l]);
      EXPECT_EQ(nodes.node_of(p), n);
      EXPECT_EQ(nodes.local_rank(p), l);
    }
  }
}

// What a rank keeps of its node's slabs hangs on which ranks are on which node, not on the list's order.
TEST(Nodes, TheDigestIsOfRanks) {
  std::vector<Member> members = Workers({"a", "a", "b", "c"});
  const std::uint32_t digest = Nodes(members).digest();
  EXPECT_NE(digest, 0u);
  std::vector<Member> listed = members;
  std::ranges::reverse(listed);
  EXPECT_EQ(Nodes(listed).digest(), digest);
  // Other switches put node "c" before "b": its rank moves up, and nobody else shares its node than before.
  std::vector<Member> moved = members;
  for (Member& member : moved) {
    if (member.role != Role::kWorker || member.position.value < 2) continue;
    member.position = Position(5 - member.position.value);
  }
  ASSERT_NE(Nodes(moved).positions(1)[0], Nodes(members).positions(2)[0]) << "another position, the same rank";
  EXPECT_EQ(Nodes(moved).digest(), digest);
  std::vector<Member> others = members;  // positions on nodes as before, two ranks the other way round
  for (Member& member : others) {
    if (member.role == Role::kWorker && member.position.value >= 1 && member.position.value <= 2) {
      member.index = static_cast<std::uint32_t>(others.size()) - 2 - (3 - member.position.value);
    }
  }
  EXPECT_NE(Nodes(others).digest(), digest);
}

TEST(Nodes, WhoSaysNoNodeIsAlone) {
  const Nodes nodes(Workers({"", "a", "", "a"}));
  EXPECT_EQ(nodes.count(), 3u);
  EXPECT_EQ(nodes.node_of(Position(1)), nodes.node_of(Position(3)));
  EXPECT_NE(nodes.node_of(Position(0)), nodes.node_of(Position(2)));
}

TEST(Nodes, EveryLocalRankCarriesSlabsOfEveryOwnerEquallyOften) {
  for (const auto& shape : {std::vector<std::uint32_t>{1}, {4}, {2, 2}, {3, 3, 3}, {1, 2, 3}, {4, 1}, {2, 4, 6, 1}}) {
    std::vector<std::string> names;
    std::uint32_t product = 1;
    for (std::uint32_t n = 0; n < shape.size(); ++n) {
      names.insert(names.end(), shape[n], "node" + std::to_string(n));
      product *= shape[n];
    }
    const Nodes nodes(Workers(names));
    const std::uint32_t slabs = nodes.count() * product;
    for (std::uint32_t n = 0; n < nodes.count(); ++n) {
      std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> load;  // by carrier and owner
      for (std::uint32_t u = 0; u < slabs; ++u) ++load[{nodes.carrier(u, n).value, u % nodes.count()}];
      EXPECT_EQ(load.size(), shape[n] * nodes.count());
      for (const auto& [who, count] : load) EXPECT_EQ(count, product / shape[n]);
    }
    // Same lane, same carriers.
    std::map<std::uint32_t, std::set<std::vector<std::uint32_t>>> carriers;
    for (std::uint32_t u = 0; u < 3 * slabs; ++u) {
      std::vector<std::uint32_t> all;
      for (std::uint32_t n = 0; n < nodes.count(); ++n) all.push_back(nodes.carrier(u, n).value);
      carriers[nodes.lane(u)].insert(all);
    }
    EXPECT_EQ(carriers.size(), nodes.lanes());
    for (const auto& [lane, sets] : carriers) EXPECT_EQ(sets.size(), 1u);
  }
}

TEST(Nodes, SlabsTravelSinglyWhereLanesAreTooMany) {
  std::vector<std::string> names;
  for (const std::uint32_t size : {101U, 103U, 107U, 109U}) names.insert(names.end(), size, "of " + std::to_string(size));
  const Nodes nodes(Workers(names));
  EXPECT_EQ(nodes.lanes(), 0u);
  EXPECT_NE(nodes.lane(5), nodes.lane(5 + 4 * 101));
}

}  // namespace
}  // namespace tally
