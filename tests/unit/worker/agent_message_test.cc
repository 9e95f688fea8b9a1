#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "worker/agent/message.h"

namespace tally::agent {
namespace {

std::vector<Message> Samples() {
  const StepWeight weight{0.25F, 1.5};
  ClientStats stats{1, 2, 3, 4, 5, 6, 7, 2, 1.5e9, 0.5, 8, 1.25, 9};
  CollectiveShape shape{1000, DType::kBFloat16, ReduceOp::kMax, 0, CollectiveKind::kBroadcast, 3};
  return {Body{1 << 20},
          Memory{std::uint64_t{1} << 40},
          Attach{kProtocol, "0.1.0", "[job]\nname = \"resnet\"\n"},
          DeclareMessage{"model",
                         {{"w", ElementCount{6}, DType::kFloat16, {2, 3}}, {"b", ElementCount{0}}},
                         {{"b"}, {"w"}},
                         StepId{7}},
          Keep{1, 2},
          Submit{3, 4, weight, 0.125F},
          EndStep{5, Vote::kSkip, weight, 0.125F, 1024},
          EndStep{5, Vote::kCommit, {}, 0, 1},
          GiveUp{6, 7, StepId{8}},
          Collective{shape},
          MakeBuffer{12},
          ReduceBuffer{8, ReduceOp::kMean},
          ExportState{9},
          ImportState{10},
          Residual{11, 12},
          AskStats{},
          Leave{},
          Refused{"avg of int32 numbers"},
          Abort{"the data set is gone"},
          Attached{4, 2, 1, EpochId{3}, "owners on 2 servers over zmq"},
          Declared{GroupId{2}, StepId{9}, {{1, 0}, {}}, {{{0, 64}, {1, 128}, {2, 0}}, {}}, "schedule ring over shm"},
          BucketEnd{1, 2, Reply()},
          BucketEnd{1, 2, Reply(PeerLost("rank 1 died"))},
          StepEnd{StepId{4}, Outcome::kSkipped, "rank 2 voted skip"},
          Buffer{{0, 0}, {1, 4096}},
          Stats{stats},
          Reply(Timeout("nothing"))};
}

TEST(AgentMessage, EveryMessageRoundTrips) {
  std::vector<bool> seen(std::variant_size_v<Message>, false);
  for (const Message& message : Samples()) {
    const auto back = Decode(Encode(message));
    ASSERT_TRUE(back.ok()) << message.index() << ": " << back.status().text();
    EXPECT_TRUE(*back == message) << message.index();
    seen[message.index()] = true;
  }
  for (std::size_t kind = 0; kind < seen.size(); ++kind) EXPECT_TRUE(seen[kind]) << "no sample of kind " << kind;
}

TEST(AgentMessage, ValuesThatMakeNoSenseAreRefused) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  CollectiveShape shape;
  shape.op = static_cast<ReduceOp>(9);
  const std::vector<Message> wrong = {Submit{0, 0, {1, kNaN}, 0},  Submit{0, 0, {1, -1}, 0},
                                      Submit{0, 0, {}, -1},        EndStep{0, {}, {}, 0, 0},
                                      EndStep{0, {}, {}, 0, kNaN}, Collective{shape},
                                      ReduceBuffer{0, shape.op}};
  for (const Message& message : wrong) {
    EXPECT_EQ(Decode(Encode(message)).status().kind(), StatusKind::kCorrupt) << message.index();
  }
}

TEST(AgentMessage, AWeightThatOverflowedPassesAsItSkipsTheStep) {
  const Message message = Submit{0, 0, {std::numeric_limits<float>::infinity(), 1e38}, 0};
  const auto back = Decode(Encode(message));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_TRUE(*back == message);
}

TEST(AgentMessage, DamagedBytesNeverCrash) {
  std::mt19937 random(5);
  for (const Message& message : Samples()) {
    const std::vector<std::byte> good = Encode(message);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::byte> bytes = good;
      bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
      if (round % 5 == 0) bytes.resize(random() % bytes.size());
      const auto result = Decode(bytes);
      if (result.ok()) continue;
      EXPECT_TRUE(result.status().kind() == StatusKind::kCorrupt ||
                  result.status().kind() == StatusKind::kUnsupported);
    }
  }
}

TEST(AgentMessage, CollectivesLieWhereBothSidesLook) {
  const auto extent = [](CollectiveKind kind) {
    CollectiveShape shape{5, DType::kFloat16, ReduceOp::kSum};
    shape.kind = kind;
    return ExtentOf(shape, 3);
  };
  EXPECT_EQ(extent(CollectiveKind::kAllReduce).bytes(), 10U);
  EXPECT_EQ(extent(CollectiveKind::kBroadcast).out_offset, 0U);
  const Extent gather = extent(CollectiveKind::kAllGather), scatter = extent(CollectiveKind::kReduceScatter);
  EXPECT_EQ(gather.in_bytes, 10U);
  EXPECT_EQ(gather.out_bytes, 30U);
  EXPECT_EQ(gather.bytes(), 94U);
  EXPECT_EQ(scatter.in_bytes, 30U);
  EXPECT_EQ(scatter.out_bytes, 10U);
  EXPECT_EQ(scatter.out_offset, 64U);
}

}  // namespace
}  // namespace tally::agent
