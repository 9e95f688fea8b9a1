// Which positions a coordinator gives to members, and what hangs on them.
#include <gtest/gtest.h>

#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

class PositionsTest : public ::testing::Test, protected CoordinatorFixture {};

TEST_F(PositionsTest, PutNeighboursTogether) {
  const std::vector<std::pair<std::string, std::string>> places = {
      {"a", "s/l1"}, {"b", "s/l2"}, {"a", "s/l1"}, {"c", "s/l1"}, {"b", "s/l2"}};
  for (std::uint32_t r = 5; r-- > 0;) {  // in whatever order they come
    JoinMessage join = WorkerJoin(r, 5);
    join.node = places[r].first;
    join.switch_path = places[r].second;
    Say(100 + r, join);
  }
  const EpochMessage epoch = Only<EpochMessage>(100);
  ASSERT_EQ(epoch.members.size(), 5u);
  const std::uint32_t expected[] = {0, 3, 1, 2, 4};
  for (std::uint32_t r = 0; r < 5; ++r) {
    EXPECT_EQ(epoch.members[r].index, r) << "listed by rank";
    EXPECT_EQ(epoch.members[r].position, Position{expected[r]});
  }
}

// Slow between a and b, and between c and d.
class MeasuredPositionsTest : public ::testing::Test, protected CoordinatorFixture {
 protected:
  MeasuredPositionsTest()
      : CoordinatorFixture(nullptr, ParseBandwidthMatrix("a: 0 1 9 9\nb: 1 0 9 9\nc: 9 9 0 1\nd: 9 9 1 0\n").value()) {}

  std::vector<std::uint32_t> PositionsOf(const std::vector<std::string>& nodes) {
    const auto world = static_cast<std::uint32_t>(nodes.size());
    for (std::uint32_t r = 0; r < world; ++r) {
      JoinMessage join = WorkerJoin(r, world);
      join.node = nodes[r];
      Say(100 + r, join);
    }
    std::vector<std::uint32_t> positions;
    for (const Member& member : Only<EpochMessage>(100).members) positions.push_back(member.position.value);
    return positions;
  }
};

TEST_F(MeasuredPositionsTest, AvoidSlowEdges) {
  const std::vector<std::uint32_t> positions = PositionsOf({"a", "b", "c", "d"});
  EXPECT_EQ(positions[0], 0U);
  EXPECT_EQ(positions[1], 2U) << "not beside a";
}

TEST_F(MeasuredPositionsTest, AreThoseOfNodesWhereAHostWasNotMeasured) {
  EXPECT_EQ(PositionsOf({"a", "b", "c", "e", "a"}), (std::vector<std::uint32_t>{0, 2, 3, 4, 1}));
}

// Shares, too, are by position: rank 1, whose NIC is slow, is at the last one.
TEST_F(PositionsTest, SharesFollowTheNicOfWhoStandsThere) {
  const std::string text = JobText("ring", 0, "[compression]\ncodec = \"int8\"\n");
  for (std::uint32_t r = 0; r < 3; ++r) {
    JoinMessage join = WorkerJoin(r, 3, text);
    join.node = "n" + std::to_string(r);
    join.switch_path = r == 1 ? "s/l2" : "s/l1";
    join.nic = "eth0";
    join.nic_bytes_per_s = r == 1 ? 1e7 : 1e8;
    Say(100 + r, join);
  }
  EXPECT_EQ(Only<EpochMessage>(100).members[1].position, Position(2));
  const LayoutMessage layout = DeclareAll(3, 65536 * 60);
  std::vector<std::size_t> slabs(3);
  for (const std::uint16_t owner : layout.owners) ++slabs[layout.owner_list[owner].index];
  EXPECT_LT(slabs[2] * 3, slabs[0]);
  EXPECT_LT(slabs[2] * 3, slabs[1]);
}

std::vector<std::string> FirstThree(const std::vector<std::string>& all) { return {all.begin(), all.begin() + 3}; }

// The largest job there is: its epoch is one control message, of members with names of 15 characters. Where all addresses
// of all members are too many, the first of each is published.
TEST_F(PositionsTest, OfTheLargestJobFitInOneMessage) {
  constexpr std::uint32_t kWorkers = 4096;
  const auto join = [](std::uint32_t r, std::uint32_t world, std::size_t host_bytes) {
    JoinMessage message = WorkerJoin(r, world);
    message.host = std::string(host_bytes, 'h');
    message.node = "0123456789abcdef";
    message.switch_path = std::string(100, 's');
    message.endpoints = {"tcp://100.100.100.100:65535", "shm://tally-0123456789abcdef", "arena://tally-0123456789abcdef"};
    for (int i = 1; i < 8; ++i) {
      message.endpoints.push_back("tcp://[fd00:1111:2222:3333:4444:5555:6666:" + std::to_string(i) + "]:65535");
    }
    return message;
  };
  for (std::uint32_t r = 0; r < kWorkers; ++r) Say(10000 + r, join(r, kWorkers, 15));
  for (const std::uint32_t r : {0U, kWorkers - 1}) {
    const EpochMessage epoch = Only<EpochMessage>(10000 + r);
    ASSERT_EQ(epoch.members.size(), kWorkers) << Only<FailureMessage>(10000 + r).text;
    EXPECT_EQ(epoch.members[r].endpoints, FirstThree(join(r, kWorkers, 15).endpoints));
    EXPECT_TRUE(DecodeControl(EncodeControl(epoch)).ok());
  }
  CoordinatorFixture few;
  few.Say(1, join(0, 1, 15));
  EXPECT_EQ(few.Only<EpochMessage>(1).members.at(0).endpoints, join(0, 1, 15).endpoints);
  // Names that are too long in all are told to everybody, instead of a message that nobody takes.
  CoordinatorFixture other;
  for (std::uint32_t r = 0; r < kWorkers; ++r) other.Say(10000 + r, join(r, kWorkers, 128));
  for (const std::uint32_t r : {0U, kWorkers - 1}) {
    EXPECT_EQ(other.All<EpochMessage>(10000 + r).size(), 0U);
    const std::string text = other.Only<FailureMessage>(10000 + r).text;
    EXPECT_NE(text.find("4096 members"), std::string::npos) << text;
    EXPECT_NE(text.find("network.interfaces"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(kMaxControlBytes)), std::string::npos) << text;
  }
  EXPECT_EQ(other.coordinator.phase(), Coordinator::Phase::kFailed);
}

}  // namespace
}  // namespace tally
