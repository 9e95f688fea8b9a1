// What the coordinator makes of NICs: shares of owners, the way of mode auto, the schedule of schedule auto.
#include "server/core/group_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "common/schedule/layout.h"
#include "server/core/placement.h"
#include "tests/support/placement.h"
#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

using ::testing::HasSubstr;

constexpr double kGigabit = 125e6;

Config Job(Mode mode, std::size_t servers, const std::string& codec = "none") {
  Config config;
  config.aggregation.mode = mode;
  config.compression.codec = codec;
  for (std::size_t i = 0; i < servers; ++i) config.servers.addresses.push_back("tcp://h:" + std::to_string(7070 + i));
  return config;
}

Placement Separate(std::uint32_t n, std::uint32_t k) { return test::Separate(n, k, kGigabit); }

std::vector<DeclareMessage> Declared(std::uint32_t workers, std::vector<std::uint64_t> sizes,
                                     const std::string& group = "default") {
  DeclareMessage declared{group, {}, {}};
  for (const std::uint64_t n : sizes) {
    declared.tensors.push_back({"t" + std::to_string(declared.tensors.size()), ElementCount(n)});
  }
  return std::vector<DeclareMessage>(workers, declared);
}

// Parts of the elements by owner.
std::map<OwnerRef, double> Owned(const LayoutMessage& message, std::uint32_t workers) {
  const Layout layout = MakeLayout(message.tensors, message.buckets, workers).value();
  EXPECT_EQ(message.owners.size(), layout.slabs.size());
  std::map<OwnerRef, double> parts;
  for (std::size_t u = 0; u < layout.slabs.size(); ++u) {
    parts[message.owner_list.at(message.owners[u])] += static_cast<double>(layout.slabs[u].elements);
  }
  for (auto& [owner, part] : parts) part /= static_cast<double>(layout.elements());
  return parts;
}

double PartOf(const std::map<OwnerRef, double>& parts, Role role, std::uint32_t index) {
  const auto found = parts.find({role, index});
  return found == parts.end() ? 0 : found->second;
}

TEST(GroupPlan, WithoutNicsSharesAreEqual) {
  PlanNotes notes;
  const LayoutMessage layout =
      PlanGroup(Declared(4, {65536 * 120}), Job(Mode::kHybrid, 2), {}, &notes).value();
  for (const auto& [owner, part] : Owned(layout, 4)) EXPECT_NEAR(part, 1.0 / 6, 0.01) << owner.index;
  EXPECT_EQ(layout.owner_list.size(), 6U);
  EXPECT_EQ(notes.bytes_s, 0);
  EXPECT_THAT(notes.shares, HasSubstr("server 0 16.67 %, server 1 16.67 %, rank 0 16.67 %"));
  EXPECT_EQ(notes.exchange, "owners on servers and workers");
}

// T = 2n(n-1)M/((n^2+kn-2k)B) for n = 4, k = 2.
TEST(GroupPlan, HybridFollowsTheSolvedShares) {
  PlanNotes notes;
  const std::uint64_t elements = 65536 * 400;
  const LayoutMessage layout =
      PlanGroup(Declared(4, {elements}), Job(Mode::kHybrid, 2), {{}, Separate(4, 2)}, &notes).value();
  const double seconds = 24.0 / 20 * static_cast<double>(elements) * 4 / kGigabit;
  EXPECT_NEAR(notes.bytes_s, seconds, 1e-9);
  const auto parts = Owned(layout, 4);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_NEAR(PartOf(parts, Role::kServer, i), 0.3, 0.01);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_NEAR(PartOf(parts, Role::kWorker, i), 0.1, 0.01);
}

TEST(GroupPlan, ASlowNicOwnsLess) {
  Placement placement = Separate(4, 2);
  placement.nic_bytes_per_s[1] = 0.3 * kGigabit;  // of worker 1: it owns nothing
  placement.nic_bytes_per_s[5] = 0.5 * kGigabit;  // of server 1
  const auto hybrid = Owned(
      PlanGroup(Declared(4, {65536 * 400}), Job(Mode::kHybrid, 2), {{}, placement}).value(), 4);
  EXPECT_EQ(PartOf(hybrid, Role::kWorker, 1), 0);
  EXPECT_GT(PartOf(hybrid, Role::kServer, 0), PartOf(hybrid, Role::kServer, 1));
  const auto ps = Owned(PlanGroup(Declared(4, {65536 * 300}), Job(Mode::kPs, 2), {{}, placement}).value(), 4);
  EXPECT_NEAR(PartOf(ps, Role::kServer, 0), 2.0 / 3, 0.01);
  EXPECT_NEAR(PartOf(ps, Role::kServer, 1), 1.0 / 3, 0.01);
}

