// Frames that come before their turn are kept once each and within a bound.
#include "worker/schedule_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kCap = 10 * ScheduleExecutor::kParkedFrameBytes;

// Position 0 of three: owner of frame 0, and before it in the ring of frames from 1 on.
class Actions final : public ScheduleActions {
 public:
  const std::vector<ScheduleStep>& Program(std::uint32_t f) const override { return f == 0 ? owner_ : other_; }
  std::uint64_t CreditBytes(std::uint32_t) const override { return 1; }
  std::uint32_t FirstSlab(std::uint32_t f) const override { return f; }
  std::string Name(std::uint32_t, Position peer) const override { return "rank " + std::to_string(peer.value); }
  Status Receive(std::uint32_t, const ScheduleStep&, Frame&) override {
    ++received;
    return Status::Ok();
  }
  Status SendPartial(std::uint32_t, Position) override { return Status::Ok(); }
  void Finish(std::uint32_t) override {}
  Status SendTotal(std::uint32_t, Position) override { return Status::Ok(); }
  void Done(std::uint32_t) override { ++done; }

  int received = 0, done = 0;

 private:
  const std::vector<ScheduleStep> owner_ = {{StepOp::kReceiveAdd, Position(1)}, {StepOp::kReceiveAdd, Position(2)},
                                            {StepOp::kFinish, {}}};
  const std::vector<ScheduleStep> other_ = {{StepOp::kReceiveAdd, Position(2)}, {StepOp::kSendPartial, Position(1)},
                                            {StepOp::kReceiveTotal, Position(2)}};
};

class Executor : public testing::Test {
 protected:
  Executor() { executor_.Begin(20); }
  Status Receive(std::uint32_t f, FrameKind kind, std::uint32_t from) {
    Frame frame;
    frame.header.kind = kind;
    frame.header.position = from;
    return executor_.OnFrame(f, frame);
  }
  Actions actions_;
  ScheduleExecutor executor_{&actions_, 1 << 20, kCap};
};

TEST_F(Executor, KeepsWhatComesEarlyUntilItsTurn) {
  EXPECT_TRUE(Receive(0, FrameKind::kPartial, 2).ok());
  EXPECT_TRUE(Receive(0, FrameKind::kPartial, 1).ok());
  EXPECT_EQ(actions_.received, 0);
  EXPECT_TRUE(executor_.Start(0).ok());
  EXPECT_EQ(actions_.received, 2);
  EXPECT_EQ(actions_.done, 1);
}

TEST_F(Executor, RefusesASecondOneWhetherTheFirstWaitsOrIsUsed) {
  EXPECT_TRUE(Receive(0, FrameKind::kPartial, 2).ok());
  const Status waits = Receive(0, FrameKind::kPartial, 2);
  EXPECT_EQ(waits.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(waits.text(), HasSubstr("second partial of slab 0 from rank 2"));
  EXPECT_TRUE(Receive(1, FrameKind::kPartial, 2).ok());
  EXPECT_TRUE(Receive(1, FrameKind::kTotal, 2).ok()) << "another one of the same frame and position";
  EXPECT_TRUE(executor_.Start(0).ok());
  EXPECT_TRUE(Receive(0, FrameKind::kPartial, 1).ok());
  EXPECT_THAT(Receive(0, FrameKind::kPartial, 2).text(), HasSubstr("unexpected partial of slab 0 from rank 2"));
}

TEST_F(Executor, EmptyFramesCountToo) {
  std::uint32_t kept = 0;
  while (kept < 20 && Receive(kept, FrameKind::kPartial, 2).ok()) ++kept;
  EXPECT_EQ(kept, kCap / ScheduleExecutor::kParkedFrameBytes);
  EXPECT_THAT(Receive(kept, FrameKind::kPartial, 2).text(), HasSubstr("exceed the credit"));
}

}  // namespace
}  // namespace tally
