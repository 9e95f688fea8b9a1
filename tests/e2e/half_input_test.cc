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

// A ring carries the mean in fp32; divided by the scale it is below what fp16 holds.
TEST(HalfInputLossScale, IsTakenOutOfTheMeanWhichOutputStillHolds) {
  TestCluster cluster({2, 0, {"aggregation.mode=ring"}, {}});
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    const std::vector<TensorSpec> tensors = {{"h", ElementCount(50), DType::kFloat16}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    for (int step = 0; step < 3; ++step) {
      std::ranges::fill(group->Input16(0), std::uint16_t{0x1400});  // 2^-10
      TALLY_RETURN_IF_ERROR(group->SetLossScale(65536));
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      if (group->Output(0)[17] != 0x1p-26F) return Internal("Output: " + std::to_string(group->Output(0)[17]));
      if (group->Output16(0)[17] != 0) return Internal("Output16: " + std::to_string(group->Output16(0)[17]));
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// Steps of 1 and 1 + 2^-10, whose mean fp16 cannot hold, then of zeros: all of it must have come in the end, whenever the
// codec begins and whoever keeps what was rounded off.
class HalfInputStages : public testing::TestWithParam<JobSetting> {};

TEST_P(HalfInputStages, NothingIsLostWhereTheCodecBeginsOrTheJobResumes) {
  constexpr int kOnes = 3, kZeros = 4;
  ClusterOptions options = GetParam().Options(2);
  options.settings.push_back("compression.min_compress_bytes=4096");
  options.settings.push_back("compression.start_step=3");
  TestCluster cluster(options);
  std::mutex mutex;
  double missing[2][2] = {};  // per rank: of a small tensor, of a large one
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    std::vector<TensorSpec> tensors = {{"wide", ElementCount(256 * 512), DType::kFloat32, {256, 512}},
                                       {"small", ElementCount(100), DType::kFloat16},
                                       {"large", ElementCount(5000), DType::kFloat16}};
    for (int i = 0; i < 16; ++i) {  // so that everybody owns some, at other numbers once a linear codec begins
      tensors.push_back({"bias" + std::to_string(i), ElementCount(static_cast<std::uint64_t>(100 + i)), DType::kFloat16});
    }
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    double sums[2] = {};
    for (int step = 0; step < kOnes + kZeros; ++step) {
      for (std::uint32_t t = 1; t < tensors.size(); ++t) {
        const std::uint16_t one = rank == 0 ? 0x3C00 : 0x3C01;
        std::ranges::fill(group->Input16(t), step < kOnes ? one : std::uint16_t{0});
      }
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
        TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      }
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      for (std::uint32_t t : {1U, 2U}) sums[t - 1] += 2.0 * static_cast<double>(group->Output(t)[3]);
      TALLY_ASSIGN_OR_RETURN(const std::vector<std::byte> state, group->ExportState());
      TALLY_RETURN_IF_ERROR(group->ImportState(state).WithContext("step " + std::to_string(step)));
    }
    const std::lock_guard lock(mutex);
    for (const std::uint32_t t : {1U, 2U}) {
      missing[rank][t - 1] = kOnes * (2 + 0x1p-10) - sums[t - 1];
      const std::span<const float> kept = group->Residual(t);
      if (!kept.empty() && kept[3] != 0) return Internal("a worker's residual: the test should have flushed it");
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
  for (const auto& of_rank : missing) {
    EXPECT_EQ(of_rank[0], 0);
    EXPECT_EQ(of_rank[1], 0);
  }
}

const JobSetting kStages[] = {
    {"ps_int8", 1, {"aggregation.mode=ps", "compression.codec=int8"}},
    {"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}},
    {"hybrid_int8", 1, {"aggregation.mode=hybrid", "compression.codec=int8"}},
    {"ps_int8_shared", 1, {"aggregation.mode=ps", "compression.codec=int8_shared"}},
    {"ps_topk_union", 1, {"aggregation.mode=ps", "compression.codec=topk", "compression.ratio=1", "compression.reply=union"}},
    {"ps_powersgd", 1, {"aggregation.mode=ps", "compression.codec=powersgd"}},
    {"hybrid_powersgd", 1, {"aggregation.mode=hybrid", "compression.codec=powersgd"}},
    {"ps_none", 1, {"aggregation.mode=ps"}},
};
INSTANTIATE_TEST_SUITE_P(Codecs, HalfInputStages, testing::ValuesIn(kStages),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace tally::test
