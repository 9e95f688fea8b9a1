// Owner: sums, order, frames, duplicates, the window of steps, verdicts, what it refuses.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "tests/unit/server_core/owner_world.h"

namespace tally {
namespace {

const std::vector<TestTensor> kTensors = {{"fc1.weight", 9000}, {"fc1.bias", 1}, {"fc2.weight", 4099}};

std::vector<float> Divided(std::vector<float> sum, float weight) {
  for (float& x : sum) x = x / weight;
  return sum;
}

// Every position sends every slab, one per frame, in this order of arrival.
void SendAll(OwnerWorld& world, const std::vector<std::uint32_t>& arrival, const ValueOf& value) {
  for (const std::uint32_t p : arrival) {
    for (const std::uint32_t u : world.all) ASSERT_TRUE(world.Send(world.Push(p, {u}, value)).ok());
  }
}

std::vector<std::vector<std::uint32_t>> Arrivals(std::uint32_t workers) {
  std::vector<std::vector<std::uint32_t>> arrivals;
  std::vector<std::uint32_t> order(workers);
  std::iota(order.begin(), order.end(), 0u);
  if (workers <= 4) {
    do arrivals.push_back(order);
    while (std::next_permutation(order.begin(), order.end()));
    return arrivals;
  }
  std::mt19937 random(6);
  for (int i = 0; i < 12; ++i) {
    std::shuffle(order.begin(), order.end(), random);
    arrivals.push_back(order);
  }
  return arrivals;
}

class OwnerByWorkers : public testing::TestWithParam<std::uint32_t> {};

TEST_P(OwnerByWorkers, MeansAreExactForAnyArrival) {
  const std::uint32_t workers = GetParam();
  for (const bool deterministic : {true, false}) {
    for (const auto& arrival : Arrivals(workers)) {
      OwnerWorld world(workers, kTensors, {.deterministic = deterministic});
      SendAll(world, arrival, IntegerValue);
      const auto replies = world.Replies();
      ASSERT_EQ(replies.size(), world.all.size());
      for (const auto& [u, reply] : replies) {
        EXPECT_EQ(reply.weight, workers);
        const std::vector<float> sum = world.OrderedSum(u, world.SlabOrder(u), IntegerValue);
        EXPECT_EQ(reply.values, Divided(sum, static_cast<float>(workers)));
      }
      EXPECT_EQ(world.owner->stats().held_bytes, 0u);
    }
  }
}

TEST_P(OwnerByWorkers, DeterministicSumsFollowThePositions) {
  const std::uint32_t workers = GetParam();
  for (const auto& arrival : Arrivals(workers)) {
    OwnerWorld world(workers, kTensors);
    SendAll(world, arrival, OrderedValue);
    for (const auto& [u, reply] : world.Replies()) {
      const auto expected = Divided(world.OrderedSum(u, world.SlabOrder(u), OrderedValue), static_cast<float>(workers));
      EXPECT_TRUE(SameBits(reply.values, expected)) << "slab " << u;
    }
  }
}

TEST_P(OwnerByWorkers, OtherwiseSumsFollowTheArrival) {
  const std::uint32_t workers = GetParam();
  for (const auto& arrival : Arrivals(workers)) {
    OwnerWorld world(workers, kTensors, {.deterministic = false});
    SendAll(world, arrival, OrderedValue);
    for (const auto& [u, reply] : world.Replies()) {
      const auto expected = Divided(world.OrderedSum(u, arrival, OrderedValue), static_cast<float>(workers));
      EXPECT_TRUE(SameBits(reply.values, expected)) << "slab " << u;
    }
    EXPECT_EQ(world.owner->stats().held_bytes_max, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, OwnerByWorkers, testing::Values(1u, 2u, 3u, 4u, 7u));

TEST(OwnerTest, OrderMattersInTheDataOfTheseTests) {
  OwnerWorld world(3, {{"a", 64}});
  EXPECT_FALSE(SameBits(world.OrderedSum(0, {0, 1, 2}, OrderedValue), world.OrderedSum(0, {2, 1, 0}, OrderedValue)));
}

TEST(OwnerTest, ManyWorkers) {
  OwnerWorld world(130, {{"a", 5}});
  for (std::uint32_t k = 0; k < 130; ++k) {
    EXPECT_TRUE(world.replies.empty());
    ASSERT_TRUE(world.Send(world.Push((k * 77) % 130, {0}, IntegerValue)).ok());
  }
  EXPECT_EQ(world.Replies().at(0).values, Divided(world.OrderedSum(0, world.SlabOrder(0), IntegerValue), 130.0f));
}

TEST(OwnerTest, FirstPartIsCopiedNotAddedToZero) {
  OwnerWorld world(1, {{"a", 2}});
  ASSERT_TRUE(world.Send(world.Push(0, {0}, [](auto...) { return -0.0f; })).ok());
  EXPECT_TRUE(std::signbit(world.Replies().at(0).values[0]));
}

TEST(OwnerTest, FramesOfSeveralSlabsGiveOneReplyPerCompletingPush) {
  OwnerWorld world(3, kTensors);
  const std::size_t slabs = world.all.size();
  ASSERT_GE(slabs, 5u);
  for (const std::uint32_t p : {2u, 0u}) {
    ASSERT_TRUE(world.Send(world.Push(p, world.all, OrderedValue)).ok());
    EXPECT_TRUE(world.replies.empty());
  }
  ASSERT_TRUE(world.Send(world.Push(1, {1}, OrderedValue)).ok());
  ASSERT_EQ(world.replies.size(), 1u);
  std::vector<std::uint32_t> rest = world.all;
  std::erase(rest, 1u);
  ASSERT_TRUE(world.Send(world.Push(1, rest, OrderedValue)).ok());
  ASSERT_EQ(world.replies.size(), 2u);
  const FrameHeader& header = world.replies[1].header;
  EXPECT_EQ(header.slabs, rest);
  EXPECT_EQ(header.job_hash, 77u);
  EXPECT_EQ(header.epoch, EpochId(5));
  EXPECT_EQ(header.group, GroupId(2));
  EXPECT_EQ(header.step, StepId(0));
  EXPECT_EQ(header.bucket, BucketId(0));
  EXPECT_EQ(header.role, Role::kServer);
  EXPECT_EQ(header.weight, 3.0);
  EXPECT_FALSE(world.replies[1].only_one);
  for (const auto& [u, reply] : world.Replies()) {
    EXPECT_TRUE(SameBits(reply.values, Divided(world.OrderedSum(u, world.SlabOrder(u), OrderedValue), 3.0f)));
  }
}

TEST(OwnerTest, OwnsOnlyItsSlabs) {
  OwnerWorld world(2, kTensors);
  world.Restart({1, 3});
  for (const std::uint32_t p : {1u, 0u}) ASSERT_TRUE(world.Send(world.Push(p, {1, 3}, IntegerValue)).ok());
  EXPECT_EQ(world.Replies().size(), 2u);
  EXPECT_EQ(world.Send(world.Push(0, {2}, IntegerValue)).kind(), StatusKind::kCorrupt);
}

// Bytes that somebody else still needs are never summed into.
TEST(OwnerTest, KeepsItsHandsOffSharedBytes) {
  OwnerWorld world(2, {{"a", 3000}});
  for (const std::uint64_t step : {0u, 1u}) {
    Frame first = world.Push(1, {0}, OrderedValue, step);
    const BufferRef kept = first.hold;
    const std::vector<std::byte> before(first.payload.begin(), first.payload.end());
    ASSERT_TRUE(world.Send(std::move(first)).ok());
    ASSERT_TRUE(world.Send(world.Push(0, {0}, OrderedValue, step)).ok());
    EXPECT_TRUE(std::ranges::equal(kept.bytes(), before));
  }
}

TEST(OwnerTest, SumsInPlaceWhereTheBytesAreItsOwn) {
  OwnerWorld world(2, {{"a", 3000}});
  Frame first = world.Push(1, {0}, OrderedValue);
  const std::byte* bytes = first.payload.data();
  ASSERT_TRUE(world.Send(std::move(first)).ok());
  ASSERT_TRUE(world.Send(world.Push(0, {0}, OrderedValue)).ok());
  ASSERT_EQ(world.replies.size(), 1u);
  EXPECT_EQ(world.replies[0].payload.data(), bytes);
}

TEST(OwnerTest, TakesMisalignedPayloads) {
  OwnerWorld world(3, kTensors);
  for (const std::uint32_t p : {0u, 2u, 1u}) {
    for (const std::uint32_t u : world.all) {
      ASSERT_TRUE(world.Send(world.Push(p, {u}, OrderedValue, 0, 0, 1, true)).ok());
    }
  }
  for (const auto& [u, reply] : world.Replies()) {
    EXPECT_TRUE(SameBits(reply.values, Divided(world.OrderedSum(u, world.SlabOrder(u), OrderedValue), 3.0f)));
  }
}

// A reply that is still being sent is not overwritten by the next step.
TEST(OwnerTest, RepliesOutliveTheirStep) {
  OwnerWorld world(1, {{"a", 3000}});
  ASSERT_TRUE(world.Send(world.Push(0, {0}, OrderedValue)).ok());
  const std::vector<float> expected = world.Replies().at(0).values;
  const std::vector<ReplyFrame> sending = std::move(world.replies);
  for (std::uint64_t step = 1; step < 5; ++step) {
    world.replies.clear();
    ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue, step)).ok());
  }
  world.replies = sending;
  EXPECT_TRUE(SameBits(world.Replies().at(0).values, expected));
}

TEST(OwnerTest, DuplicatesCountOnce) {
  OwnerWorld world(3, kTensors);
  for (const std::uint32_t p : {0u, 0u, 2u, 0u, 2u}) {
    for (const std::uint32_t u : world.all) ASSERT_TRUE(world.Send(world.Push(p, {u}, IntegerValue)).ok());
  }
  EXPECT_TRUE(world.replies.empty());
  EXPECT_EQ(world.owner->stats().duplicates, 3 * world.all.size());
  ASSERT_TRUE(world.Send(world.Push(1, world.all, IntegerValue)).ok());
  const auto replies = world.Replies();
  for (const auto& [u, reply] : replies) {
    EXPECT_EQ(reply.values, Divided(world.OrderedSum(u, world.SlabOrder(u), IntegerValue), 3.0f));
  }
  // A repeated push of finished slabs gets their replies again, alone.
  world.replies.clear();
  ASSERT_TRUE(world.Send(world.Push(2, world.all, IntegerValue)).ok());
  EXPECT_EQ(world.replies.size(), world.all.size());
  for (const ReplyFrame& reply : world.replies) {
    EXPECT_TRUE(reply.only_one);
    EXPECT_EQ(reply.only, Position(2));
  }
  for (const auto& [u, reply] : world.Replies()) {
    EXPECT_TRUE(SameBits(reply.values, replies.at(u).values));
    EXPECT_EQ(reply.weight, 3.0);
  }
}

TEST(OwnerTest, AFrameMayMixNewAndRepeatedSlabs) {
  OwnerWorld world(2, kTensors);
  ASSERT_TRUE(world.Send(world.Push(0, {0, 1}, IntegerValue)).ok());
  ASSERT_TRUE(world.Send(world.Push(0, world.all, IntegerValue)).ok());
  EXPECT_EQ(world.owner->stats().duplicates, 2u);
  ASSERT_TRUE(world.Send(world.Push(1, world.all, IntegerValue)).ok());
  const auto replies = world.Replies();
  EXPECT_EQ(replies.size(), world.all.size());
  for (const auto& [u, reply] : replies) {
    EXPECT_EQ(reply.values, Divided(world.OrderedSum(u, world.SlabOrder(u), IntegerValue), 2.0f));
  }
}

TEST(OwnerTest, AcceptsTheOpenStepAndTheNext) {
  OwnerWorld world(2, {{"a", 10}});
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 2)).kind(), StatusKind::kInvalidArgument) << "too new";
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue)).ok());
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 1)).kind(), StatusKind::kCorrupt) << "step 0 is unfinished";
  ASSERT_TRUE(world.Send(world.Push(1, {0}, IntegerValue)).ok());
  Frame silent = world.Push(0, {0}, IntegerValue, 1);
  silent.header.flags = 0;
  EXPECT_EQ(world.Send(std::move(silent)).kind(), StatusKind::kCorrupt) << "says nothing of step 0";
  ASSERT_TRUE(world.Send(world.Push(1, {0}, IntegerValue, 1)).ok());
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 0)).kind(), StatusKind::kInvalidArgument) << "stale";
  EXPECT_EQ(world.owner->stats().stale, 2u);
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 1, kFlagPreviousSkipped)).kind(), StatusKind::kCorrupt)
      << "contradicts the verdict known";
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 1, kFlagPreviousSkipped | kFlagPreviousCommitted)).kind(),
            StatusKind::kCorrupt);
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue, 1)).ok());
  EXPECT_EQ(world.replies.size(), 2u);
}

