// Residuals that follow the learning rate (compression.ef_lr_correction = ratio), over real sockets.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint64_t kElements = 5000;

class LearningRate : public testing::TestWithParam<const char*> {
 protected:
  static ClusterOptions Options(std::uint32_t workers, std::vector<std::string> settings) {
    ClusterOptions options;
    options.workers = workers;
    options.settings = std::move(settings);
    options.settings.push_back("aggregation.mode=ring");
    options.settings.push_back(std::string("compression.codec=") + GetParam());
    options.settings.push_back("compression.start_step=0");
    options.settings.push_back("compression.ratio=0.1");
    return options;
  }
};

const TensorSpec kTensor{"w", ElementCount(kElements), DType::kFloat32, {50, 100}};

Status Step(Group* group, bool gradient, Vote vote = Vote::kCommit) {
  auto g = group->Input(0);
  for (std::size_t j = 0; j < g.size(); ++j) g[j] = gradient ? static_cast<float>((j * j * 7) % 1009) - 500 : 0;
  TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
  return group->EndStep(vote).status();
}

// With a kept tensor the residual shows the factor alone.
TEST_P(LearningRate, RatioIsPartOfTheStep) {
  TestCluster cluster(Options(2, {"compression.ef_lr_correction=ratio"}));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&kTensor, 1)));
    if (group->SetLearningRate(-1).kind() != StatusKind::kInvalidArgument) return Internal("a negative rate was taken");
    TALLY_RETURN_IF_ERROR(Step(group, true));
    std::vector<float> e(group->Residual(0).begin(), group->Residual(0).end());
    const auto keep = [&](float rate, Vote vote, float factor) -> Status {
      TALLY_RETURN_IF_ERROR(group->SetLearningRate(rate));
      TALLY_RETURN_IF_ERROR(group->Keep(0));
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      if (group->SetLearningRate(rate).ok()) return Internal("a rate was taken after the first Submit");
      TALLY_RETURN_IF_ERROR(group->EndStep(vote).status());
      for (float& x : e) x *= factor;
      for (std::size_t j = 0; j < e.size(); ++j) {
        if (group->Residual(0)[j] != e[j]) {
          return Internal("rate " + std::to_string(rate) + ": expected " + std::to_string(e[j]) + ", got " +
                          std::to_string(group->Residual(0)[j]));
        }
      }
      return Status::Ok();
    };
    const float infinity = std::numeric_limits<float>::infinity();
    TALLY_RETURN_IF_ERROR(keep(0.5F, Vote::kCommit, 1));     // no rate before
    TALLY_RETURN_IF_ERROR(keep(0.5F, Vote::kCommit, 1));
    TALLY_RETURN_IF_ERROR(keep(2.0F, Vote::kCommit, 0.25F));
    TALLY_RETURN_IF_ERROR(keep(1.0F, Vote::kCommit, 2));
    TALLY_RETURN_IF_ERROR(keep(0.125F, Vote::kSkip, 1));     // nothing changed …
    TALLY_RETURN_IF_ERROR(keep(2.0F, Vote::kCommit, 0.5F));  // … the rate to compare with is 1 still
    TALLY_RETURN_IF_ERROR(keep(0.125F, Vote::kCommit, 2));   // not 16
    TALLY_RETURN_IF_ERROR(keep(0, Vote::kCommit, 1));
    TALLY_RETURN_IF_ERROR(keep(0.25F, Vote::kCommit, 1));
    TALLY_RETURN_IF_ERROR(keep(infinity, Vote::kCommit, 1));
    TALLY_RETURN_IF_ERROR(keep(0.25F, Vote::kCommit, 1));
    // It is saved, too: the next job compares with it.
    TALLY_ASSIGN_OR_RETURN(const auto state, group->ExportState());
    TALLY_RETURN_IF_ERROR(keep(0.5F, Vote::kSkip, 1));
    GroupOptions options;
    options.name = "again";
    options.first_step = group->step();
    --options.first_step.value;
    TALLY_ASSIGN_OR_RETURN(Group * again, client.DeclareGroup(std::span(&kTensor, 1), options));
    TALLY_RETURN_IF_ERROR(again->ImportState(state));
    group = again;
    return keep(1.0F, Vote::kCommit, 0.25F);
  });
  EXPECT_EQ(Failures(statuses), "");
}

// What a step sends is p = w*g + e*factor: sent and new residual add up to it.
TEST_P(LearningRate, TheScaledResidualIsWhatTheStepSends) {
  for (const bool follow : {true, false}) {
    TestCluster cluster(Options(1, {std::string("compression.ef_lr_correction=") + (follow ? "ratio" : "none")}));
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t) -> Status {
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&kTensor, 1)));
      TALLY_RETURN_IF_ERROR(group->SetLearningRate(1));
      TALLY_RETURN_IF_ERROR(Step(group, true));
      const std::vector<float> e(group->Residual(0).begin(), group->Residual(0).end());
      TALLY_RETURN_IF_ERROR(group->SetLearningRate(2));
      TALLY_RETURN_IF_ERROR(Step(group, false));
      bool any = false;
      for (std::size_t j = 0; j < e.size(); ++j) {
        any = any || std::abs(e[j]) > 0.1F;
        const float sum = group->Output(0)[j] + group->Residual(0)[j];
        const float expected = follow ? e[j] / 2 : e[j];
        if (std::abs(sum - expected) > 0.01F) {
          return Internal("expected " + std::to_string(expected) + ", got " + std::to_string(sum));
        }
      }
      return any ? Status::Ok() : Internal("no residual");
    });
    EXPECT_EQ(Failures(statuses), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Codecs, LearningRate, testing::Values("int8", "randomk", "powersgd"));

TEST(LearningRateOfRanks, ThatDiffersIsAnErrorOnAll) {
  ClusterOptions options;
  options.workers = 3;
  options.settings = {"aggregation.mode=ring", "compression.codec=int8", "compression.ef_lr_correction=ratio"};
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&kTensor, 1)));
    TALLY_RETURN_IF_ERROR(group->SetLearningRate(rank == 1 ? 0.25F : 0.5F));
    return Step(group, true);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    for (const char* named : {"0.25", "0.5", "rank", "learning rate"}) {
      EXPECT_NE(status.text().find(named), std::string::npos) << status.text();
    }
  }
}

}  // namespace
}  // namespace tally::test
