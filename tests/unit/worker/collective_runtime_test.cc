// One rank of three in standalone collectives, the other two played by the test: frames that do not fit are refused.
#include "worker/collective_runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kRanks = 3;
constexpr std::uint64_t kElements = 5000;  // of a block: one piece of each rank

class Surroundings final : public CollectiveEnvironment {
 public:
  struct Sent {
    OwnerRef to;
    FrameHeader header;
  };
  Status Send(OwnerRef to, std::uint32_t, const FrameHeader& header, std::span<const std::byte>, BufferRef) override {
    sent.push_back({to, header});
    return Status::Ok();
  }
  bool Reach(Position) override { return reachable; }
  void Wake() override {}
  void Fail(const Status& why) override {
    if (failure.ok()) failure = why;
  }

  bool reachable = true;
  std::vector<Sent> sent;
  Status failure;
};

class Call : public testing::Test {
 protected:
  Call() : runtime_(MakeOptions(), &pool_, &around_) {}

  static CollectiveRuntime::Options MakeOptions() {
    CollectiveRuntime::Options options;
    options.self = Position(0);
    options.ranks = {Rank(0), Rank(1), Rank(2)};
    options.credit_bytes = 1 << 20;
    options.bytes_per_s = 1e9;
    options.sums = &Schedules().front();
    return options;
  }
  static CollectiveShape Shape(std::uint64_t call) {
    return {.elements = kElements, .dtype = DType::kInt32, .call = call, .kind = CollectiveKind::kReduceScatter};
  }
  void Begin(std::uint64_t call) {
    runtime_.call.completion.Reset();
    runtime_.call.shape = Shape(call);
    runtime_.call.in = in_.data();
    runtime_.call.out = out_.data();
    runtime_.Begin();
  }
  // A partial of a piece as position `from` sends it. Pieces are the owners', one each.
  void Partial(std::uint64_t call, std::uint32_t piece, std::uint32_t from, std::uint64_t stamped) {
    Frame frame;
    frame.header.kind = FrameKind::kPartial;
    frame.header.position = from;
    frame.header.step = StepId(call);
    frame.header.slabs = {piece};
    frame.header.collective = Shape(stamped);
    frame.hold = pool_.Get(kElements * 4);
    frame.payload = frame.hold.bytes();
    std::ranges::fill(frame.payload, std::byte{0});
    runtime_.OnFrame(frame);
  }

  BufferPool pool_;
  Surroundings around_;
  std::vector<std::byte> in_ = std::vector<std::byte>(kRanks * kElements * 4), out_ = std::vector<std::byte>(kElements * 4);
  CollectiveRuntime runtime_;
};

TEST_F(Call, EndsWhenTheNumbersOfAllAreHere) {
  Begin(1);
  ASSERT_FALSE(around_.sent.empty());
  EXPECT_TRUE(around_.sent.front().header.slabs.empty()) << "what the call is comes first";
  EXPECT_EQ(around_.sent.front().header.collective, Shape(1));
  Partial(1, 0, 2, 1);
  EXPECT_FALSE(runtime_.call.completion.done());
  Partial(1, 1, 2, 1);  // to be added to and sent on
  EXPECT_TRUE(runtime_.call.completion.done());
  EXPECT_TRUE(around_.failure.ok()) << around_.failure.text();
}

TEST_F(Call, AFrameStampedWithAnotherCallThanItsOwnIsRefused) {
  Begin(1);
  Partial(1, 0, 2, 2);
  EXPECT_EQ(around_.failure.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(around_.failure.text(), HasSubstr("rank 2 for call 1 is stamped with call 2"));
}

TEST_F(Call, AFrameWithoutAStampIsRefused) {
  Begin(1);
  Partial(1, 0, 2, 0);
  EXPECT_THAT(around_.failure.text(), HasSubstr("stamped with call 0"));
}

// Before this rank has links to all, whatever comes waits; a repeat shows when it starts.
TEST_F(Call, ASecondFrameOfAPieceIsRefused) {
  around_.reachable = false;
  Begin(1);
  Partial(1, 0, 2, 1);
  Partial(1, 0, 2, 1);
  EXPECT_TRUE(around_.failure.ok()) << around_.failure.text();
  around_.reachable = true;
  runtime_.Continue();
  EXPECT_EQ(around_.failure.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(around_.failure.text(), HasSubstr("partial of slab 0 from rank 2"));
}

TEST_F(Call, EarlyFramesAreBoundedEmptyOnesToo) {
  around_.reachable = false;
  Begin(1);
  Frame frame;
  std::uint64_t sent = 0;
  for (; around_.failure.ok() && sent < 1'000'000; ++sent) {
    frame.header.kind = FrameKind::kPartial;
    frame.header.position = 2;
    frame.header.step = StepId(2);
    frame.header.slabs = {static_cast<std::uint32_t>(sent)};
    frame.header.collective = Shape(2);
    frame.payload = {};
    runtime_.OnFrame(frame);
  }
  EXPECT_EQ(around_.failure.kind(), StatusKind::kCorrupt);
  EXPECT_GT(sent, 1000U);
  EXPECT_THAT(around_.failure.text(), HasSubstr("exceed the credit"));
}

TEST_F(Call, AnnouncesACallThatGoesAnotherWay) {
  runtime_.Announce(Shape(7));
  ASSERT_EQ(around_.sent.size(), 1U);
  EXPECT_EQ(around_.sent[0].to, (OwnerRef{Role::kWorker, 1}));
  EXPECT_EQ(around_.sent[0].header.step, StepId(7));
  EXPECT_EQ(around_.sent[0].header.collective, Shape(7));
  EXPECT_EQ(around_.sent[0].header.group, kStandaloneGroup);
  EXPECT_TRUE(around_.sent[0].header.slabs.empty());
}

}  // namespace
}  // namespace tally