TEST(OwnerTest, StartsAtTheStepItIsTold) {
  OwnerWorld world(1, {{"a", 10}}, {.first_step = StepId(40)});
  EXPECT_EQ(world.Send(world.Push(0, {0}, IntegerValue, 39)).kind(), StatusKind::kInvalidArgument);
  EXPECT_TRUE(world.Send(world.Push(0, {0}, IntegerValue, 40)).ok());
  EXPECT_EQ(world.Replies().at(0).values, world.Values(0, 0, IntegerValue));
}

TEST(OwnerTest, VerdictsFreeResultsAndMayRepeat) {
  OwnerWorld world(1, {{"a", 50000}});
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue)).ok());
  world.replies.clear();
  EXPECT_GT(world.pool.stats().in_use_bytes, 0u);
  EXPECT_GT(world.owner->stats().accumulator_bytes, 0u);
  world.owner->OnVerdict(StepId(7), true);  // of another step: nothing
  EXPECT_GT(world.pool.stats().in_use_bytes, 0u);
  world.owner->OnVerdict(StepId(0), true);
  EXPECT_EQ(world.pool.stats().in_use_bytes, 0u);
  EXPECT_EQ(world.owner->stats().accumulator_bytes, 0u);
  world.owner->OnVerdict(StepId(0), false);
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue, 1)).ok());
  EXPECT_EQ(world.replies.size(), 1u);
}

