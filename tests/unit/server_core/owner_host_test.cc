#include "server/core/owner_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/group_plan.h"

namespace tally {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kElements = 4 * 65536;
constexpr std::uint32_t kWorkers = 2;

Config Job(const std::string& codec, bool error_feedback) {
  Config job;
  job.job.workers = kWorkers;
  job.aggregation.mode = Mode::kPs;
  job.servers.addresses = {"tcp://127.0.0.1:1"};
  job.compression.codec = codec;
  job.compression.error_feedback = error_feedback;
  return job;
}

std::shared_ptr<const GroupTables> Tables(const Config& job) {
  DeclareMessage declared;
  declared.group = "default";
  declared.tensors = {{"w", ElementCount(kElements), DType::kFloat32}};
  const std::vector<DeclareMessage> all(kWorkers, declared);
  LayoutMessage layout = PlanGroup(all, job).value();
  layout.group = GroupId(1);
  return MakeGroupTables(std::move(layout), job, kWorkers, kWorkers).value();
}

// The least memory cap that a group fits, found by asking.
std::uint64_t Needed(const Config& job) {
  const auto tables = Tables(job);
  std::uint64_t fits = std::uint64_t{1} << 30, refused = 1;
  while (fits - refused > 1) {
    const std::uint64_t cap = (fits + refused) / 2;
    BufferPool pool;
    OwnerHost::Options options;
    options.self = {Role::kServer, 0};
    options.workers = kWorkers;
    options.memory_cap_bytes = cap;
    OwnerHost host(options, &pool);
    (host.AddGroup(tables, job).ok() ? fits : refused) = cap;
  }
  return fits;
}

TEST(OwnerHost, TheMemoryCapCountsTwoStepsResidualsAndCredit) {
  const std::uint64_t dense = kElements * sizeof(float);
  const Config none = Job("none", true);
  const std::uint64_t credit = MakeFlowLimits(*Tables(none), none, kWorkers).credit_bytes;
  EXPECT_EQ(Needed(none), 2 * dense + kWorkers * credit);
  // A lossy reply has a residual in two buffers.
  EXPECT_EQ(Needed(Job("int8", true)) - Needed(Job("int8", false)), 2 * dense);
}

TEST(OwnerHost, ARefusalNamesBothNumbersAndLaterGroupsCountToo) {
  const Config job = Job("none", true);
  const auto tables = Tables(job);
  BufferPool pool;
  OwnerHost::Options options;
  options.self = {Role::kServer, 0};
  options.workers = kWorkers;
  options.memory_cap_bytes = Needed(job) + 1000;
  OwnerHost host(options, &pool);
  ASSERT_TRUE(host.AddGroup(tables, job).ok());
  const Status status = host.AddGroup(tables, job);
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr(std::to_string(Needed(job))));
  EXPECT_THAT(status.text(), HasSubstr(std::to_string(Needed(job) + 1000)));
  EXPECT_THAT(status.text(), HasSubstr("server.memory_cap"));
}

TEST(OwnerHost, PushesForGroupsItDoesNotOwnAreCorrupt) {
  BufferPool pool;
  OwnerHost host({}, &pool);
  Frame frame;
  frame.header.group = GroupId(7);
  const Status status = host.OnPush(frame);
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(status.text(), HasSubstr("7"));
}

// Stages of a codec: topk with a larger ratio for three steps, pushed and answered slab by slab.
class Stages : public testing::Test {
 protected:
  static Config WarmUp() {
    Config job = Job("topk", true);
    job.compression.warmup = {0.5};
    job.compression.warmup_steps = 3;
    return job;
  }
  Stages() : job_(WarmUp()), tables_(Tables(job_)), host_(MakeOptions(), &pool_) {
    EXPECT_TRUE(host_.AddGroup(tables_, job_).ok());
  }

  OwnerHost::Options MakeOptions() {
    OwnerHost::Options options;
    options.self = {Role::kServer, 0};
    options.workers = kWorkers;
    options.send = [this](Position, std::uint32_t, const FrameHeader& header, std::span<const std::byte> payload,
                          BufferRef) {
      ++replies_;
      reply_bytes_ += payload.size();
      EXPECT_EQ(header.flags, 0);
    };
    return options;
  }