// Encoded sizes count: with int8 all is smaller, with a union of topk replies are larger than pushes.
TEST(GroupPlan, EncodedSizesCount) {
  const auto planned = [](const std::string& codec, const std::string& reply) {
    Config job = Job(Mode::kHybrid, 2, codec);
    job.compression.reply = reply;
    PlanNotes notes;
    EXPECT_TRUE(PlanGroup(Declared(4, {65536 * 400}), job, {{}, Separate(4, 2)}, &notes).ok());
    return notes;
  };
  const double plain = planned("none", "same").bytes_s;
  EXPECT_NEAR(planned("int8", "same").bytes_s, plain * 257 / 1024, plain * 1e-6);
  EXPECT_GT(planned("topk", "union").bytes_s, 1.5 * planned("topk", "same").bytes_s);
}

TEST(GroupPlan, SmallGroupsAndOddNumbersHaveAnOwnerForEverySlab) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 7U}) {
    for (const std::uint32_t servers : {1U, 2U, 9U}) {
      for (const std::uint64_t elements : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{65537}}) {
        for (const Mode mode : {Mode::kHybrid, Mode::kAuto, Mode::kPs}) {
          const auto layout = PlanGroup(Declared(workers, {elements, 3}), Job(mode, servers),
                                        {{}, Separate(workers, servers), workers});
          ASSERT_TRUE(layout.ok()) << layout.status().ToString();
          double sum = 0;
          for (const auto& [owner, part] : Owned(*layout, workers)) {
            EXPECT_LT(owner.index, owner.role == Role::kServer ? servers : workers);
            sum += part;
          }
          EXPECT_NEAR(sum, 1, 1e-12);
        }
      }
    }
  }
}

TEST(GroupPlan, AutoTakesTheCheapestWayAndSaysWhy) {
  const auto planned = [](const Config& job, const Placement& placement, std::uint64_t elements) {
    PlanNotes notes;
    const auto workers = static_cast<std::uint32_t>(placement.worker_nics.size());
    EXPECT_TRUE(PlanGroup(Declared(workers, {elements}), job, {{}, placement, workers}, &notes).ok());
    return notes;
  };
  const PlanNotes none = planned(Job(Mode::kAuto, 0), Separate(4, 0), 1 << 24);
  EXPECT_EQ(none.exchange, "owners on workers");
  EXPECT_THAT(none.reason, HasSubstr("direct "));
  EXPECT_THAT(none.reason, HasSubstr("ring "));
  EXPECT_EQ(planned(Job(Mode::kAuto, 2), Separate(4, 2), 1 << 24).exchange, "owners on servers and workers");
  EXPECT_EQ(planned(Job(Mode::kAuto, 4), Separate(4, 4), 1 << 24).exchange, "owners on servers");
  EXPECT_EQ(planned(Job(Mode::kAuto, 1), Separate(1, 1), 1 << 24).exchange, "owners on workers") << "nothing to send";
  const PlanNotes int8 = planned(Job(Mode::kAuto, 0, "int8"), Separate(4, 0), 1 << 24);
  EXPECT_EQ(int8.exchange, "owners on workers");
  EXPECT_THAT(int8.reason, Not(HasSubstr("ring"))) << "a ring cannot carry it";

  PlanNotes here;  // on one machine
  EXPECT_TRUE(PlanGroup(Declared(4, {1 << 20}), Job(Mode::kAuto, 2), {{}, std::nullopt, 4}, &here).ok());
  EXPECT_EQ(here.exchange, "owners on workers") << "fewer bytes in all";
}

// A job that is started again must choose the same; whose share is how large decides about no bit.
TEST(GroupPlan, WhatWasMeasuredMovesSharesButNoChoice) {
  const auto planned = [](const std::optional<Placement>& said, const std::optional<Placement>& measured) {
    PlanNotes notes;
    EXPECT_TRUE(PlanGroup(Declared(4, {1 << 24}), Job(Mode::kAuto, 4), {{}, said, 4, {}, measured}, &notes).ok());
    return notes;
  };
  Placement slow = Separate(4, 4);
  for (const std::uint32_t nic : slow.server_nics) slow.nic_bytes_per_s[nic] = 0.1 * kGigabit;
  slow.nic_bytes_per_s[slow.server_nics[0]] = 0.2 * kGigabit;
  const PlanNotes said = planned(Separate(4, 4), std::nullopt), measured = planned(Separate(4, 4), slow);
  EXPECT_NE(planned(slow, std::nullopt).exchange, said.exchange) << "said, it would";
  EXPECT_EQ(measured.exchange, said.exchange);
  EXPECT_EQ(measured.reason, said.reason);
  EXPECT_THAT(said.shares, HasSubstr("server 0 25 %"));
  EXPECT_THAT(measured.shares, HasSubstr("server 0 40 %"));
}

