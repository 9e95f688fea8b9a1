// Gradients that callers hold in fp16 and bf16, over real sockets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <tuple>

#include "compress/half_numbers.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint32_t kWorkers = 3;
constexpr std::size_t kElements = 70'000;  // more than a slab
constexpr int kSteps = 12;

// A whole number of at most 60, which both types hold; for several steps the same, so that roundings add up.
float Gradient(std::uint32_t rank, std::size_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + rank * 13 + i / 251) % 121) - 60);
}

std::vector<std::uint16_t> Halves(DType type, std::uint32_t rank) {
  std::vector<float> wide(kElements);
  for (std::size_t i = 0; i < kElements; ++i) wide[i] = Gradient(rank, i);
  std::vector<std::uint16_t> halves(kElements);
  HalfNumbers(type).Narrow(wide.data(), kElements, halves.data());
  return halves;
}

using Case = std::tuple<const char*, DType>;
class HalfInput : public testing::TestWithParam<Case> {
 protected:
  // Largest |inputs - delivered sums| of an element after kSteps, and how much rank 0 sent per step and element.
  struct Ran {
    double off = 0, bytes = 0;
  };
  Ran Run(std::vector<std::string> settings) {
    const auto [mode, type] = GetParam();
    settings.push_back(std::string("aggregation.mode=") + mode);
    TestCluster cluster({kWorkers, std::string(mode) == "ring" ? 0U : 1U, settings, {}});
    std::mutex mutex;
    std::vector<std::vector<std::uint16_t>> last(kWorkers);
    Ran ran;
    const auto statuses = cluster.Run([&, type = type](Client& client, std::uint32_t rank) -> Status {
      const std::vector<TensorSpec> tensors = {{"half", ElementCount(kElements), type},
                                               {"full", ElementCount(100), DType::kFloat32}};
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
      const std::vector<std::uint16_t> mine = Halves(type, rank);
      std::vector<double> sum(kElements);
      if (!group->Input(0).empty() || !group->Input16(1).empty()) return Internal("inputs of the wrong type");
      if (group->Input16(0).size() != kElements || group->Input(1).size() != 100) return Internal("sizes");
      if (rank == 1) TALLY_RETURN_IF_ERROR(group->SetInput16(0, mine));  // the caller's own memory
      const std::uint64_t before = client.stats().bytes_sent;
      for (int step = 0; step < kSteps; ++step) {
        if (rank != 1) std::ranges::copy(mine, group->Input16(0).begin());
        std::ranges::fill(group->Input(1), 0.25F * static_cast<float>(rank));
        for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
          TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
        }
        TALLY_RETURN_IF_ERROR(group->EndStep().status());
        if (group->Output(1)[99] != 0.25F || !group->Output16(1).empty()) return Internal("the fp32 tensor");
        std::vector<std::uint16_t> rounded(kElements);
        HalfNumbers(type).Narrow(group->Output(0).data(), kElements, rounded.data());
        if (!std::ranges::equal(rounded, group->Output16(0))) return Internal("Output16 is not Output, rounded");
        std::vector<float> wide(kElements);
        HalfNumbers(type).Widen(rounded.data(), kElements, wide.data());
        for (std::size_t i = 0; i < kElements; ++i) sum[i] += kWorkers * static_cast<double>(wide[i]);
      }
      const std::lock_guard lock(mutex);
      last[rank].assign(group->Output16(0).begin(), group->Output16(0).end());
      if (rank != 0) return Status::Ok();
      ran.bytes = static_cast<double>(client.stats().bytes_sent - before) / (kSteps * static_cast<double>(kElements));
      for (std::size_t i = 0; i < kElements; ++i) {
        const float all = Gradient(0, i) + Gradient(1, i) + Gradient(2, i);
        ran.off = std::max(ran.off, std::abs(kSteps * static_cast<double>(all) - sum[i]));
      }
      return Status::Ok();
    });
    EXPECT_EQ(Failures(statuses), "");
    EXPECT_EQ(last[0], last[1]);
    EXPECT_EQ(last[0], last[2]);
    return ran;
  }
  bool through_owners() const { return std::string(std::get<0>(GetParam())) != "ring"; }
};

