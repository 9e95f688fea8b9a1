// Owner: weights, who divides, residuals of lossy replies, void slabs, two-way compression.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "compress/flush_denormals.h"
#include "tests/unit/server_core/owner_world.h"

namespace tally {
namespace {

float Constant(std::uint32_t, std::uint32_t, std::size_t) { return 1.0f; }

TEST(OwnerReply, DividesOnceByTheSumOfWeights) {
  OwnerWorld world(3, {{"a", 100}});
  const double weights[] = {3.0, 0.5, 7.25};
  for (const std::uint32_t p : {1u, 2u, 0u}) {
    const auto weighted = [&](std::uint32_t at, std::uint32_t u, std::size_t i) {
      return static_cast<float>(weights[at]) * OrderedValue(at, u, i);
    };
    ASSERT_TRUE(world.Send(world.Push(p, {0}, weighted, 0, 0, weights[p])).ok());
  }
  const auto reply = world.Replies().at(0);
  EXPECT_EQ(reply.weight, 10.75);
  const auto weighted = [&](std::uint32_t at, std::uint32_t u, std::size_t i) {
    return static_cast<float>(weights[at]) * OrderedValue(at, u, i);
  };
  std::vector<float> expected = world.OrderedSum(0, world.SlabOrder(0), weighted);
  for (float& x : expected) x = x / 10.75f;
  EXPECT_TRUE(SameBits(reply.values, expected));
}

TEST(OwnerReply, WeightsAddInDoubleAndRoundOnce) {
  OwnerWorld world(3, {{"a", 4}});
  // In fp32 each 2^-24 would be lost beside 1; together they make the next number.
  const double weights[] = {1.0, 0x1p-24, 0x1p-24};
  for (const std::uint32_t p : {0u, 1u, 2u}) {
    ASSERT_TRUE(world.Send(world.Push(p, {0}, Constant, 0, 0, weights[p])).ok());
  }
  EXPECT_EQ(world.Replies().at(0).weight, 1.0 + 0x1p-23);
}

// What a receiver makes of a reply.
std::vector<float> Mean(const OwnerWorld& world, std::uint32_t slab, const OwnerWorld::Decoded& reply) {
  std::vector<float> mean = reply.values;
  if (world.codec(slab).traits().divided_by == DividedBy::kOwner) return mean;
  for (float& x : mean) x = reply.weight == 0 ? 0.0f : x / static_cast<float>(reply.weight);
  return mean;
}

// Each codec's reply by its definition, over several steps with residuals.
TEST(OwnerReply, EveryCodecFollowsItsDefinition) {
  Config::Compression compression;
  compression.ratio = 0.3;
  const std::vector<TestTensor> tensors = {
      {"a", 700}, {"b", 700, "int8"}, {"c", 700, "fp16"}, {"d", 700, "topk"}, {"e", 700, "bf16"}};
  OwnerWorld world(3, tensors, {}, compression);
  ASSERT_EQ(world.all.size(), 5u);
  std::vector<std::vector<float>> e(5, std::vector<float>(700, 0.0f));
  for (std::uint64_t step = 0; step < 6; ++step) {
    const auto value = [step](std::uint32_t p, std::uint32_t u, std::size_t i) {
      return static_cast<float>(static_cast<int>((i * 7 + p * 31 + u + step * 3) % 200) - 100);
    };
    const bool skipped_before = step == 3;
    world.replies.clear();
    for (const std::uint32_t p : {2u, 0u, 1u}) {
      for (const std::uint32_t u : world.all) {
        ASSERT_TRUE(world.Send(world.Push(p, {u}, value, step, skipped_before ? kFlagPreviousSkipped : 0, 2)).ok());
      }
    }
    for (const auto& [u, reply] : world.Replies()) {
      const Codec& codec = world.codec(u);
      std::vector<float> sum(700);
      bool first = true;
      for (const std::uint32_t p : world.SlabOrder(u)) {
        const std::vector<float> values = world.Values(p, u, value);
        std::vector<std::byte> bytes(codec.EncodedBytes(700));
        codec.Encode({}, values.data(), 700, bytes.data(), nullptr);
        first ? codec.Decode(bytes, 700, sum.data()) : codec.DecodeAdd(bytes, 700, sum.data());
        first = false;
      }
      std::vector<float> r(700), message(700), decoded(700), rest(700);
      for (std::size_t i = 0; i < 700; ++i) r[i] = sum[i] + (codec.traits().lossy ? e[u][i] : 0.0f);
      const bool owner_divides = codec.traits().divided_by == DividedBy::kOwner;
      for (std::size_t i = 0; i < 700; ++i) message[i] = owner_divides ? r[i] / 6.0f : r[i];
      std::vector<std::byte> bytes(codec.EncodedBytes(700));
      codec.Encode({}, message.data(), 700, bytes.data(), decoded.data());
      {
        const FlushDenormals flush;
        for (std::size_t i = 0; i < 700; ++i) rest[i] = r[i] - (owner_divides ? 6.0f * decoded[i] : decoded[i]);
      }
      EXPECT_EQ(reply.weight, 6.0);
      EXPECT_TRUE(SameBits(reply.values, decoded)) << codec.name() << " step " << step;
      if (!codec.traits().lossy) {
        EXPECT_TRUE(world.Residual(u).empty());
        continue;
      }
      EXPECT_TRUE(SameBits(world.Residual(u), e[u])) << codec.name() << " step " << step;
      if (step != 2) e[u] = rest;  // step 2 is skipped
    }
  }
  EXPECT_GT(world.owner->ResidualL1(), 0.0);
}

TEST(OwnerReply, SkipLeavesTheResidualAsItWas) {
  OwnerWorld world(2, {{"a", 500, "int8"}});
  // Pushes are exact, sums beyond 127 are not.
  const auto push = [&](std::uint64_t step, std::uint16_t flags = 0) {
    const auto value = [step](std::uint32_t p, std::uint32_t, std::size_t i) {
      return static_cast<float>((i + p) * (step + 1) % 97);
    };
    for (const std::uint32_t p : {0u, 1u}) ASSERT_TRUE(world.Send(world.Push(p, {0}, value, step, flags)).ok());
  };
  push(0);
  EXPECT_EQ(world.owner->ResidualL1(), 0.0) << "tentative until the verdict";
  push(1);
  const std::vector<float> committed = world.Residual(0);
  EXPECT_GT(world.owner->ResidualL1(), 0.0);
  world.owner->OnVerdict(StepId(1), false);
  EXPECT_TRUE(SameBits(world.Residual(0), committed));
  push(2, kFlagPreviousSkipped);
  EXPECT_TRUE(SameBits(world.Residual(0), committed));
  push(3, kFlagPreviousSkipped);
  EXPECT_TRUE(SameBits(world.Residual(0), committed)) << "skipped by the frame's flags";
  world.owner->OnVerdict(StepId(3), true);
  EXPECT_FALSE(SameBits(world.Residual(0), committed));
}

TEST(OwnerReply, AVoidPushVoidsItsSlabAloneOnceAllAreIn) {
  OwnerWorld world(3, {{"a", 9000, "int8"}});
  ASSERT_EQ(world.all.size(), 3u);
  for (const std::uint32_t p : {0u, 2u}) ASSERT_TRUE(world.Send(world.Push(p, world.all, IntegerValue)).ok());
  ASSERT_TRUE(world.Send(world.Push(1, {1}, IntegerValue, 0, kFlagNonFinite)).ok());
  ASSERT_EQ(world.replies.size(), 1u);
  EXPECT_EQ(world.replies[0].header.flags, kFlagNonFinite);
  EXPECT_TRUE(world.replies[0].payload.empty());
  ASSERT_TRUE(world.Send(world.Push(1, {0, 2}, IntegerValue)).ok());
  const auto replies = world.Replies();
  EXPECT_EQ(replies.size(), 3u);
  EXPECT_TRUE(replies.at(1).non_finite);
  EXPECT_FALSE(replies.at(0).non_finite || replies.at(2).non_finite);
  EXPECT_EQ(world.owner->stats().non_finite_slabs, 1u);
  // Repeated, the same answer; and the step changes no residual, whatever the verdict claims.
  world.replies.clear();
  ASSERT_TRUE(world.Send(world.Push(2, {1}, IntegerValue, 0, kFlagNonFinite)).ok());
  EXPECT_TRUE(world.Replies().at(1).non_finite);
  world.owner->OnVerdict(StepId(0), true);
  EXPECT_EQ(world.owner->ResidualL1(), 0.0);
}

TEST(OwnerReply, AVoidSlabWaitsForEveryPosition) {
  for (const bool deterministic : {true, false}) {
    for (const std::uint32_t bad : {0u, 1u, 2u}) {
      OwnerWorld world(3, {{"a", 10}}, {.deterministic = deterministic});
      for (const std::uint32_t p : {2u, 0u, 1u}) {
        EXPECT_TRUE(world.replies.empty());
        ASSERT_TRUE(world.Send(world.Push(p, {0}, IntegerValue, 0, p == bad ? kFlagNonFinite : 0)).ok());
      }
      EXPECT_TRUE(world.Replies().at(0).non_finite);
      EXPECT_EQ(world.owner->stats().accumulator_bytes, 0u);
      EXPECT_EQ(world.owner->stats().held_bytes, 0u);
    }
  }
}

// Sums and means that overflow, values that are not finite under `none`.
TEST(OwnerReply, AWrongSumVoidsTheSlab) {
  const float huge = 3e38f;
  for (const char* codec : {"none", "bf16", "int8", "topk"}) {
    OwnerWorld world(2, {{"a", 300, codec}, {"b", 300, codec}});
    const auto value = [huge](std::uint32_t, std::uint32_t u, std::size_t i) { return u == 0 && i == 7 ? huge : 1.0f; };
    for (const std::uint32_t p : {0u, 1u}) ASSERT_TRUE(world.Send(world.Push(p, {0, 1}, value)).ok());
    const auto replies = world.Replies();
    EXPECT_TRUE(replies.at(0).non_finite) << codec;
    EXPECT_FALSE(replies.at(1).non_finite) << codec;
    EXPECT_EQ(Mean(world, 1, replies.at(1))[3], codec == std::string("topk") ? replies.at(1).values[3] / 2.0f : 1.0f);
  }
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    OwnerWorld world(2, {{"a", 300}});
    for (const std::uint32_t p : {0u, 1u}) {
      ASSERT_TRUE(world.Send(world.Push(p, {0}, [&](std::uint32_t at, auto...) { return at == 1 ? bad : 1.0f; })).ok());
    }
    EXPECT_TRUE(world.Replies().at(0).non_finite);
  }
  OwnerWorld world(1, {{"a", 300}});
  ASSERT_TRUE(world.Send(world.Push(0, {0}, [](auto...) { return 1e30f; }, 0, 0, 0x1p-60)).ok());
  EXPECT_TRUE(world.Replies().at(0).non_finite) << "the mean overflows";
}

// C20: after a void step everything goes on as if it had not been.
TEST(OwnerReply, AVoidStepLeavesNoTrace) {
  for (const char* codec : {"none", "fp16", "bf16", "int8", "int4", "onebit", "topk"}) {
    std::vector<std::vector<float>> results[2];
    for (const bool with_void : {false, true}) {
      OwnerWorld world(2, {{"a", 600, codec}});
      std::uint64_t step = 0;
      std::uint16_t verdict = 0;
      for (int round = 0; round < 12; ++round) {
        const auto value = [round](std::uint32_t p, std::uint32_t, std::size_t i) {
          return 0.37f * static_cast<float>(i % 50) + static_cast<float>(p) * 1.3f + static_cast<float>(round);
        };
        if (round == 6 && with_void) {
          ASSERT_TRUE(world.Send(world.Push(0, {0}, value, step, verdict)).ok());
          ASSERT_TRUE(world.Send(world.Push(1, {0}, value, step, kFlagNonFinite)).ok());
          ++step;
          verdict = kFlagPreviousSkipped;
        }
        world.replies.clear();
        for (const std::uint32_t p : {1u, 0u}) ASSERT_TRUE(world.Send(world.Push(p, {0}, value, step, verdict)).ok());
        results[with_void ? 1 : 0].push_back(world.Replies().at(0).values);
        ++step;
        verdict = 0;
      }
    }
    EXPECT_EQ(results[0], results[1]) << codec;
  }
}

// With codecs that carry these numbers as they are.
TEST(OwnerReply, NoWeightGivesZerosAndKeepsWhatCame) {
  for (const char* codec : {"none", "fp16", "bf16", "int8", "int4", "topk"}) {
    OwnerWorld world(2, {{"a", 300, codec}});
    // With weight 0 only residuals arrive; `none` has none.
    const bool lossy = world.codec(0).traits().lossy;
    const auto value = [lossy](std::uint32_t, std::uint32_t, std::size_t i) {
      return lossy && i < 3 ? static_cast<float>(i + 1) : 0.0f;
    };
    for (const std::uint32_t p : {0u, 1u}) ASSERT_TRUE(world.Send(world.Push(p, {0}, value, 0, 0, 0)).ok());
    const auto reply = world.Replies().at(0);
    EXPECT_EQ(reply.weight, 0.0);
    EXPECT_FALSE(reply.non_finite);
    EXPECT_EQ(Mean(world, 0, reply), std::vector<float>(300, 0.0f)) << codec;
    EXPECT_EQ(reply.values, std::vector<float>(300, 0.0f)) << codec;
    world.owner->OnVerdict(StepId(0), true);
    if (!lossy) continue;
    const std::vector<float> residual = world.Residual(0);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(residual[i], static_cast<float>(2 * (i + 1))) << codec;
  }
  // A void sum stays void without weight.
  OwnerWorld world(1, {{"a", 3}});
  const auto infinite = [](auto...) { return std::numeric_limits<float>::infinity(); };
  ASSERT_TRUE(world.Send(world.Push(0, {0}, infinite, 0, 0, 0)).ok());
  EXPECT_TRUE(world.Replies().at(0).non_finite);
}

TEST(OwnerReply, SlabsWhoseWeightsRoundedDifferentlyTravelApart) {
  OwnerWorld world(4, {{"a", 16384}});
  ASSERT_EQ(world.all.size(), 4u);
  // Slab 3 adds the small ones first, which lifts the sum above halfway between two fp32 numbers; else they vanish.
  const double weights[] = {2.0, 2.0, 0x1p30, 0x1p54};
  for (const std::uint32_t p : {0u, 1u, 2u, 3u}) {
    ASSERT_TRUE(world.Send(world.Push(p, world.all, Constant, 0, 0, weights[p])).ok());
  }
  ASSERT_EQ(world.replies.size(), 2u);
  EXPECT_EQ(world.replies[0].header.slabs, (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(world.replies[0].header.weight, 0x1p54);
  EXPECT_EQ(world.replies[1].header.slabs, std::vector<std::uint32_t>{3});
  EXPECT_EQ(world.replies[1].header.weight, 0x1p54 + 0x1p31);
  EXPECT_EQ(world.Replies().size(), 4u);
}

struct TwoWay {
  const char* codec;
  double ratio;
  std::size_t elements;
  ValueOf value;
  std::vector<double> mean;
};

// C18: constant input, compressed both ways. The running mean of what is delivered tends to the true mean because the
// owner keeps what its reply lost; without that it does not.
double RunningError(const TwoWay& test, bool owner_feedback, int rounds) {
  Config::Compression compression;
  compression.ratio = test.ratio;
  OwnerOptions options;
  options.error_feedback = owner_feedback;
  OwnerWorld world(2, {{"a", test.elements, test.codec}}, options, compression);
  const std::size_t n = test.elements;
  std::vector<std::vector<float>> e(2, std::vector<float>(n, 0.0f));
  std::vector<double> delivered(n, 0.0);
  for (int round = 0; round < rounds; ++round) {
    world.replies.clear();
    for (const std::uint32_t p : {0u, 1u}) {
      const std::vector<float> g = world.Values(p, 0, test.value);
      Frame frame = world.Push(p, {0}, test.value, static_cast<std::uint64_t>(round));
      std::vector<float> next(n);
      EXPECT_TRUE(
          world.codec(0).EncodeWithFeedback({}, g.data(), 1.0f, e[p].data(), next.data(), n, frame.payload.data()));
      e[p] = next;
      EXPECT_TRUE(world.Send(std::move(frame)).ok());
    }
    const std::vector<float> mean = Mean(world, 0, world.Replies().at(0));
    for (std::size_t i = 0; i < n; ++i) delivered[i] += static_cast<double>(mean[i]);
  }
  double worst = 0;
  for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(delivered[i] / rounds - test.mean[i]));
  return worst;
}

TEST(OwnerReply, TwoWayCompressionTendsToTheMean) {
  const TwoWay tests[] = {
      // Each push is exact; the mean lies between two numbers of the format, nearer to the lower one.
      {"bf16", 0.01, 1, [](std::uint32_t p, auto...) { return p == 0 ? 256.0f : 1.0f; }, {128.5}},
      {"fp16", 0.01, 1, [](std::uint32_t p, auto...) { return p == 0 ? 2048.0f : 0.5f; }, {1024.25}},
      // Each push is exact; the sum's scale swallows the second element.
      {"int8", 0.01, 2, [](std::uint32_t p, auto, std::size_t i) { return i == 0 ? 120.0f : p == 0 ? 1.0f : 0.0f; },
       {120.0, 0.5}},
      {"int4", 0.01, 2, [](std::uint32_t p, auto, std::size_t i) { return i == 0 ? 64.0f : p == 0 ? 16.0f : 0.0f; },
       {64.0, 8.0}},
      // The sum of what the workers send has elements of two magnitudes, its reply of one.
      {"onebit", 0.01, 2,
       [](std::uint32_t p, auto, std::size_t i) { return i == 0 ? (p == 0 ? 3.0f : 1.0f) : p == 0 ? 1.0f : -1.0f; },
       {2.0, 0.0}},
      // The two workers' largest elements collide at the owner.
      {"topk", 0.5, 2, [](std::uint32_t p, std::uint32_t, std::size_t i) { return p == i ? 5.0f : 1.0f; }, {3.0, 3.0}},
  };
  for (const TwoWay& test : tests) {
    const double at_200 = RunningError(test, true, 200);
    const double at_800 = RunningError(test, true, 800);
    const double without = RunningError(test, false, 800);
    const double size = std::abs(test.mean[0]);
    EXPECT_LE(at_200, size * 8 / 200) << test.codec;
    EXPECT_LE(at_800, size * 8 / 800) << test.codec;
    EXPECT_GT(without, at_800 * 3) << test.codec;
    EXPECT_GT(without, 0.2) << test.codec;
  }
}

}  // namespace
}  // namespace tally
