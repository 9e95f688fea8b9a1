// Who measures connections between hosts, what follows from the figures, and how a coordinator settles the number.
#include "server/core/measurements.h"

#include <gtest/gtest.h>

#include <array>

#include "common/transport/connection_probe.h"
#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

using ::std::chrono::milliseconds;
using ::std::chrono::seconds;

Member MemberAt(Role role, std::uint32_t index, std::uint32_t position, const std::string& node, const std::string& host) {
  Member member;
  member.role = role;
  member.index = index;
  member.position = Position(position);
  member.node = node;
  member.endpoints = {"tcp://" + host + ":4711"};
  return member;
}

// Ranks 0 to 4 at positions 0, 2, 1, 3, 4 on nodes a, b, a, b, c; servers on d and a.
std::vector<Member> Members() {
  return {MemberAt(Role::kWorker, 0, 0, "a", "10.0.0.1"), MemberAt(Role::kWorker, 1, 2, "b", "10.0.0.2"),
          MemberAt(Role::kWorker, 2, 1, "a", "10.0.0.1"), MemberAt(Role::kWorker, 3, 3, "b", "10.0.0.2"),
          MemberAt(Role::kWorker, 4, 4, "c", "10.0.0.3"), MemberAt(Role::kServer, 0, 0, "d", "10.0.0.4"),
          MemberAt(Role::kServer, 1, 0, "a", "10.0.0.1")};
}

Config Job(Mode mode) {
  Config job;
  job.job.workers = 5;
  job.aggregation.mode = mode;
  job.servers.addresses = {"tcp://10.0.0.4:7070", "tcp://10.0.0.1:7070"};
  job.servers.transport = "tcp";
  return job;
}

TEST(Measurements, OnePerHostAndDirection) {
  const std::vector<Measurement> ring = {{Rank(0), {Role::kWorker, 2}},
                                         {Rank(1), {Role::kWorker, 4}},
                                         {Rank(4), {Role::kWorker, 0}}};
  EXPECT_EQ(Measurements(Members(), Job(Mode::kRing)), ring);
  // Rank 0 to server 0 on d, rank 1 to server 1 on a; nobody is left for rank 4.
  const std::vector<Measurement> ps = {{Rank(0), {Role::kServer, 0}}, {Rank(1), {Role::kServer, 1}}};
  EXPECT_EQ(Measurements(Members(), Job(Mode::kPs)), ps);
}

TEST(Measurements, OnlyWhereTheNumberIsOpen) {
  Config job = Job(Mode::kRing);
  job.link.connections = 1;
  EXPECT_TRUE(Measurements(Members(), job).empty()) << "configured";
  job = Job(Mode::kRing);
  job.link.transport = "zmq";
  EXPECT_TRUE(Measurements(Members(), job).empty());
  job = Job(Mode::kPs);
  job.servers.transport = "zmq";
  EXPECT_TRUE(Measurements(Members(), job).empty());

  std::vector<Member> members = Members();
  for (Member& m : members) m.endpoints = {"tcp://127.0.0.1:1", "shm://x", "nonsense"};
  EXPECT_TRUE(Measurements(members, Job(Mode::kRing)).empty()) << "loopback limits no flow";
  members = Members();
  for (Member& m : members) m.node = "a";
  EXPECT_TRUE(Measurements(members, Job(Mode::kRing)).empty()) << "one node";
}

TEST(Measurements, AnswersAreWeighed) {
  EXPECT_EQ(AgreedConnections({}), 1u);
  EXPECT_EQ(AgreedConnections({1, 4, 1}), 1u) << "one that is wrong does not decide";
  EXPECT_EQ(AgreedConnections({4, 1, 4}), 4u);
  EXPECT_EQ(AgreedConnections({2, 4}), 4u);

  const auto choose = [](std::initializer_list<double> one, std::initializer_list<double> two,
                         std::initializer_list<double> four) {
    std::array<RateRange, 5> rates;
    for (const double rate : one) rates[1].Add(rate);
    for (const double rate : two) rates[2].Add(rate);
    for (const double rate : four) rates[4].Add(rate);
    return WorthwhileConnections(rates);
  };
  EXPECT_EQ(choose({100, 98}, {103, 99}, {104, 104}), 1u);
  EXPECT_EQ(choose({30, 29}, {60, 58}, {119, 110}), 4u);
  EXPECT_EQ(choose({50, 49}, {99, 98}, {100, 101}), 2u);
  EXPECT_EQ(choose({50, 20}, {51, 22}, {100, 101}), 4u) << "two may share what limits a flow";
  EXPECT_EQ(choose({20, 100}, {90, 95}, {99, 98}), 1u) << "a pause in one round";
  EXPECT_EQ(choose({20, 21}, {19, 95}, {20, 99}), 1u) << "a busy machine";
  EXPECT_EQ(choose({20}, {50}, {99}), 1u) << "one round each proves nothing";
  EXPECT_EQ(choose({}, {}, {}), 1u);
}

