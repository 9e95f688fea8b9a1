// The coordinator's rules one by one: joining, layouts, verdicts, leaving, loss, silence, hostile order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Phase = Coordinator::Phase;

class CoordinatorTest : public ::testing::Test, protected CoordinatorFixture {};

// ---- joining

TEST_F(CoordinatorTest, CompleteWorldGetsOneEpoch) {
  StartJob(3, 2, "ps");
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_EQ(coordinator.job(), "resnet");
  const EpochMessage epoch = Only<EpochMessage>(100);
  EXPECT_EQ(epoch.epoch, EpochId{1});
  EXPECT_NE(epoch.job_hash, 0u);
  EXPECT_EQ(epoch.config_text, JobText("ps", 2));
  ASSERT_EQ(epoch.members.size(), 5u);
  for (std::uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(epoch.members[r].role, Role::kWorker);
    EXPECT_EQ(epoch.members[r].index, r);
    EXPECT_EQ(epoch.members[r].position, Position{r});
    EXPECT_EQ(epoch.members[r].incarnation, 1000 + r);
  }
  EXPECT_EQ(epoch.members[4].role, Role::kServer);
  EXPECT_EQ(epoch.members[4].index, 1u);
  for (const ConnectionId id : {101u, 102u, 200u, 201u}) EXPECT_EQ(Only<EpochMessage>(id), epoch);
}

TEST_F(CoordinatorTest, WaitsForServersToo) {
  Say(100, WorkerJoin(0, 1, JobText("ps", 2)));
  Say(201, ServerJoin(1));
  EXPECT_EQ(coordinator.phase(), Phase::kGathering);
  Say(200, ServerJoin(0));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, OneWorkerAloneIsAJob) {
  StartJob(1);
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, RefusesAnotherProtocolNamingBoth) {
  JoinMessage join = WorkerJoin(0, 2);
  join.protocol = 9;
  join.version = "7.5";
  Say(100, join);
  EXPECT_EQ(Only<RefusedMessage>(100).failure.kind, StatusKind::kMismatch);
  EXPECT_THAT(Refusal(100), AllOf(HasSubstr("protocol 9 (tally 7.5)"), HasSubstr("1 (tally 0.1)"), HasSubstr("hostA")));
  EXPECT_TRUE(Closed(100));
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
}

TEST_F(CoordinatorTest, RefusesADuplicateRankNamingTheHolder) {  // F13
  Say(100, WorkerJoin(0, 3));
  Say(101, WorkerJoin(1, 3));
  JoinMessage second = WorkerJoin(1, 3);
  second.incarnation = 77;
  second.host = "hostX";
  Say(150, second);
  EXPECT_THAT(Refusal(150), AllOf(HasSubstr("rank 1"), HasSubstr("hostB"), HasSubstr("4001")));
  EXPECT_TRUE(Closed(150));
  EXPECT_TRUE(All<RefusedMessage>(101).empty());
  // The first goes on undisturbed, and the refused one's close does not touch it.
  Disconnect(150);
  Say(102, WorkerJoin(2, 3));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, RefusesADuplicateWhileTheJobRuns) {
  StartJob(2);
  JoinMessage second = WorkerJoin(1, 2);
  second.incarnation = 77;
  Say(150, second);
  EXPECT_THAT(Refusal(150), HasSubstr("hostB"));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_TRUE(All<FailureMessage>(100).empty());
}

TEST_F(CoordinatorTest, RefusesARankOutOfRange) {  // F13: {0, 1, 5} of 3
  Say(100, WorkerJoin(0, 3));
  Say(105, WorkerJoin(5, 3));
  EXPECT_EQ(Only<RefusedMessage>(105).failure.kind, StatusKind::kInvalidArgument);
  EXPECT_THAT(Refusal(105), AllOf(HasSubstr("rank 5"), HasSubstr("3 workers"), HasSubstr("0 to 2")));
}

TEST_F(CoordinatorTest, RefusesAnotherWorldNamingBoth) {  // F13: size 3 against 4
  Say(100, WorkerJoin(0, 3));
  Say(101, WorkerJoin(1, 4));
  EXPECT_EQ(Only<RefusedMessage>(101).failure.kind, StatusKind::kMismatch);
  EXPECT_THAT(Refusal(101), AllOf(HasSubstr("expects 4 workers"), HasSubstr("has 3"), HasSubstr("hostA")));
}