TEST(GroupPlan, AutoSumsInsideNodesFirstWhereWorkersShareThem) {
  const auto planned = [](const Config& job) {
    PlanNotes notes;
    // Of each node one worker is placed: what others hand it crosses no NIC.
    EXPECT_TRUE(PlanGroup(Declared(4, {1 << 24}), job, {{}, Separate(2, 0), 2}, &notes).ok());
    return notes;
  };
  const PlanNotes notes = planned(Job(Mode::kAuto, 0));
  EXPECT_EQ(notes.exchange, "node stages around owners on workers");
  EXPECT_THAT(notes.reason, HasSubstr("4 workers share 2 nodes"));
  EXPECT_THAT(notes.reason, HasSubstr("ring "));
  EXPECT_THAT(notes.shares, HasSubstr("node 1 50 %"));
}

TEST(GroupPlan, ScheduleAutoTakesFewRoundsForSmallGroups) {
  Config job = Job(Mode::kRing, 0);
  job.aggregation.schedule = "auto";
  const auto schedule = [&](std::uint64_t elements, std::optional<Placement> placement) {
    PlanNotes notes;
    const LayoutMessage layout = PlanGroup(Declared(16, {elements}), job, {{}, placement}, &notes).value();
    EXPECT_EQ(layout.exchange, ExchangeKind::kSchedule);
    EXPECT_THAT(notes.reason, HasSubstr("halving_doubling "));
    EXPECT_EQ(notes.exchange, "schedule " + layout.schedule);
    EXPECT_EQ(layout.owner_list.size(), 16U);
    return layout.schedule;
  };
  EXPECT_EQ(schedule(100, Separate(16, 0)), "halving_doubling");
  EXPECT_EQ(schedule(1 << 26, Separate(16, 0)), "ring");
  EXPECT_EQ(schedule(100, std::nullopt), "halving_doubling");
  EXPECT_EQ(schedule(1 << 26, std::nullopt), "ring");
}

JoinMessage Member(Role role, std::uint32_t index, const std::string& node, const std::string& nic, double rate) {
  JoinMessage join;
  join.role = role;
  join.index = index;
  join.node = node;
  join.nic = nic;
  join.nic_bytes_per_s = rate;
  return join;
}

TEST(Placement, MembersOfANodeShareItsNics) {
  const std::vector<JoinMessage> workers = {Member(Role::kWorker, 0, "a", "eth0", 2e9),
                                            Member(Role::kWorker, 1, "a", "eth0", 1e9),
                                            Member(Role::kWorker, 2, "b", "eth0", 0),
                                            Member(Role::kWorker, 3, "a", "eth1", 3e9)};
  const std::vector<JoinMessage> servers = {Member(Role::kServer, 0, "b", "eth0", 0), Member(Role::kServer, 1, "", "", 0),
                                            Member(Role::kServer, 2, "", "", 0)};
  const Placement placement = PlaceMembers(workers, servers).value();
  EXPECT_EQ(placement.worker_nics, (std::vector<std::uint32_t>{0, 0, 1, 2}));
  EXPECT_EQ(placement.server_nics, (std::vector<std::uint32_t>{1, 3, 4}));
  EXPECT_EQ(placement.nic_bytes_per_s, (std::vector<double>{1e9, 3e9, 3e9, 3e9, 3e9}));
}

TEST(Placement, OnOneMachineThereIsNone) {
  const std::vector<JoinMessage> workers(3, Member(Role::kWorker, 0, "a", "", 0));
  EXPECT_FALSE(PlaceMembers(workers, {}).has_value());
  const std::vector<JoinMessage> on_unknown_nics(3, Member(Role::kWorker, 0, "a", "eth0", 0));
  EXPECT_TRUE(PlaceMembers(on_unknown_nics, {}).has_value());
}

// From what members say at join to the published layout.
TEST(GroupPlan, TheCoordinatorTakesNicsFromJoins) {
  CoordinatorFixture f;
  const std::string text = JobText("ps", 2);
  for (std::uint32_t s = 0; s < 2; ++s) {
    JoinMessage join = CoordinatorFixture::ServerJoin(s);
    join.node = "server" + std::to_string(s);
    join.nic_bytes_per_s = s == 0 ? 3e9 : 1e9;
    f.Say(200 + s, join);
  }
  for (std::uint32_t r = 0; r < 2; ++r) f.Say(100 + r, CoordinatorFixture::WorkerJoin(r, 2, text));
  const auto parts = Owned(f.DeclareAll(2, 65536 * 100), 2);
  EXPECT_NEAR(PartOf(parts, Role::kServer, 0), 0.75, 0.01);
  EXPECT_NEAR(PartOf(parts, Role::kServer, 1), 0.25, 0.01);
}

}  // namespace
}  // namespace tally