// Rank 1's NIC is slow, which all see who measure towards it or from it; the others differ by no more than they vary.
TEST(Measurements, ANicIsAsFastAsTheFastestConnectionAtIt) {
  const Positions positions = Positions::Make(Members()).value();
  const std::vector<Measurement> ring = Measurements(Members(), Job(Mode::kRing));
  const auto rates = NicRatesOf(ring, positions, {{0, {3e7, 1}}, {1, {2.9e7, 1}}, {4, {1e8, 1}}});
  const std::map<OwnerRef, double> expected = {
      {{Role::kWorker, 0}, 1e8}, {{Role::kWorker, 1}, 3e7}, {{Role::kWorker, 4}, 1e8}};
  EXPECT_EQ(rates, expected) << "by rank";
  const auto alike = NicRatesOf(ring, positions, {{0, {9e7, 1}}, {1, {8.1e7, 1}}, {4, {1e8, 1}}});
  for (const auto& [end, rate] : alike) EXPECT_EQ(rate, 1e8) << end.index;
  EXPECT_TRUE(NicRatesOf(ring, positions, {{0, {0, 1}}}).empty()) << "nothing was found";
}

// Rank 0 with server 0, rank 1 with server 1: which end of the slow pair limits it, nobody knows.
TEST(Measurements, OfOnePairNeitherEndIsCalledSlow) {
  const Positions positions = Positions::Make(Members()).value();
  const std::vector<Measurement> ps = Measurements(Members(), Job(Mode::kPs));
  const std::map<OwnerRef, double> expected = {{{Role::kWorker, 0}, 1e8}, {{Role::kServer, 0}, 1e8}};
  EXPECT_EQ(NicRatesOf(ps, positions, {{0, {1e8, 1}}, {1, {3e7, 1}}}), expected);
  // It is known where the other end was faster elsewhere: rank 1 measures alone, rank 4 towards rank 0.
  const std::vector<Measurement> chain = {{Rank(1), {Role::kWorker, 4}}, {Rank(4), {Role::kWorker, 0}}};
  const auto rates = NicRatesOf(chain, positions, {{1, {3e7, 1}}, {4, {1e8, 1}}});
  EXPECT_EQ(rates.at({Role::kWorker, 1}), 3e7);
  EXPECT_EQ(rates.at({Role::kWorker, 4}), 1e8);
}

class LinksTest : public ::testing::Test, protected CoordinatorFixture {
 protected:
  // Two hosts with a rank each.
  void Start(const std::string& text) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      JoinMessage join = WorkerJoin(r, 2, text);
      join.node = "n" + std::to_string(r);
      join.endpoints = {"tcp://10.0.0.1:" + std::to_string(r + 1)};
      Say(100 + r, join);
    }
    ASSERT_EQ(All<EpochMessage>(100).size(), 1u);
  }
};

TEST_F(LinksTest, AreSettledOnceAllHaveMeasured) {
  Start(JobText("ring", 0));
  Say(100, MeasuredMessage{1e8, 4});
  EXPECT_TRUE(All<LinksMessage>(100).empty());
  Say(100, MeasuredMessage{1e8, 1});  // once only
  EXPECT_TRUE(All<LinksMessage>(100).empty());
  Say(101, MeasuredMessage{0, 1});  // could not
  EXPECT_EQ(Only<LinksMessage>(100), LinksMessage{4});
  EXPECT_EQ(Only<LinksMessage>(101), LinksMessage{4});
  Say(101, MeasuredMessage{1e8, 2});
  Pass(seconds(5), {100, 101});
  EXPECT_EQ(All<LinksMessage>(100).size(), 1u);
  EXPECT_TRUE(All<RefusedMessage>(101).empty());
}

