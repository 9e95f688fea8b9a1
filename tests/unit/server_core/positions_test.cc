#include "server/core/positions.h"

#include <gtest/gtest.h>

namespace tally {
namespace {

std::vector<Member> Workers(const std::vector<std::uint32_t>& position_of_rank) {
  std::vector<Member> members;
  for (std::uint32_t r = 0; r < position_of_rank.size(); ++r) {
    Member& member = members.emplace_back();
    member.index = r;
    member.position = Position(position_of_rank[r]);
  }
  Member& server = members.emplace_back();
  server.role = Role::kServer;
  server.index = 1;
  std::swap(members.front(), members.back());
  return members;
}

TEST(Positions, TellRanksBothWays) {
  const Result<Positions> positions = Positions::Make(Workers({0, 3, 1, 2, 4}));
  ASSERT_TRUE(positions.ok());
  ASSERT_EQ(positions->count(), 5u);
  const std::vector<Rank> expected = {Rank(0), Rank(2), Rank(3), Rank(1), Rank(4)};
  for (std::uint32_t p = 0; p < 5; ++p) {
    EXPECT_EQ(positions->ranks()[p], expected[p]);
    EXPECT_EQ(positions->rank(Position(p)), expected[p]);
    EXPECT_EQ(positions->position(expected[p]), Position(p));
  }
}

TEST(Positions, OfNothingAreRanks) {
  EXPECT_EQ(Positions().rank(Position(3)), Rank(3));
  EXPECT_EQ(Positions().position(Rank(2)), Position(2));
  EXPECT_EQ(Positions().count(), 0u);
}

TEST(Positions, EachOnce) {
  for (const std::vector<std::uint32_t>& wrong : {std::vector<std::uint32_t>{0, 2, 2}, {0, 1, 3}, {1}}) {
    const Status status = Positions::Make(Workers(wrong)).status();
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
    EXPECT_NE(status.text().find("rank " + std::to_string(wrong.size() - 1)), std::string::npos) << status.text();
  }
  std::vector<Member> twice = Workers({0, 1});
  twice.back().index = 1;  // it was rank 0
  EXPECT_FALSE(Positions::Make(twice).ok());
}

TEST(Positions, NamesAskWhoSpeaks) {
  EXPECT_EQ(NameOf({}, 7, Position(2)), "rank 2");
  const SpeakerOf speaker = [](std::uint32_t slab, Position p) { return Rank(10 * slab + p.value); };
  EXPECT_EQ(NameOf(speaker, 7, Position(2)), "rank 72");
}

// Two nodes of two; each rank speaks for every other stripe of its node's slabs.
TEST(Positions, ANodesFramesAreThoseOfTheCarrier) {
  std::vector<Member> members = Workers({0, 2, 1, 3});
  for (Member& member : members) member.node = member.position.value < 2 ? "a" : "b";
  const Positions positions = Positions::Make(members).value();
  const Nodes nodes(members);
  for (std::uint32_t u = 0; u < 8; ++u) {
    const Rank carrier = positions.rank(nodes.carrier(u, 0));  // rank 0 or 2
    const std::vector<std::uint32_t> slabs = {u};
    for (const Rank rank : {Rank(0), Rank(2)}) {
      const Status status = CheckCarries(nodes, positions, rank, slabs);
      EXPECT_EQ(status.ok(), rank == carrier) << u;
      if (status.ok()) continue;
      EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
      const std::string both = "from rank " + std::to_string(rank.value) + ", expected from rank " + std::to_string(carrier.value);
      EXPECT_NE(status.text().find(both), std::string::npos) << status.text();
    }
  }
  const std::vector<std::uint32_t> mixed = {0, 2};  // of both local ranks
  EXPECT_FALSE(CheckCarries(nodes, positions, Rank(0), mixed).ok());
  EXPECT_TRUE(CheckCarries(Nodes(), positions, Rank(3), mixed).ok()) << "without node stages";
}

}  // namespace
}  // namespace tally