// A mean of at most 60 is rounded by half a spacing, a sum of three by three times as much, here or in what an owner keeps.
TEST_P(HalfInput, WhatIsRoundedOffIsNotLostWhereOwnersSum) {
  const double half_a_spacing = std::get<DType>(GetParam()) == DType::kFloat16 ? 0x1p-6 : 0x1p-3;
  const Ran with = Run({});
  const Ran without = Run({"compression.error_feedback=false"});
  EXPECT_GT(without.off, 3 * 2 * half_a_spacing) << "the roundings do not add up: the test proves nothing";
  if (through_owners()) {
    EXPECT_LE(with.off, 3 * half_a_spacing);
  } else {
    EXPECT_EQ(with.off, without.off) << "a ring sums in fp32 and rounds each mean by itself";
  }
}

TEST_P(HalfInput, TravelsInItsOwnTypeToOwnersAndAsFp32InARing) {
  const double bytes = Run({}).bytes;
  // Through servers all elements go up; with shares on workers 2 of 3 (ring) or 3 of 4 (hybrid), and as many come back.
  const double expected = std::string(std::get<0>(GetParam())) == "ps"     ? 2.0
                          : std::string(std::get<0>(GetParam())) == "ring" ? 4.0 * 4 / 3
                                                                           : 2.0 * (0.75 + 0.5);
  EXPECT_NEAR(bytes, expected, 0.25 * expected);
}

TEST_P(HalfInput, OtherCodecsTakeThemWidened) {
  const Ran ran = Run({"compression.codec=int8"});
  EXPECT_LT(ran.off, 8) << "two residuals of at most half of 1/2, three workers, and the last rounding";
  EXPECT_GT(ran.off, 0);
}

INSTANTIATE_TEST_SUITE_P(Modes, HalfInput,
                         testing::Combine(testing::Values("ps", "ring", "hybrid"),
                                          testing::Values(DType::kFloat16, DType::kBFloat16)),
                         [](const auto& parameter) {
                           return std::string(std::get<0>(parameter.param)) + "_" + DTypeName(std::get<1>(parameter.param));
                         });

TEST(HalfInputFaults, AnInfinitySkipsTheStepAndTypesAreChecked) {
  TestCluster cluster({2, 1, {"aggregation.mode=ps"}, {}});
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    const std::vector<TensorSpec> tensors = {{"h", ElementCount(50), DType::kFloat16},
                                             {"f", ElementCount(50), DType::kFloat32}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    std::vector<float> wide(50);
    std::vector<std::uint16_t> halves(49);
    const Status type = group->SetInput(0, wide), other = group->SetInput16(1, halves), size = group->SetInput16(0, halves);
    if (type.text() != "input of h: the tensor was declared as fp16") return Internal(type.ToString());
    if (other.text() != "input of f: the tensor was declared as fp32") return Internal(other.ToString());
    if (size.text() != "input of h: expected 50 elements, got 49") return Internal(size.ToString());
    for (int step = 0; step < 2; ++step) {
      std::ranges::fill(group->Input16(0), std::uint16_t{0x3C00});
      if (step == 0 && rank == 1) group->Input16(0)[17] = 0x7C00;
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
        TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      }
      TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
      const bool skipped = result.outcome == Outcome::kSkipped && result.reason.find("gradient of tensor h") != std::string::npos;
      if (skipped != (step == 0)) return Internal("step " + std::to_string(step) + ": " + result.reason);
    }
    return group->Output16(0)[17] == 0x3C00 ? Status::Ok() : Internal("the mean of ones");
  });
  EXPECT_EQ(Failures(statuses), "");
}

}  // namespace
}  // namespace tally::test