TEST_F(CoordinatorTest, RefusesAnotherJobName) {
  Say(100, WorkerJoin(0, 2));
  JoinMessage join = WorkerJoin(1, 2);
  join.job = "bert";
  Say(101, join);
  EXPECT_THAT(Refusal(101), AllOf(HasSubstr("bert"), HasSubstr("resnet")));
}

TEST_F(CoordinatorTest, RefusesAnotherConfigurationNamingTheKeys) {
  Say(100, WorkerJoin(0, 2, JobText("ring", 0, "[bucket]\ncap = \"25MiB\"\n")));
  Say(101, WorkerJoin(1, 2, JobText("ring", 0, "[bucket]\ncap = \"1MiB\"\n")));
  EXPECT_EQ(Only<RefusedMessage>(101).failure.kind, StatusKind::kMismatch);
  EXPECT_THAT(Refusal(101), AllOf(HasSubstr("bucket.cap"), HasSubstr("25"), HasSubstr("1"), HasSubstr("rank 1")));
  EXPECT_EQ(coordinator.phase(), Phase::kGathering);
}

TEST_F(CoordinatorTest, RefusesAConfigurationThatCannotWork) {
  Say(100, WorkerJoin(0, 2, JobText("ps", 0)));
  EXPECT_THAT(Refusal(100), HasSubstr("servers.addresses"));
  Say(101, WorkerJoin(0, 2, "[nonsense]\nkey = 1\n"));
  EXPECT_THAT(Refusal(101), HasSubstr("nonsense"));
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
  for (std::uint32_t r = 0; r < 2; ++r) Say(110 + r, WorkerJoin(r, 2));  // F17: a good start afterwards begins clean
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, RefusesServersThatDoNotBelong) {
  Say(200, ServerJoin(0));
  Say(210, ServerJoin(0));
  EXPECT_THAT(Refusal(210), AllOf(HasSubstr("server 0"), HasSubstr("hostA")));
  Say(100, WorkerJoin(0, 2, JobText("ps", 1)));
  Say(203, ServerJoin(3));
  EXPECT_THAT(Refusal(203), AllOf(HasSubstr("server 3"), HasSubstr("1 servers.addresses")));
}

TEST_F(CoordinatorTest, BoundsMembersAndNames) {
  Say(100, WorkerJoin(0, 5000));
  EXPECT_THAT(Refusal(100), HasSubstr("4096"));
  JoinMessage join = WorkerJoin(0, 2);
  join.host = std::string(200, 'h');
  Say(101, join);
  EXPECT_EQ(All<RefusedMessage>(101).size(), 1u);
  Say(102, WorkerJoin(0, 0));
  EXPECT_EQ(All<RefusedMessage>(102).size(), 1u);
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
}

TEST_F(CoordinatorTest, APlaceIsFreeAgainAfterADisconnectWhileGathering) {
  Say(100, WorkerJoin(0, 2));
  Say(101, WorkerJoin(1, 2));  // complete: job runs
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);

  CoordinatorFixture other;
  other.Say(100, WorkerJoin(0, 3));
  other.Say(101, WorkerJoin(1, 3));
  other.Disconnect(101);
  EXPECT_TRUE(other.All<FailureMessage>(100).empty());
  JoinMessage again = WorkerJoin(1, 3);
  again.incarnation = 5;
  other.Say(111, again);
  other.Say(102, WorkerJoin(2, 3));
  EXPECT_EQ(other.coordinator.phase(), Phase::kRunning);
  EXPECT_EQ(other.Only<EpochMessage>(100).members[1].incarnation, 5u);
}