TEST(OwnerTest, WarmStepsTakeNothingFromTheSystem) {
  OwnerWorld world(4, {{"a", 9000}, {"b", 9000, "int8"}, {"c", 9000, "bf16"}, {"d", 9000, "topk"}});
  std::uint64_t warm = 0;
  for (std::uint64_t step = 0; step < 20; ++step) {
    for (const std::uint32_t p : {3u, 1u, 0u, 2u}) {
      for (const std::uint32_t u : world.all) ASSERT_TRUE(world.Send(world.Push(p, {u}, IntegerValue, step)).ok());
    }
    EXPECT_EQ(world.Replies().size(), world.all.size());
    world.replies.clear();
    if (step == 2) warm = world.pool.stats().allocations;
  }
  EXPECT_EQ(world.pool.stats().allocations, warm);
}

TEST(OwnerTest, SaysWhatIsMissing) {
  OwnerWorld world(4, kTensors);
  EXPECT_EQ(world.owner->Missing(3), "") << "nobody waits yet";
  ASSERT_TRUE(world.Send(world.Push(1, world.all, IntegerValue)).ok());
  ASSERT_TRUE(world.Send(world.Push(3, world.all, IntegerValue)).ok());
  EXPECT_EQ(world.owner->Missing(1), "slab 0 (fc1.weight) misses ranks 0, ...; and " +
                                         std::to_string(world.all.size() - 1) + " more slabs");
  ASSERT_TRUE(world.Send(world.Push(0, world.all, IntegerValue)).ok());
  std::vector<std::uint32_t> most = world.all;
  most.pop_back();
  ASSERT_TRUE(world.Send(world.Push(2, most, IntegerValue)).ok());
  EXPECT_EQ(world.owner->Missing(3), "slab " + std::to_string(world.all.back()) + " (fc2.weight) misses ranks 2");
  ASSERT_TRUE(world.Send(world.Push(2, {world.all.back()}, IntegerValue)).ok());
  EXPECT_EQ(world.owner->Missing(3), "");
}