  // A worker's part of a slab of a step.
  Status Push(std::uint64_t step, std::uint32_t position, std::uint32_t slab, std::uint16_t verdict) {
    const GroupTables* tables = tables_.get();
    while (tables->before != nullptr && step < tables->first_step) tables = tables->before.get();
    const Codec& codec = *tables->tensor_codec[0];
    const std::size_t n = tables->layout.slabs[slab].elements;
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>((i * 7 + position * 311) % 1001) - 500.0F;
    Frame frame;
    frame.header.epoch = tables->message.epoch;
    frame.header.group = GroupId(1);
    frame.header.step = StepId(step);
    frame.header.position = position;
    frame.header.codec = codec.id();
    frame.header.flags = verdict;
    frame.header.slabs = {slab};
    frame.hold = pool_.Get(codec.EncodedBytes(n));
    frame.payload = frame.hold.bytes();
    codec.Encode({}, values.data(), n, frame.payload.data(), nullptr);
    return host_.OnPush(frame);
  }
  void Step(std::uint64_t step, std::uint16_t verdict) {
    for (std::uint32_t u = 0; u < tables_->layout.slabs.size(); ++u) {
      for (std::uint32_t p = 0; p < kWorkers; ++p) {
        const Status status = Push(step, p, u, verdict);
        ASSERT_TRUE(status.ok()) << status.text();
      }
    }
  }
  VerdictMessage Verdict(std::uint64_t step, bool commit) {
    VerdictMessage verdict;
    verdict.group = GroupId(1);
    verdict.step = StepId(step);
    verdict.commit = commit;
    return verdict;
  }

  const Config job_;
  const std::shared_ptr<const GroupTables> tables_;
  BufferPool pool_;
  std::size_t replies_ = 0, reply_bytes_ = 0;
  OwnerHost host_;
};

TEST_F(Stages, TheNextOneGoesOnWithTheResidualAndTheCounters) {
  Step(0, 0);
  EXPECT_EQ(reply_bytes_, kWorkers * 4U * 65536 / 2 * 6);
  Step(1, kFlagPreviousCommitted);
  Step(2, kFlagPreviousCommitted);
  host_.OnVerdict(Verdict(2, true));
  const double kept = host_.ResidualL1();
  EXPECT_GT(kept, 0);
  reply_bytes_ = 0;
  Step(3, kFlagPreviousCommitted);
  EXPECT_EQ(host_.ResidualL1(), kept) << "nothing of step 3 is committed yet";
  EXPECT_EQ(reply_bytes_, kWorkers * 4U * 656 * 6);
  host_.OnVerdict(Verdict(3, true));
  EXPECT_NE(host_.ResidualL1(), kept);
  EXPECT_EQ(host_.stats().slabs_done, 4U * 4);
}

TEST_F(Stages, TheFirstFrameTellsHowTheLastStepEnded) {
  for (std::uint64_t step = 0; step < 3; ++step) Step(step, step == 0 ? 0 : kFlagPreviousCommitted);
  const double before = host_.ResidualL1();  // of steps 0 and 1
  EXPECT_TRUE(Push(3, 0, 0, kFlagPreviousSkipped).ok());
  EXPECT_EQ(host_.ResidualL1(), before);
  EXPECT_EQ(Push(3, 1, 0, kFlagPreviousCommitted).kind(), StatusKind::kCorrupt) << "two verdicts of one step";
}

TEST_F(Stages, NeitherEarlyNorWithoutAVerdict) {
  for (std::uint64_t step = 0; step < 2; ++step) Step(step, step == 0 ? 0 : kFlagPreviousCommitted);
  EXPECT_EQ(Push(3, 0, 0, kFlagPreviousCommitted).kind(), StatusKind::kCorrupt) << "step 2 has not begun";
  EXPECT_TRUE(Push(2, 0, 0, kFlagPreviousCommitted).ok());
  EXPECT_EQ(Push(3, 0, 0, kFlagPreviousCommitted).kind(), StatusKind::kCorrupt) << "step 2 is unfinished";
  Step(2, kFlagPreviousCommitted);
  EXPECT_EQ(Push(3, 0, 0, 0).kind(), StatusKind::kCorrupt) << "no verdict";
  EXPECT_EQ(Push(3, 0, 0, kFlagPreviousCommitted | kFlagPreviousSkipped).kind(), StatusKind::kCorrupt);
  EXPECT_EQ(Push(4, 0, 0, kFlagPreviousCommitted).kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(Push(3, 0, 0, kFlagPreviousCommitted).ok());
  EXPECT_TRUE(Push(2, 0, 0, kFlagPreviousCommitted).ok()) << "stale frames are dropped";
}

TEST(OwnerHost, StagesShareOneResidual) {
  Config job = Job("topk", true);
  const std::uint64_t without = Needed(job);
  job.compression.warmup.assign(16, 0.01);
  job.compression.warmup_steps = 2;
  EXPECT_EQ(Needed(job), without);
}

}  // namespace
}  // namespace tally