TEST_F(CoordinatorTest, AJobThatNeverBeganLeavesNothingBehind) {  // F17
  Say(100, WorkerJoin(0, 2));
  Disconnect(100);
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
  EXPECT_EQ(coordinator.jobs_ended(), 0u);
  StartJob(3);
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, TellsWaitersWhoIsMissing) {
  Say(100, WorkerJoin(0, 4, JobText("ps", 1)));
  Say(101, WorkerJoin(1, 4, JobText("ps", 1)));
  Pass(seconds(4), {100, 101});
  EXPECT_TRUE(All<WaitingMessage>(100).empty());
  Pass(seconds(2), {100, 101});
  EXPECT_EQ(Only<WaitingMessage>(100).text,
            "waiting for ranks 2, 3 of 4 and server 0 of 1; have 0 (hostA), 1 (hostB); listening on tcp://h:70");
  Pass(seconds(5), {100, 101});
  EXPECT_EQ(All<WaitingMessage>(101).size(), 2u);
  Say(103, WorkerJoin(3, 4, JobText("ps", 1)));
  Say(200, ServerJoin(0));
  Forget();
  Pass(seconds(6), {100, 101, 103, 200});
  for (const ConnectionId id : {100u, 101u, 103u, 200u}) {
    EXPECT_EQ(All<WaitingMessage>(id).back().text,
              "waiting for rank 2 of 4; have 0 (hostA), 1 (hostB), 3 (hostD); listening on tcp://h:70");
  }
}

TEST_F(CoordinatorTest, AnIdleServerIsNotTold) {
  Say(200, ServerJoin(0));
  Pass(seconds(30), {200});
  EXPECT_TRUE(All<WaitingMessage>(200).empty());
  EXPECT_GE(All<HeartbeatMessage>(200).size(), 29u);
  EXPECT_LE(All<HeartbeatMessage>(200).size(), 31u);
}

// ---- layouts

TEST_F(CoordinatorTest, PublishesALayoutOnPs) {
  StartJob(2, 2, "ps");
  const DeclareMessage declare = Declare({Tensor("a", 65536 * 2), Tensor("b", 10)});
  Say(101, declare);
  EXPECT_TRUE(All<LayoutMessage>(100).empty());
  DeclareMessage shuffled = declare;  // L01: the order may differ, rank 0's counts
  std::swap(shuffled.tensors[0], shuffled.tensors[1]);
  Say(100, shuffled);
  const LayoutMessage layout = Only<LayoutMessage>(100);
  EXPECT_EQ(layout.group, GroupId{1});
  EXPECT_EQ(layout.epoch, EpochId{2});
  EXPECT_EQ(layout.name, "default");
  EXPECT_EQ(layout.tensors, shuffled.tensors);
  EXPECT_EQ(layout.buckets, (std::vector<std::vector<std::uint32_t>>{{1, 0}}));
  EXPECT_EQ(layout.exchange, ExchangeKind::kOwners);
  EXPECT_EQ(layout.owner_list, (std::vector<OwnerRef>{{Role::kServer, 0}, {Role::kServer, 1}}));
  EXPECT_EQ(layout.owners, (std::vector<std::uint16_t>{0, 1, 0}));
  EXPECT_EQ(layout.codecs, (std::vector<std::uint8_t>{0, 0}));
  for (const ConnectionId id : {101u, 200u, 201u}) EXPECT_EQ(Only<LayoutMessage>(id), layout);
}

TEST_F(CoordinatorTest, PublishesALayoutOnARing) {
  StartJob(3);
  const LayoutMessage layout = DeclareAll(3, 65536 * 4);
  EXPECT_EQ(layout.exchange, ExchangeKind::kSchedule);
  EXPECT_EQ(layout.schedule, "ring");
  EXPECT_EQ(layout.owner_list.size(), 3u);
  EXPECT_EQ(layout.owner_list[2], (OwnerRef{Role::kWorker, 2}));
  ASSERT_GE(layout.owners.size(), 6u);
  for (std::size_t u = 0; u < layout.owners.size(); ++u) EXPECT_EQ(layout.owners[u], u % 3);
}

TEST_F(CoordinatorTest, PublishesALayoutOnServersAndWorkers) {
  StartJob(2, 1, "hybrid");
  const LayoutMessage layout = DeclareAll(2, 65536 * 3);
  EXPECT_EQ(layout.owner_list,
            (std::vector<OwnerRef>{{Role::kServer, 0}, {Role::kWorker, 0}, {Role::kWorker, 1}}));
}

TEST_F(CoordinatorTest, KeepsTheCallersBuckets) {
  StartJob(2);
  DeclareMessage declare = Declare({Tensor("a", 1), Tensor("b", 2), Tensor("c", 3)});
  declare.buckets = {{"b"}, {"c", "a"}};
  Say(100, declare);
  Say(101, declare);
  EXPECT_EQ(Only<LayoutMessage>(101).buckets, (std::vector<std::vector<std::uint32_t>>{{1}, {2, 0}}));
}

