// What codec = auto comes to: by the predicted times alone, for given costs; and that costs are measured at all.
#include "compress/advisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using ::testing::HasSubstr;

// Nanoseconds per element as a core of today has them.
const std::vector<CodecCost> kCosts = {{"none", 4.0, 0.4e-9, 0.4e-9, 0.5e-9},
                                       {"bf16", 2.0, 1.0e-9, 0.5e-9, 0.5e-9},
                                       {"int8", 1.03125, 1.25e-9, 0.5e-9, 0.5e-9}};

AdviceQuestion OwnersOnServers(double bits_per_s, std::uint32_t workers = 4, std::uint32_t servers = 4) {
  return {bits_per_s / 8, workers, servers, true, false};
}

std::string Pick(const AdviceQuestion& question) { return AdviseCodec(question, kCosts).codec; }

TEST(Advisor, CompressesAsFarAsTheWireIsSlow) {
  EXPECT_EQ(Pick(OwnersOnServers(1e9)), "int8");
  EXPECT_EQ(Pick(OwnersOnServers(10e9)), "int8");
  EXPECT_EQ(Pick(OwnersOnServers(800e9)), "none");
  // bf16 lies between where its codec is the cheaper one by more than the bytes that int8 saves besides.
  std::vector<CodecCost> costs = kCosts;
  costs[2].encode_s = 4e-9;
  EXPECT_EQ(AdviseCodec(OwnersOnServers(10e9), costs).codec, "bf16");
}

// per 100 MB, 25 million elements: the wire takes 4 bytes · 25e6 / 1.25e9 B/s; a worker encodes and decodes, 0.8 ns each,
// while one of 4 servers takes (4 · 0.5 + 0.4) / 4 = 0.6 ns.
TEST(Advisor, TellsThePredictedTimes) {
  const Advice advice = AdviseCodec(OwnersOnServers(10e9), kCosts);
  EXPECT_THAT(advice.reason, HasSubstr("none 100 ms (wire 80.0 ms)"));
  EXPECT_THAT(advice.reason, HasSubstr("bf16 77.5 ms (wire 40.0 ms)"));
  EXPECT_THAT(advice.reason, HasSubstr("int8 64.4 ms (wire 20.6 ms)"));
}

TEST(Advisor, ServersThatAreFewMakeTheWireSlow) {
  EXPECT_EQ(Pick(OwnersOnServers(100e9, 64, 64)), "none");
  EXPECT_EQ(Pick(OwnersOnServers(100e9, 64, 1)), "int8");
}

TEST(Advisor, PeersPayTheWireTwiceAndTheOwnersShare) {
  // 2 · 63/64 of the bytes, and besides its own encoding and decoding 1/64 of 64 additions and an encoding.
  const AdviceQuestion direct{10e9 / 8, 64, 0, false, true};
  EXPECT_THAT(AdviseCodec(direct, kCosts).reason, HasSubstr("none 190 ms (wire "));
  EXPECT_EQ(Pick(direct), "int8");
  // Equal shares of an eighth: 7/8 to the others and 3/8 in answers, 1.25 times the 80 ms.
  const AdviceQuestion hybrid{10e9 / 8, 4, 4, true, true};
  EXPECT_THAT(AdviseCodec(hybrid, kCosts).reason, HasSubstr("ms (wire 100 ms), bf16"));
  EXPECT_EQ(Pick(hybrid), "int8");
}

TEST(Advisor, AGainBelowATenthIsNotWorthIt) {
  const std::vector<CodecCost> costs = {{"none", 4.0, 0, 0, 0}, {"bf16", 3.7, 0, 0, 0}, {"int8", 3.61, 0, 0, 0}};
  EXPECT_EQ(AdviseCodec(OwnersOnServers(1e9), costs).codec, "none");
  const std::vector<CodecCost> better = {{"none", 4.0, 0, 0, 0}, {"bf16", 3.7, 0, 0, 0}, {"int8", 3.59, 0, 0, 0}};
  EXPECT_EQ(AdviseCodec(OwnersOnServers(1e9), better).codec, "int8");
}

// Numbers of 16 bits have half the bytes to save, and of codecs of 16 bits they keep their own.
TEST(Advisor, EachTypeIsWeighedAgainstItself) {
  std::vector<CodecCost> costs = kCosts;
  costs.push_back({"fp16", 2.0, 1.0e-9, 0.5e-9, 0.5e-9});
  costs[2].encode_s = 2.5e-9;
  const AutoCodecs fast = AdviseCodecs(OwnersOnServers(12e9), costs).codecs, slow = AdviseCodecs(OwnersOnServers(1e9), costs).codecs;
  EXPECT_EQ(fast.fp32, "bf16");
  EXPECT_EQ(fast.fp16, "fp16");
  EXPECT_EQ(fast.bf16, "bf16");
  for (const DType type : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) EXPECT_EQ(slow.For(type), "int8");
}

TEST(Advisor, NoWireNoCodec) {
  const Advice here = AdviseCodec(OwnersOnServers(0), kCosts);
  EXPECT_EQ(here.codec, "none");
  EXPECT_THAT(here.reason, HasSubstr("nothing crosses a wire"));
  EXPECT_EQ(Pick({1e9, 1, 0, false, true}), "none") << "a worker alone has no peer";
}

TEST(Advisor, CostsAreMeasured) {
  for (const bool feedback : {true, false}) {
    Config::Compression options;
    options.codec = "auto";
    options.error_feedback = feedback;
    const std::vector<CodecCost> costs = MeasureCodecCosts(options, SteadyClock());
    ASSERT_EQ(costs.size(), 4U);
    EXPECT_EQ(costs[0].codec, "none");
    EXPECT_EQ(costs[0].bytes, 4.0);
    EXPECT_EQ(costs[1].bytes, 2.0);
    EXPECT_EQ(costs[2].bytes, 2.0);
    EXPECT_NEAR(costs[3].bytes, 1.0, 0.05);
    const AutoCodecs here = AdviseCodecs(OwnersOnServers(0), costs).codecs;
    EXPECT_EQ(here.fp32, "none");
    EXPECT_EQ(here.fp16, "fp16");
    EXPECT_EQ(here.bf16, "bf16");
    for (const CodecCost& cost : costs) {
      EXPECT_GT(cost.encode_s, 0) << cost.codec;
      EXPECT_GT(cost.decode_s, 0) << cost.codec;
      EXPECT_GT(cost.decode_add_s, 0) << cost.codec;
    }
  }
}

}  // namespace
}  // namespace tally
