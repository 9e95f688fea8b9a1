// One group between a caller and peers that are played by the test, in a ring of two.
#include "worker/group_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "server/core/group_plan.h"

namespace tally {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kElements = 2 * 4096;  // a slab for each of two positions

class Surroundings final : public GroupEnvironment {
 public:
  struct Sent {
    OwnerRef to;
    FrameHeader header;
    std::vector<std::byte> payload;
  };
  Status Send(OwnerRef to, std::uint32_t, const FrameHeader& header, std::span<const std::byte> payload,
              BufferRef) override {
    sent.push_back({to, header, {payload.begin(), payload.end()}});
    return Status::Ok();
  }
  void Prepared(const PreparedMessage& message) override { prepared.push_back(message); }
  void Verdict(const VerdictMessage&) override {}
  void PostContinue(GroupRuntime*) override {}
  void Fail(const Status& why) override {
    if (failure.ok()) failure = why;
  }

  std::vector<Sent> sent;
  std::vector<PreparedMessage> prepared;
  Status failure;
};

class Group {
 public:
  Group() {
    job_.job.workers = 2;
    job_.aggregation.mode = Mode::kRing;
    job_.link.credit_bytes = 65536;
    DeclareMessage declared;
    declared.group = "default";
    declared.tensors = {{"w", ElementCount(kElements), DType::kFloat32}};
    LayoutMessage layout = PlanGroup(std::vector<DeclareMessage>(2, declared), job_).value();
    layout.group = GroupId(1);
    tables_ = MakeGroupTables(std::move(layout), job_, 2).value();
    GroupRuntime::Options options;
    options.exchange.header.group = GroupId(1);
    options.exchange.self = Position(0);
    options.exchange.positions = 2;
    options.exchange.limits = MakeFlowLimits(*tables_, job_, 2);
    runtime = GroupRuntime::Make(options, tables_, declared.tensors, &pool_, &around).value();
  }

  void Submit() {
    runtime->tickets[0] = std::make_shared<TicketState>();
    runtime->tickets[0]->group = runtime.get();
    runtime->Submit(0);
  }
  // What position 1 sends in a step: its part of our slab's sum, or the total of its own.
  Frame FromPeer(FrameKind kind, std::uint32_t slab, std::uint64_t step, float value, double weight) {
    Frame frame;
    frame.header.group = GroupId(1);
    frame.header.kind = kind;
    frame.header.position = 1;
    frame.header.step = StepId(step);
    frame.header.slabs = {slab};
    frame.header.weight = weight;
    const std::size_t n = tables_->layout.slabs[slab].elements;
    frame.hold = pool_.Get(n * sizeof(float));
    frame.payload = frame.hold.bytes();
    const std::vector<float> values(n, value);
    std::memcpy(frame.payload.data(), values.data(), frame.payload.size());
    return frame;
  }
  void Verdict(std::uint64_t step) {
    VerdictMessage verdict;
    verdict.group = GroupId(1);
    verdict.step = StepId(step);
    runtime->OnVerdict(verdict);
  }

  Surroundings around;

 private:
  Config job_;
  BufferPool pool_;
  std::shared_ptr<const GroupTables> tables_;