TEST_F(CoordinatorTest, EveryGroupHasItsOwnEpoch) {
  StartJob(2);
  const LayoutMessage first = DeclareAll(2);
  Forget();
  Say(100, Declare({Tensor("x", 5)}, "second"));
  Say(101, Declare({Tensor("x", 5)}, "second"));
  const LayoutMessage second = Only<LayoutMessage>(100);
  EXPECT_EQ(second.group, GroupId{2});
  EXPECT_GT(second.epoch, first.epoch);
  // The first group's steps still carry its own.
  Forget();
  FinishStep(first, 2, 0);
  EXPECT_EQ(Only<VerdictMessage>(101).epoch, first.epoch);
}

struct Misfit {
  const char* name;
  DeclareMessage other;
  std::vector<std::string> expected;
};

TEST_F(CoordinatorTest, NamesEveryMisfitOnAllRanks) {  // C28, L06
  const auto tensor = [](const char* name, std::uint64_t elements, DType dtype = DType::kFloat32) {
    return Tensor(name, elements, dtype);
  };
  DeclareMessage first = Declare({tensor("k1", 100), tensor("k2", 20)});
  DeclareMessage with_buckets = first, twice = first, unknown_bucket = first;
  with_buckets.buckets = {{"k1", "k2"}};
  twice.tensors.push_back(tensor("k1", 100));
  const Misfit misfits[] = {
      {"size", Declare({tensor("k1", 200), tensor("k2", 20)}), {"k1", "100 fp32", "200 fp32", "rank 1"}},
      {"dtype", Declare({tensor("k1", 100, DType::kFloat16), tensor("k2", 20)}), {"k1", "100 fp32", "100 fp16"}},
      {"missing", Declare({tensor("k1", 100)}), {"k2", "rank 1 does not declare it"}},
      {"extra", Declare({tensor("k1", 100), tensor("k2", 20), tensor("k9", 1)}), {"k9", "rank 0 does not declare it"}},
      {"group", Declare({tensor("k1", 100), tensor("k2", 20)}, "other"), {"group default", "group other"}},
      {"buckets", with_buckets, {"0 buckets", "rank 1 gives 1"}},
      {"twice", twice, {"k1", "twice", "rank 1"}},
  };
  for (const Misfit& misfit : misfits) {
    CoordinatorFixture f;
    f.StartJob(3, 1, "ps");
    f.Say(102, first);
    f.Say(101, misfit.other);
    f.Say(100, first);
    for (const ConnectionId id : {100u, 101u, 102u, 200u}) {
      const FailureMessage failure = f.Only<FailureMessage>(id);
      for (const std::string& part : misfit.expected) EXPECT_THAT(failure.text, HasSubstr(part)) << misfit.name;
      EXPECT_TRUE(f.All<LayoutMessage>(id).empty());
    }
    EXPECT_EQ(f.coordinator.phase(), Phase::kFailed) << misfit.name;
  }
}

TEST_F(CoordinatorTest, RefusesGroupsBeyondTheBounds) {
  StartJob(1);
  Say(100, Declare({Tensor("huge", std::uint64_t{1} << 40)}));
  EXPECT_THAT(Only<FailureMessage>(100).text, AllOf(HasSubstr("huge"), HasSubstr("slabs")));

  CoordinatorFixture names;
  names.StartJob(1);
  names.Say(100, Declare({Tensor(std::string(129, 'x'), 1)}));
  EXPECT_THAT(names.Only<FailureMessage>(100).text, HasSubstr("129 bytes"));

  CoordinatorFixture again;
  again.StartJob(1);
  again.Say(100, Declare({Tensor("w", 1)}));
  again.Say(100, Declare({Tensor("w", 1)}));
  EXPECT_THAT(again.Only<FailureMessage>(100).text, HasSubstr("second time"));

  CoordinatorFixture many;
  many.StartJob(1);
  for (int g = 0; g < 1025; ++g) many.Say(100, Declare({Tensor("w", 1)}, "g" + std::to_string(g)));
  EXPECT_EQ(many.All<LayoutMessage>(100).size(), 1024u);
  EXPECT_THAT(many.Only<FailureMessage>(100).text, HasSubstr("1024 groups"));
}