TEST(OwnerTest, HoldsNoMoreThanTheCredit) {
  // Two slabs of 4096 elements: positions 1, 0 for slab 0 and 0, 1 for slab 1.
  OwnerWorld world(2, {{"a", 8192}}, {.held_bytes_cap = 16384});
  ASSERT_EQ(world.all.size(), 2u);
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue)).ok());
  EXPECT_EQ(world.owner->stats().held_bytes, 16384u);
  EXPECT_EQ(world.Send(world.Push(1, {1}, IntegerValue)).kind(), StatusKind::kCorrupt);
  ASSERT_TRUE(world.Send(world.Push(0, {1}, IntegerValue)).ok()) << "its turn: not held";
  ASSERT_TRUE(world.Send(world.Push(0, {0}, IntegerValue)).ok()) << "a repetition: not held";
  ASSERT_TRUE(world.Send(world.Push(1, {0, 1}, IntegerValue)).ok());
  EXPECT_EQ(world.Replies().size(), 2u);
  EXPECT_EQ(world.owner->stats().held_bytes_max, 16384u);
}

// Each wrong frame is refused with nothing changed: the step then ends as if it had never come.
TEST(OwnerTest, RefusesWhatIsWrongAndForgetsIt) {
  const std::vector<TestTensor> tensors = {{"a", 9000}, {"b", 300, "int8"}, {"c", 20}};
  using Change = std::function<void(Frame&)>;
  const auto header = [](auto change) { return Change([change](Frame& frame) { change(frame.header); }); };
  const std::vector<std::pair<StatusKind, Change>> changes = {
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.kind = FrameKind::kReply; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.role = Role::kServer; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.job_hash = 78; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.group = GroupId(3); })},
      {StatusKind::kMismatch, header([](FrameHeader& h) { h.epoch = EpochId(4); })},
      {StatusKind::kMismatch, header([](FrameHeader& h) { h.epoch = EpochId(6); })},
      {StatusKind::kInvalidArgument, header([](FrameHeader& h) { h.step = StepId(2); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.step = StepId(1); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.position = 3; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.position = 0xFFFFFFFF; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.flags = kFlagKeep; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.flags = 0x8000; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.flags = kFlagNonFinite; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.codec = 1; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.codec_version = 1; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.bucket = BucketId(1); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.contributors = {1}; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.weight = -1; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.weight = std::numeric_limits<double>::quiet_NaN(); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.weight = std::numeric_limits<double>::infinity(); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.weight = 1e300; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.slabs = {}; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.slabs.back() = 1000; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.slabs.back() = 0xFFFFFFFF; })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.slabs.back() = h.slabs.front(); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { std::swap(h.slabs.front(), h.slabs.back()); })},
      {StatusKind::kCorrupt, header([](FrameHeader& h) { h.slabs.pop_back(); })},
      {StatusKind::kCorrupt, [](Frame& f) { f.payload = f.payload.first(f.payload.size() - 1); }},
      {StatusKind::kCorrupt, [](Frame& f) { f.payload = {}; }},
  };
  OwnerWorld world(3, tensors);
  const std::vector<std::uint32_t> dense = {0, 1, 2, 4};
  ASSERT_EQ(world.codec(3).name(), "int8");
  ASSERT_TRUE(world.Send(world.Push(2, dense, IntegerValue)).ok());
  const auto refuse_all = [&] {
    for (std::size_t i = 0; i < changes.size(); ++i) {
      Frame frame = world.Push(1, dense, OrderedValue);
      changes[i].second(frame);
      const Status status = world.Send(std::move(frame));
      EXPECT_EQ(status.kind(), changes[i].first) << i << ": " << status.text();
    }
    // The second slab's values are bad: the first is not added either.
    Frame bad = world.Push(1, {3}, IntegerValue);
    bad.payload[0] = std::byte{255};
    EXPECT_EQ(world.Send(std::move(bad)).kind(), StatusKind::kCorrupt);
    Frame mixed = world.Push(1, dense, OrderedValue);
    mixed.header.slabs = {0, 1, 2, 3};
    EXPECT_EQ(world.Send(std::move(mixed)).kind(), StatusKind::kCorrupt) << "two codecs in a frame";
    EXPECT_TRUE(world.replies.empty());
  };
  refuse_all();
  const std::uint64_t pushes = world.owner->stats().pushes;
  EXPECT_EQ(pushes, 1u);
  ASSERT_TRUE(world.Send(world.Push(0, dense, IntegerValue)).ok());
  refuse_all();
  ASSERT_TRUE(world.Send(world.Push(1, dense, IntegerValue)).ok());
  const auto replies = world.Replies();
  EXPECT_EQ(replies.size(), dense.size());
  for (const auto& [u, reply] : replies) {
    EXPECT_EQ(reply.values, Divided(world.OrderedSum(u, world.SlabOrder(u), IntegerValue), 3.0f));
  }
}