// Of 180 slabs: how many each rank owns. Rank 1's NIC is measured slow.
class MeasuredNicsTest : public ::testing::Test, protected CoordinatorFixture {
 protected:
  void Join(double said_by_rank_0, const std::string& text = JobText("ring", 0, "[compression]\ncodec = \"int8\"\n")) {
    for (std::uint32_t r = 0; r < 3; ++r) {
      JoinMessage join = WorkerJoin(r, 3, text);
      join.node = "n" + std::to_string(r);
      join.nic = "eth0";
      join.nic_bytes_per_s = r == 0 ? said_by_rank_0 : 0;
      join.endpoints = {"tcp://10.0.0." + std::to_string(r + 1) + ":1"};
      Say(100 + r, join);
    }
  }
  void MeasureRank1Slow() {
    Say(100, MeasuredMessage{1e7, 1});
    Say(101, MeasuredMessage{1e7, 1});
    Say(102, MeasuredMessage{1e8, 1});
  }
  static std::vector<std::size_t> Owned(const LayoutMessage& layout) {
    std::vector<std::size_t> slabs(3);
    for (const std::uint16_t owner : layout.owners) ++slabs[layout.owner_list[owner].index];
    return slabs;
  }
};

TEST_F(MeasuredNicsTest, GetTheirShareWhereNobodySaysARate) {
  Join(0);
  MeasureRank1Slow();
  const std::vector<std::size_t> slabs = Owned(DeclareAll(3, 65536 * 60));
  EXPECT_LT(slabs[1] * 3, slabs[0]);
  EXPECT_LT(slabs[1] * 3, slabs[2]);
}

TEST_F(MeasuredNicsTest, AreWhatIsSaidWhereSomebodyDoes) {
  Join(1e9);
  MeasureRank1Slow();
  const std::vector<std::size_t> slabs = Owned(DeclareAll(3, 65536 * 60));
  EXPECT_EQ(slabs[0], slabs[1]);
  EXPECT_EQ(slabs[1], slabs[2]);
}

// A server outlasts the job, what was measured of its NIC does not.
TEST_F(LinksTest, ARateEndsWithTheJobThatMeasuredIt) {
  for (std::uint32_t s = 0; s < 2; ++s) {
    JoinMessage join = ServerJoin(s);
    join.node = "s" + std::to_string(s);
    join.nic = "eth0";
    join.endpoints = {"tcp://10.0.1." + std::to_string(s + 1) + ":1"};
    Say(200 + s, join);
  }
  const auto start = [&](ConnectionId first, double rate, const std::string& more) {
    for (std::uint32_t r = 0; r < 2; ++r) {
      JoinMessage join = WorkerJoin(r, 2, JobText("ps", 2, more));
      join.node = "w" + std::to_string(r);
      join.nic = "eth0";
      join.nic_bytes_per_s = rate;
      join.endpoints = {"tcp://10.0.0." + std::to_string(r + 1) + ":1"};
      Say(first + r, join);
    }
  };
  start(100, 0, "transport = \"tcp\"\n");
  Say(100, MeasuredMessage{1e8, 1});
  Say(101, MeasuredMessage{1e7, 1});
  ASSERT_EQ(All<LinksMessage>(100).size(), 1u);
  for (const ConnectionId worker : {100UL, 101UL}) Say(worker, LeaveMessage{"done"});
  start(300, 1e9, "transport = \"tcp\"\n[link]\nconnections = 1\n");
  for (const ConnectionId worker : {300UL, 301UL}) Say(worker, Declare({Tensor("w", 65536 * 60)}));
  const LayoutMessage layout = Only<LayoutMessage>(300);
  ASSERT_EQ(layout.owner_list.size(), 2u);
  std::vector<std::size_t> slabs(2);
  for (const std::uint16_t owner : layout.owners) ++slabs[owner];
  EXPECT_EQ(slabs[0], slabs[1]);
}

TEST_F(LinksTest, AreSettledWithoutWhoeverDoesNotAnswer) {
  Start(JobText("ring", 0));
  Say(101, MeasuredMessage{1e8, 2});
  Pass(seconds(3), {100, 101});
  EXPECT_TRUE(All<LinksMessage>(100).empty());
  Pass(seconds(1), {100, 101});
  EXPECT_EQ(Only<LinksMessage>(100), LinksMessage{2});
}

TEST_F(LinksTest, AreNotAskedForWhereTheConfigurationSays) {
  Start(JobText("ring", 0, "[link]\nconnections = 3\n"));
  Pass(seconds(5), {100, 101});
  EXPECT_TRUE(All<LinksMessage>(100).empty());
}

}  // namespace
}  // namespace tally