TEST_F(CoordinatorTest, AnEmptyGroupIsAGroup) {
  StartJob(2);
  Say(100, Declare({}));
  Say(101, Declare({}));
  EXPECT_EQ(Only<LayoutMessage>(100).group, GroupId{1});
}

TEST_F(CoordinatorTest, TellsWaitersWhoHasNotDeclared) {
  StartJob(3);
  Forget();
  Say(101, Declare({Tensor("w", 1)}));
  Pass(seconds(6), {100, 101, 102});
  EXPECT_EQ(Only<WaitingMessage>(101).text,
            "waiting for ranks 0 (hostA), 2 (hostC) of 3 to declare a group; have 1 (hostB)");
  EXPECT_TRUE(All<WaitingMessage>(100).empty());
}

// ---- steps

TEST_F(CoordinatorTest, CommitsOnceAllArePrepared) {
  StartJob(3, 1, "ps");
  const LayoutMessage layout = DeclareAll(3);
  for (std::uint64_t step = 0; step < 5; ++step) {
    Forget();
    Say(102, Prepared(layout, step));
    Say(100, Prepared(layout, step));
    Say(100, Prepared(layout, step));  // a repeat is harmless
    EXPECT_TRUE(said.empty());
    Say(101, Prepared(layout, step));
    for (const ConnectionId id : {100u, 101u, 102u, 200u}) {
      const VerdictMessage verdict = Only<VerdictMessage>(id);
      EXPECT_EQ(verdict.step, StepId{step});
      EXPECT_EQ(verdict.group, layout.group);
      EXPECT_TRUE(verdict.commit);
      EXPECT_EQ(verdict.reason, "");
    }
  }
}

TEST_F(CoordinatorTest, SkipsForAllNamingTheRanks) {
  StartJob(3);
  const LayoutMessage layout = DeclareAll(3);
  PreparedMessage bad = Prepared(layout, 0), vote = bad;
  bad.non_finite = true;
  bad.note = "tensor fc1.weight";
  vote.skip_vote = true;
  Say(101, bad);
  Say(102, vote);
  Say(100, Prepared(layout, 0));
  for (const ConnectionId id : {100u, 101u, 102u}) {
    EXPECT_FALSE(Only<VerdictMessage>(id).commit);
    EXPECT_EQ(Only<VerdictMessage>(id).reason, "rank 1: non-finite value in tensor fc1.weight; rank 2 voted skip");
  }
  Forget();
  FinishStep(layout, 3, 1);  // a skipped step uses up its number
  EXPECT_TRUE(Only<VerdictMessage>(100).commit);
}

TEST_F(CoordinatorTest, RepeatsTheVerdictForAWorkerThatAsksAgain) {
  StartJob(2);
  const LayoutMessage layout = DeclareAll(2);
  FinishStep(layout, 2, 0);
  Forget();
  Say(101, Prepared(layout, 0));
  EXPECT_EQ(Only<VerdictMessage>(101).step, StepId{0});
  EXPECT_TRUE(All<VerdictMessage>(100).empty());
}

TEST_F(CoordinatorTest, AnotherStepOrEpochIsAnErrorThatNamesBoth) {  // L15
  StartJob(2);
  const LayoutMessage layout = DeclareAll(2);
  FinishStep(layout, 2, 0);
  Say(101, Prepared(layout, 7));
  for (const ConnectionId id : {100u, 101u}) {
    EXPECT_EQ(Only<FailureMessage>(id).kind, StatusKind::kMismatch);
    EXPECT_THAT(Only<FailureMessage>(id).text, AllOf(HasSubstr("rank 1"), HasSubstr("step 7"), HasSubstr("step 1")));
  }

  CoordinatorFixture old;
  old.StartJob(2);
  PreparedMessage stale = Prepared(old.DeclareAll(2), 0);
  stale.epoch = EpochId{1};
  old.Say(101, stale);
  EXPECT_THAT(old.Only<FailureMessage>(100).text, AllOf(HasSubstr("stale epoch 1"), HasSubstr("2")));
}