TEST(OwnerTest, SurvivesRandomFrames) {
  std::mt19937 random(17);
  OwnerWorld world(3, {{"a", 9000}, {"b", 300, "int8"}, {"c", 20, "topk"}, {"d", 20, "fp16"}});
  const auto some = [&](std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); };
  std::uint64_t step = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::uint32_t u = some(static_cast<std::uint32_t>(world.all.size()));
    Frame frame = world.Push(some(4), {u}, IntegerValue, step + some(2));
    for (std::uint32_t change = some(3); change > 0; --change) {
      const auto bytes = static_cast<std::uint32_t>(frame.payload.size());
      switch (some(6)) {
        case 0: frame.header.slabs.push_back(some(9)); break;
        case 1: frame.header.flags = static_cast<std::uint16_t>(some(16)); break;
        case 2: frame.header.codec = static_cast<std::uint8_t>(some(6)); break;
        case 3: frame.header.weight = static_cast<double>(some(5)) - 1.0; break;
        case 4: frame.payload[some(bytes)] = static_cast<std::byte>(some(256)); break;
        default: frame.payload = frame.payload.first(some(bytes + 1)); break;
      }
      if (frame.payload.empty()) break;
    }
    const bool next = frame.header.step.value > step;
    if (world.Send(std::move(frame)).ok() && next) ++step;
    if (i % 100 == 0) world.replies.clear();
  }
  EXPECT_GE(step, 3u) << "valid frames still end steps";
}