 public:
  std::unique_ptr<GroupRuntime> runtime;
};

TEST(GroupRuntime, FramesOfTheNextStepWaitForIt) {
  Group group;
  for (float& g : group.runtime->arena_input(0)) g = 1;
  for (std::uint64_t step = 0; step < 3; ++step) {
    // The peer is ahead: both of its frames are here before this rank begins.
    const float value = static_cast<float>(3 + 4 * step);
    Frame partial = group.FromPeer(FrameKind::kPartial, 0, step, value, 1);
    group.runtime->OnFrame(partial);
    Frame total = group.FromPeer(FrameKind::kTotal, 1, step, 10 * value, 2);
    group.runtime->OnFrame(total);
    EXPECT_TRUE(group.around.prepared.size() == step);
    group.Submit();
    group.runtime->EndStep();
    ASSERT_TRUE(group.around.failure.ok()) << group.around.failure.text();
    ASSERT_EQ(group.around.prepared.size(), step + 1);
    EXPECT_EQ(group.runtime->outputs[0][0], (1 + value) / 2);
    EXPECT_EQ(group.runtime->outputs[0][kElements / 2], 10 * value);
    group.Verdict(step);
    EXPECT_TRUE(group.runtime->ending.completion.done());
    EXPECT_EQ(group.runtime->ending.result.step, StepId(step));
    group.runtime->ending.completion.Reset();
  }
}

TEST(GroupRuntime, EarlyFramesBeyondEverybodysCreditEndTheJob) {
  Group group;
  int frames = 0;
  while (group.around.failure.ok() && frames < 10000) {
    Frame partial = group.FromPeer(FrameKind::kPartial, 0, 0, 1, 1);
    group.runtime->OnFrame(partial);
    ++frames;
  }
  EXPECT_EQ(group.around.failure.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(group.around.failure.text(), HasSubstr("credit"));
  // Two steps' credit of two positions, in frames of 16 KiB.
  EXPECT_LE(frames, 2 * 2 * 65536 / 16384 + 1);
  EXPECT_GT(frames, 2);
}

TEST(GroupRuntime, EmptyEarlyFramesAreBoundedToo) {
  Group group;
  int frames = 0;
  while (group.around.failure.ok() && frames < 100000) {
    Frame empty;
    empty.header.kind = FrameKind::kPartial;
    empty.header.position = 1;
    group.runtime->OnFrame(empty);
    ++frames;
  }
  EXPECT_EQ(group.around.failure.kind(), StatusKind::kCorrupt);
  EXPECT_LE(frames, 10000);
}

TEST(GroupRuntime, FramesOfStepsThatAreOverOrFarAheadAreDropped) {
  Group group;
  for (const std::uint64_t step : {std::uint64_t{2}, std::uint64_t{1000}}) {
    Frame frame = group.FromPeer(FrameKind::kPartial, 0, step, 1, 1);
    group.runtime->OnFrame(frame);
  }
  group.Submit();
  group.runtime->EndStep();
  EXPECT_TRUE(group.around.failure.ok());
  EXPECT_TRUE(group.around.prepared.empty());
  EXPECT_THAT(group.runtime->Describe(), HasSubstr("from rank 1"));
}

TEST(GroupRuntime, WrongFramesOfTheOpenStepAreCorrupt) {
  const auto failure = [](const std::function<void(Frame&)>& change) {
    Group group;
    group.Submit();
    Frame frame = group.FromPeer(FrameKind::kPartial, 0, 0, 1, 1);
    change(frame);
    group.runtime->OnFrame(frame);
    return group.around.failure.kind();
  };
  EXPECT_EQ(failure([](Frame&) {}), StatusKind::kOk);
  EXPECT_EQ(failure([](Frame& f) { f.header.kind = FrameKind::kReply; }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.header.slabs.clear(); }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.header.slabs = {99}; }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.header.slabs = {0, 1}; }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.payload = f.payload.first(8); }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.header.kind = FrameKind::kTotal; }), StatusKind::kCorrupt);
  EXPECT_EQ(failure([](Frame& f) { f.header.position = 0; }), StatusKind::kCorrupt);
}

TEST(GroupRuntime, AFailureCompletesEverythingThatIsWaitedFor) {
  Group group;
  group.Submit();
  group.runtime->EndStep();
  group.runtime->FailAll(PeerLost("rank 1 is gone"));
  Status status;
  ASSERT_TRUE(group.runtime->tickets[0]->completion.Wait(Nanos{0}, [] {}, &status));
  EXPECT_EQ(status.kind(), StatusKind::kPeerLost);
  ASSERT_TRUE(group.runtime->ending.completion.Wait(Nanos{0}, [] {}, &status));
  EXPECT_EQ(status.kind(), StatusKind::kPeerLost);
}

}  // namespace
}  // namespace tally