TEST_F(CoordinatorTest, TellsWaitersWhoHasNotEndedTheStep) {
  StartJob(3);
  const LayoutMessage layout = DeclareAll(3);
  Forget();
  Say(101, Prepared(layout, 0));
  Say(100, Prepared(layout, 0));
  Pass(seconds(6), {100, 101, 102});
  EXPECT_EQ(Only<WaitingMessage>(100).text,
            "waiting for rank 2 (hostC) of 3 to end step 0 of group default; have 0 (hostA), 1 (hostB)");
  Say(102, Prepared(layout, 0));
  Forget();
  Pass(seconds(20), {100, 101, 102});
  EXPECT_TRUE(All<WaitingMessage>(100).empty());
}

// ---- ending

TEST_F(CoordinatorTest, AJobEndsWhenAllHaveLeftAndServersStayForTheNext) {
  StartJob(2, 1, "ps");
  const EpochMessage first = Only<EpochMessage>(200);
  Say(100, LeaveMessage{"done"});
  EXPECT_THAT(Only<LeaveMessage>(101).reason, AllOf(HasSubstr("rank 0"), HasSubstr("done")));
  EXPECT_EQ(coordinator.jobs_ended(), 0u);
  Say(101, LeaveMessage{"done"});
  EXPECT_THAT(Only<LeaveMessage>(200).reason, HasSubstr("ended"));
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
  Disconnect(100);
  Disconnect(101);
  EXPECT_TRUE(All<FailureMessage>(200).empty());

  Forget();
  for (std::uint32_t r = 0; r < 2; ++r) Say(300 + r, WorkerJoin(r, 2, JobText("ps", 1)));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  const EpochMessage second = Only<EpochMessage>(200);
  EXPECT_GT(second.epoch, first.epoch);
  EXPECT_NE(second.job_hash, first.job_hash);
}

TEST_F(CoordinatorTest, ALeaverDoesNotDisturbWhoIsDone) {
  StartJob(3);
  const LayoutMessage layout = DeclareAll(3);
  FinishStep(layout, 3, 0);
  Say(101, LeaveMessage{"done"});
  Disconnect(101);
  Pass(seconds(20), {100, 102});
  EXPECT_TRUE(All<FailureMessage>(100).empty());
  Say(100, LeaveMessage{"done"});
  Say(102, LeaveMessage{"done"});
  EXPECT_TRUE(All<FailureMessage>(102).empty());
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
}

TEST_F(CoordinatorTest, WhoeverNeedsALeaverIsToldAtOnce) {  // L03: 11, 10 and 11 steps
  StartJob(3);
  const LayoutMessage layout = DeclareAll(3);
  for (std::uint64_t step = 0; step <= 10; ++step) FinishStep(layout, 3, step);
  Forget();
  Say(100, Prepared(layout, 11));  // waits already
  Say(101, LeaveMessage{"out of data"});
  EXPECT_EQ(Only<FailureMessage>(100).kind, StatusKind::kUnavailable);
  EXPECT_THAT(Only<FailureMessage>(100).text,
              AllOf(HasSubstr("rank 1 left the job after step 10"), HasSubstr("step 11")));
  EXPECT_TRUE(All<FailureMessage>(102).empty());
  Disconnect(100);
  EXPECT_TRUE(All<FailureMessage>(102).empty());
  Say(102, Prepared(layout, 11));  // comes later
  EXPECT_THAT(Only<FailureMessage>(102).text, HasSubstr("rank 1 left the job after step 10"));
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
}

TEST_F(CoordinatorTest, ALeaverThatHadItsPartInDoesNotStopTheStep) {
  StartJob(2);
  const LayoutMessage layout = DeclareAll(2);
  Say(101, Prepared(layout, 0));
  Say(101, LeaveMessage{"done"});
  Say(100, Prepared(layout, 0));
  EXPECT_TRUE(Only<VerdictMessage>(100).commit);
}

TEST_F(CoordinatorTest, DeclaringWithoutALeaverFails) {
  StartJob(2);
  Say(101, LeaveMessage{"done"});
  Say(100, Declare({Tensor("w", 1)}));
  EXPECT_THAT(Only<FailureMessage>(100).text, AllOf(HasSubstr("rank 1 left"), HasSubstr("declared")));
}