// A part flagged keep counts as zeros that were sent, with its weight, in any order of arrival and to the last bit.
TEST_P(OwnerByWorkers, KeptPartsAreZerosWithTheirWeight) {
  const std::uint32_t workers = GetParam();
  const std::vector<TestTensor> tensors = {{"a", 9000}, {"b", 700, "int8"}, {"c", 513, "onebit"}};
  const auto value = [](std::uint32_t position, std::uint32_t slab, std::size_t i) {
    return i % 5 == 0 ? -0.0F : OrderedValue(position, slab, i);
  };
  const auto zero = [](std::uint32_t, std::uint32_t, std::size_t) { return 0.0F; };
  for (const auto& arrival : Arrivals(workers)) {
    OwnerWorld kept(workers, tensors), sent(workers, tensors);
    for (std::uint64_t step = 0; step < 2; ++step) {
      kept.replies.clear();
      sent.replies.clear();
      for (const std::uint32_t p : arrival) {
        for (const std::uint32_t u : kept.all) {
          const bool keeps = (p + u + step) % 2 == 0 && !(workers == 1 && step == 0);
          const double weight = 1 + p;
          ASSERT_TRUE(kept.Send(kept.Push(p, {u}, value, step, keeps ? kFlagKeep : 0, weight)).ok());
          // onebit has no zeros: a slab of them decodes to +0.
          ASSERT_TRUE(sent.Send(sent.Push(p, {u}, keeps ? ValueOf(zero) : ValueOf(value), step, 0, weight)).ok());
        }
      }
      const auto got = kept.Replies(), expected = sent.Replies();
      ASSERT_EQ(got.size(), kept.all.size());
      for (const auto& [u, reply] : got) {
        EXPECT_EQ(reply.weight, expected.at(u).weight);
        if (reply.kept) continue;  // below
        EXPECT_TRUE(SameBits(reply.values, expected.at(u).values)) << "slab " << u << " step " << step;
      }
      EXPECT_EQ(kept.owner->stats().held_bytes, 0U);
      for (OwnerWorld* world : {&kept, &sent}) world->owner->OnVerdict(StepId(step), true);
    }
  }
}