TEST_F(CoordinatorTest, AStrandedWorkerStrandsOthersInTurn) {
  StartJob(3);
  const LayoutMessage one = DeclareAll(3);
  Forget();
  for (std::uint32_t r = 0; r < 3; ++r) Say(100 + r, Declare({Tensor("x", 5)}, "second"));
  const LayoutMessage two = Only<LayoutMessage>(100);
  // Rank 2 waits in group two for ranks 0 and 1; rank 1 waits in group one for rank 0, who leaves.
  Say(102, Prepared(two, 0));
  Say(101, Prepared(one, 0));
  Say(100, LeaveMessage{"done"});
  EXPECT_EQ(All<FailureMessage>(101).size(), 1u);
  EXPECT_EQ(All<FailureMessage>(102).size(), 1u);
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
}

TEST_F(CoordinatorTest, ALostWorkerIsToldToAllOthersAtOnce) {  // F07
  StartJob(3, 1, "ps");
  Disconnect(102, "connection reset by peer");
  for (const ConnectionId id : {100u, 101u, 200u}) {
    const FailureMessage failure = Only<FailureMessage>(id);
    EXPECT_EQ(failure.kind, StatusKind::kPeerLost);
    EXPECT_TRUE(failure.is_member);
    EXPECT_EQ(failure.role, Role::kWorker);
    EXPECT_EQ(failure.index, 2u);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 2"), HasSubstr("hostC"), HasSubstr("connection reset by peer")));
  }
  EXPECT_EQ(coordinator.phase(), Phase::kFailed);
  Disconnect(100);
  EXPECT_EQ(coordinator.phase(), Phase::kFailed);
  Disconnect(101);
  EXPECT_EQ(coordinator.phase(), Phase::kIdle);
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
  EXPECT_EQ(All<FailureMessage>(200).size(), 1u);  // the first cause only
}

TEST_F(CoordinatorTest, ALostServerEndsTheJob) {
  StartJob(2, 2, "ps");
  Disconnect(201);
  for (const ConnectionId id : {100u, 101u, 200u}) {
    EXPECT_EQ(Only<FailureMessage>(id).role, Role::kServer);
    EXPECT_EQ(Only<FailureMessage>(id).index, 1u);
  }
  // It may come back under its index, and the next job takes it.
  Forget();
  Say(251, ServerJoin(1));
  EXPECT_TRUE(All<RefusedMessage>(251).empty());
  for (std::uint32_t r = 0; r < 2; ++r) Say(300 + r, WorkerJoin(r, 2, JobText("ps", 2)));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_EQ(All<EpochMessage>(251).size(), 1u);
}

TEST_F(CoordinatorTest, ASilentWorkerIsLost) {
  StartJob(3);
  Pass(seconds(9), {100, 101});
  EXPECT_TRUE(All<FailureMessage>(100).empty());
  Pass(seconds(2), {100, 101});
  EXPECT_EQ(Only<FailureMessage>(100).kind, StatusKind::kPeerLost);
  EXPECT_THAT(Only<FailureMessage>(101).text,
              AllOf(HasSubstr("rank 2"), HasSubstr("nothing was heard"), HasSubstr("10.0 s")));
  EXPECT_TRUE(Closed(102));  // what it finds when it wakes up
  EXPECT_THAT(Only<FailureMessage>(102).text, HasSubstr("rank 2"));
}

TEST_F(CoordinatorTest, FollowsTheJobsOwnTimes) {
  const std::string text = JobText("ring", 0, "[membership]\nheartbeat = \"200ms\"\ndead = \"1s\"\n");
  Say(100, WorkerJoin(0, 2, text));
  Say(101, WorkerJoin(1, 2, text));
  Pass(std::chrono::milliseconds(1200), {100});
  EXPECT_EQ(All<FailureMessage>(100).size(), 1u);
  EXPECT_GE(All<HeartbeatMessage>(100).size(), 4u);
}

TEST_F(CoordinatorTest, DoesNotBlameOthersForItsOwnPause) {
  StartJob(2);
  Pass(seconds(1), {100, 101});
  now += seconds(60);
  Pass(seconds(1), {100, 101});
  EXPECT_TRUE(All<FailureMessage>(100).empty());
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
}

TEST_F(CoordinatorTest, AFailureReportedByAMemberReachesAllOthers) {
  StartJob(3, 1, "ps");
  Say(101, FailureMessage{StatusKind::kPeerLost, "link to server 0 broke", true, Role::kServer, 0});
  Say(102, FailureMessage{StatusKind::kTimeout, "later cause", false, Role::kWorker, 0});
  for (const ConnectionId id : {100u, 102u, 200u}) {
    EXPECT_EQ(Only<FailureMessage>(id).kind, StatusKind::kPeerLost);
    EXPECT_THAT(Only<FailureMessage>(id).text, AllOf(HasSubstr("rank 1"), HasSubstr("link to server 0 broke")));
    EXPECT_EQ(Only<FailureMessage>(id).role, Role::kServer);
  }
  EXPECT_TRUE(All<FailureMessage>(101).empty());
}

TEST_F(CoordinatorTest, ANewJobReplacesAFailedOneAtOnce) {
  StartJob(2);
  Disconnect(101);
  ASSERT_EQ(coordinator.phase(), Phase::kFailed);
  for (std::uint32_t r = 0; r < 3; ++r) Say(300 + r, WorkerJoin(r, 3));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_EQ(coordinator.jobs_ended(), 1u);
  Say(100, PreparedMessage{});  // the old one's last words and its end do not matter
  Disconnect(100);
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_TRUE(All<FailureMessage>(300).empty());
}

TEST_F(CoordinatorTest, ARunningJobTakesNobodyIn) {
  StartJob(2);
  Say(101, LeaveMessage{"done"});
  Say(111, WorkerJoin(1, 2));
  EXPECT_THAT(Refusal(111), HasSubstr("running"));
}

// ---- hostile order

TEST_F(CoordinatorTest, AStrangersNonsenseDisturbsNobody) {
  StartJob(2);
  Forget();
  const ControlMessage nonsense[] = {PreparedMessage{}, DeclareMessage{}, VerdictMessage{},  LayoutMessage{},
                                     EpochMessage{},    LeaveMessage{},   HeartbeatMessage{}, FailureMessage{},
                                     WaitingMessage{},  RefusedMessage{}, ReloadMessage{}};
  ConnectionId id = 500;
  for (const ControlMessage& message : nonsense) {
    Say(++id, message);
    EXPECT_EQ(All<RefusedMessage>(id).size(), 1u);
    EXPECT_TRUE(Closed(id));
    Say(id, WorkerJoin(0, 2));  // nothing more is heard on it
    EXPECT_EQ(said[id].size(), 1u);
    Disconnect(id);
  }
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);
  EXPECT_TRUE(All<FailureMessage>(100).empty());
}

TEST_F(CoordinatorTest, AMemberThatBreaksTheProtocolIsLost) {
  const ControlMessage nonsense[] = {WorkerJoin(1, 2), VerdictMessage{}, EpochMessage{}, PreparedMessage{},
                                     DeclareMessage{}};
  for (const ControlMessage& message : nonsense) {
    CoordinatorFixture f;
    f.StartJob(2);
    f.Say(101, message);
    EXPECT_TRUE(f.Closed(101));
    EXPECT_THAT(f.Only<FailureMessage>(100).text, HasSubstr("rank 1")) << message.index();
    EXPECT_NE(f.coordinator.phase(), Phase::kRunning);
  }
}

TEST_F(CoordinatorTest, AWorkerThatIsTooEagerOnlyLosesItsPlace) {
  Say(100, WorkerJoin(0, 2));
  Say(101, WorkerJoin(1, 3));
  Say(102, WorkerJoin(1, 2, JobText("ring", 0, "[bucket]\ncap = \"1MiB\"\n")));
  EXPECT_TRUE(Closed(101));
  EXPECT_TRUE(Closed(102));
  Say(103, PreparedMessage{});
  EXPECT_EQ(coordinator.phase(), Phase::kGathering);
  Say(104, WorkerJoin(1, 2));
  EXPECT_EQ(coordinator.phase(), Phase::kRunning);

  CoordinatorFixture early;
  early.Say(100, WorkerJoin(0, 2));
  early.Say(101, WorkerJoin(1, 3));
  early.Say(100, Declare({}));  // before the epoch
  EXPECT_TRUE(early.Closed(100));
  EXPECT_EQ(early.coordinator.phase(), Phase::kIdle);
}

}  // namespace
}  // namespace tally