// Kept by everybody: the answer is the flag, and the owner's residual stays, unlike after zeros.
TEST_P(OwnerByWorkers, ASlabThatAllKeepLeavesTheOwnersResidual) {
  const std::uint32_t workers = GetParam();
  OwnerWorld world(workers, {{"a", 700, "int8"}, {"b", 700, "int8"}});
  const auto value = [](std::uint32_t position, std::uint32_t slab, std::size_t i) {
    return std::ldexp(static_cast<float>((i * 37 + position * 11 + slab) % 257) / 7.0F, static_cast<int>(position % 3) * 3);
  };
  for (std::uint32_t p = 0; p < workers; ++p) ASSERT_TRUE(world.Send(world.Push(p, {0, 1}, value)).ok());
  world.owner->OnVerdict(StepId(0), true);
  const std::vector<float> before = world.Residual(0), other = world.Residual(1);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    world.replies.clear();
    const std::uint16_t verdict = step == 3 ? kFlagPreviousSkipped : 0;
    for (std::uint32_t p = 0; p < workers; ++p) {
      ASSERT_TRUE(world.Send(world.Push(p, {0}, value, step, kFlagKeep | verdict, 2)).ok());
      ASSERT_TRUE(world.Send(world.Push(p, {1}, value, step, verdict, 2)).ok());
    }
    const auto replies = world.Replies();
    EXPECT_TRUE(replies.at(0).kept);
    EXPECT_EQ(replies.at(0).weight, 2.0 * workers);
    EXPECT_FALSE(replies.at(1).kept);
    // Asked again, answered again.
    ASSERT_TRUE(world.Send(world.Push(0, {0}, value, step, kFlagKeep | verdict, 2)).ok());
    EXPECT_EQ(world.replies.back().header.flags, kFlagKeep);
    EXPECT_TRUE(world.replies.back().only_one);
    world.owner->OnVerdict(StepId(step), step != 2);
    EXPECT_TRUE(SameBits(world.Residual(0), before));
  }
  // One worker's push is answered without a rest.
  EXPECT_EQ(SameBits(world.Residual(1), other), workers == 1);
}

TEST(Owner, RefusesAKeptPartThatIsNone) {
  OwnerWorld world(2, {{"a", 9000, "int8"}});
  Frame both = world.Push(0, {0}, IntegerValue, 0, kFlagKeep | kFlagNonFinite);
  EXPECT_EQ(world.Send(std::move(both)).kind(), StatusKind::kCorrupt);
  Frame with_payload = world.Push(0, {0}, IntegerValue);
  with_payload.header.flags |= kFlagKeep;
  EXPECT_EQ(world.Send(std::move(with_payload)).kind(), StatusKind::kCorrupt);
  // A non-finite part of another position still voids the slab.
  ASSERT_TRUE(world.Send(world.Push(0, {0, 1}, IntegerValue, 0, kFlagKeep)).ok());
  ASSERT_TRUE(world.Send(world.Push(1, {0}, IntegerValue, 0, kFlagNonFinite)).ok());
  EXPECT_TRUE(world.Replies().at(0).non_finite);
}

}  // namespace
}  // namespace tally
