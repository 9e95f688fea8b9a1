// Steps over real sockets: weights, buckets that never come, votes, non-finite values, and the law of error feedback.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <thread>

#include "compress/saved_state.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

ClusterOptions Options(std::uint32_t workers, std::uint32_t servers, std::vector<std::string> settings) {
  ClusterOptions options;
  options.workers = workers;
  options.servers = servers;
  options.settings = std::move(settings);
  for (const std::string& setting : options.settings) {
    if (setting == "aggregation.mode=hierarchical") options.nodes = 2;
  }
  return options;
}

std::vector<TensorSpec> TwoTensors(std::uint64_t n) {
  return {{"a", ElementCount(n), DType::kFloat32}, {"b", ElementCount(n), DType::kFloat32}};
}

// What the coordinator measures on its machine, all ranks agree on: over a slow wire int8, on one machine nothing.
TEST(CodecAuto, IsTheSameOnAllRanksAndFollowsTheWire) {
  for (const bool slow : {true, false}) {
    for (const std::uint32_t servers : {0U, 2U}) {
      std::vector<std::string> settings = {servers == 0 ? "aggregation.mode=ring" : "aggregation.mode=ps",
                                           "compression.codec=auto"};
      if (slow) settings.push_back("link.rate=100mbit");
      TestCluster cluster(Options(3, servers, settings));
      std::mutex mutex;
      std::vector<std::vector<float>> outputs;
      const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
        TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(20000)));
        for (const std::uint32_t t : {0U, 1U}) {
          for (std::size_t i = 0; i < 20000; ++i) group->Input(t)[i] = ExactGradient(rank, 0, t, i);
        }
        for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
          TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
        }
        TALLY_RETURN_IF_ERROR(group->EndStep().status());
        const bool compressed = client.stats().residual_bytes > 0;
        if (compressed != slow) return Internal(compressed ? "compressed" : "uncompressed");
        const std::lock_guard lock(mutex);
        outputs.emplace_back(group->Output(1).begin(), group->Output(1).end());
        return Status::Ok();
      });
      ASSERT_EQ(Failures(statuses), "") << (slow ? "slow" : "fast") << ", servers " << servers;
      EXPECT_EQ(outputs[0], outputs[1]);
      EXPECT_EQ(outputs[0], outputs[2]);
      float worst = 0;
      for (std::size_t i = 0; i < outputs[0].size(); ++i) {
        const float mean = (ExactGradient(0, 0, 1, i) + ExactGradient(1, 0, 1, i) + ExactGradient(2, 0, 1, i)) / 3;
        worst = std::max(worst, std::abs(outputs[0][i] - mean));
      }
      EXPECT_EQ(worst > 0, slow);
      EXPECT_LT(worst, 6.0F) << "two roundings to 8 bits of numbers below 256";
    }
  }
}

TEST(Saturation, IsCountedAndTheRestWaitsInTheResidual) {
  TestCluster cluster(Options(2, 1, {"aggregation.mode=ps", "compression.codec=fp16",
                                     "compression.min_compress_bytes=0"}));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    const std::vector<TensorSpec> one = {{"w", ElementCount(1000), DType::kFloat32}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(one));
    double sum = 0;
    for (int step = 0; step < 3; ++step) {
      std::fill(group->Input(0).begin(), group->Input(0).end(), step == 0 ? 1.0F : 0.0F);
      for (const std::size_t i : {0U, 700U}) group->Input(0)[i] = step == 0 ? 100000.0F : 0.0F;
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      sum += group->Output(0)[700];
    }
    if (client.stats().saturated != 2) return Internal(std::to_string(client.stats().saturated) + " saturated");
    return sum == 100000.0 ? Status::Ok() : Internal("delivered " + std::to_string(sum));
  });
  EXPECT_EQ(Failures(statuses), "");
}

class Modes : public testing::TestWithParam<const char*> {
 protected:
  ClusterOptions With(std::uint32_t workers, std::vector<std::string> more = {}) const {
    const std::string mode = GetParam();
    std::vector<std::string> settings = {"aggregation.mode=" + mode};
    settings.insert(settings.end(), more.begin(), more.end());
    return Options(workers, mode == "ring" ? 0 : 1, settings);
  }
};

TEST_P(Modes, WeightedMean) {
  TestCluster cluster(With(3));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(70000)));
    // Weights 1, 2, 4 and values 8, 16, 32: the mean is (8 + 32 + 128) / 7 = 24.
    TALLY_RETURN_IF_ERROR(group->SetWeight(static_cast<float>(1U << rank)));
    for (const std::uint32_t t : {0U, 1U}) std::fill(group->Input(t).begin(), group->Input(t).end(), 8.0F * static_cast<float>(1U << rank));
    for (std::uint32_t b = 0; b < group->bucket_count(); ++b) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
    TALLY_RETURN_IF_ERROR(group->EndStep().status());
    if (group->Output(1)[69999] != 24.0F) return Internal("got " + std::to_string(group->Output(1)[69999]));
    // The weight was for that step only.
    for (std::uint32_t b = 0; b < group->bucket_count(); ++b) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
    TALLY_RETURN_IF_ERROR(group->EndStep().status());
    const float expected = (8.0F + 16.0F + 32.0F) / 3.0F;
    if (group->Output(0)[0] != expected) return Internal("second step: got " + std::to_string(group->Output(0)[0]));
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// Gradients that arrive multiplied by a scale that changes leave the same residuals and means, bit by bit.
TEST_P(Modes, TheLossScaleDoesNotReachResidualsAndMeans) {
  const auto train = [this](bool scaled) {
    TestCluster cluster(With(3, {"compression.codec=int8", "compression.min_compress_bytes=0"}));
    std::vector<float> seen;
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(3000)));
      for (int step = 0; step < 6; ++step) {
        const float scale = scaled ? std::ldexp(1.0F, 3 * step - 4) : 1.0F;
        TALLY_RETURN_IF_ERROR(group->SetLossScale(scale));
        for (const std::uint32_t t : {0U, 1U}) {
          for (std::size_t i = 0; i < 3000; ++i) {
            group->Input(t)[i] = scale * (0.37F * static_cast<float>(i % 101) - static_cast<float>(rank + t) * 1.7F);
          }
        }
        for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
          TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
        }
        if (group->SetLossScale(2).ok()) return Internal("a scale was taken after the first Submit");
        TALLY_RETURN_IF_ERROR(group->EndStep().status());
        if (rank != 1) continue;
        seen.insert(seen.end(), group->Output(0).begin(), group->Output(0).end());
        seen.insert(seen.end(), group->Residual(1).begin(), group->Residual(1).end());
      }
      return Status::Ok();
    });
    EXPECT_EQ(Failures(statuses), "");
    return seen;
  };
  const std::vector<float> plain = train(false), scaled = train(true);
  ASSERT_EQ(plain.size(), std::size_t{6 * 6000});
  ASSERT_EQ(scaled.size(), plain.size());
  EXPECT_EQ(std::memcmp(plain.data(), scaled.data(), plain.size() * sizeof(float)), 0);
}

TEST(LossScale, ThatDiffersBetweenRanksIsAnErrorOnAll) {
  TestCluster cluster(Options(3, 0, {"aggregation.mode=ring"}));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(100)));
    for (const float wrong : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), std::nanf("")}) {
      if (group->SetLossScale(wrong).kind() != StatusKind::kInvalidArgument) return Internal("a bad scale was taken");
    }
    TALLY_RETURN_IF_ERROR(group->SetLossScale(rank == 2 ? 512.0F : 1024.0F));
    for (std::uint32_t b = 0; b < group->bucket_count(); ++b) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
    return group->EndStep().status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    for (const char* named : {"512", "1024", "rank 2", "loss scale"}) {
      EXPECT_NE(status.text().find(named), std::string::npos) << named << " in: " << status.text();
    }
  }
}

TEST_P(Modes, BucketNeverSubmittedContributesZero) {
  TestCluster cluster(With(3, {"bucket.cap=4"}));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(5000)));
    if (group->bucket_count() != 2) return Internal("expected a bucket per tensor");
    for (const std::uint32_t t : {0U, 1U}) std::fill(group->Input(t).begin(), group->Input(t).end(), 3.0F);
    for (int step = 0; step < 3; ++step) {
      // Rank 1 forgets tensor 0, everybody but rank 2 forgets tensor 1.
      if (rank != 1) TALLY_RETURN_IF_ERROR(group->Submit(group->bucket_of(0)).status());
      if (rank == 2) TALLY_RETURN_IF_ERROR(group->Submit(group->bucket_of(1)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      if (group->Output(0)[4999] != 2.0F || group->Output(1)[17] != 1.0F) return Internal("wrong mean");
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST_P(Modes, VoteAndNonFiniteSkipTheWholeStepForAll) {
  TestCluster cluster(With(3, {"compression.codec=none"}));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(TwoTensors(9000)));
    const auto step = [&](Vote vote) -> Result<StepResult> {
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      return group->EndStep(vote);
    };
    for (const std::uint32_t t : {0U, 1U}) std::fill(group->Input(t).begin(), group->Input(t).end(), 1.0F);
    TALLY_ASSIGN_OR_RETURN(StepResult result, step(Vote::kCommit));
    if (result.outcome != Outcome::kCommitted) return Internal("step 0 should commit");
    TALLY_ASSIGN_OR_RETURN(result, step(rank == 1 ? Vote::kSkip : Vote::kCommit));
    if (result.outcome != Outcome::kSkipped || result.reason.find("rank 1") == std::string::npos) {
      return Internal("vote: " + result.reason);
    }
    if (rank == 2) group->Input(1)[8999] = std::numeric_limits<float>::infinity();
    TALLY_ASSIGN_OR_RETURN(result, step(Vote::kCommit));
    if (result.outcome != Outcome::kSkipped ||
        result.reason.find("rank 2: non-finite value in the gradient of tensor b") == std::string::npos) {
      return Internal("non-finite: " + result.reason);
    }
    if (rank == 2) group->Input(1)[8999] = 1;
    TALLY_ASSIGN_OR_RETURN(result, step(Vote::kCommit));
    if (result.outcome != Outcome::kCommitted || group->Output(1)[8999] != 1.0F || result.step.value != 3) {
      return Internal("the step after the skips");
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

#if defined(__x86_64__)
// A training program that flushes denormals must not make the engine flush them: every rank would have its own sums.
TEST_P(Modes, TheCallersFloatingPointModeDoesNotReachTheSums) {
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | 0x8040U);  // flush to zero, denormals are zero; the workers' threads inherit it
  TestCluster flushing(With(2));
  const auto sums = flushing.Run([](Client& client, std::uint32_t) -> Status {
    std::vector<float> data(5000);
    const std::uint32_t denormal = 3;
    for (float& d : data) std::memcpy(&d, &denormal, sizeof d);
    TALLY_RETURN_IF_ERROR(client.AllReduce(data));
    std::uint32_t bits = 0;
    std::memcpy(&bits, &data[4999], sizeof bits);
    return bits == 6 ? Status::Ok() : Internal("the sum of two denormals is " + std::to_string(bits));
  });
  __builtin_ia32_ldmxcsr(before);
  EXPECT_EQ(Failures(sums), "");
}
#endif

INSTANTIATE_TEST_SUITE_P(All, Modes, testing::Values("ring", "ps", "hybrid", "hierarchical"));

struct LawCase {
  const char* mode;
  const char* codec;
  std::vector<std::string> more = {};
  bool dealt = false;  // hierarchical: over three nodes, one of which has two workers
};
void PrintTo(const LawCase& c, std::ostream* out) {
  *out << c.mode << "_" << c.codec << (c.dealt ? "_dealt" : "");
  for (const std::string& setting : c.more) *out << " " << setting;
}

class Law : public testing::TestWithParam<LawCase> {};

// Sum of inputs = sum of delivered sums + residuals of workers and owners, element by element, over commits, a skip and
// a step whose weights are all 0.
// The data are multiples of 1/64 below 2^8 and there are four workers, so that every quantity is exact in fp32; onebit's
// scales are not such numbers, there each of about 50 operations on an element rounds by up to 2^-15.
TEST_P(Law, NothingIsLostOverRealSockets) {
  constexpr std::uint32_t kWorkers = 4, kSteps = 7;
  const std::uint32_t servers = std::string(GetParam().mode) == "ring" ? 0 : 2;
  constexpr std::uint64_t kElements = 70070;
  const bool exact = std::string(GetParam().codec) != "powersgd";
  std::vector<std::string> settings = {std::string("aggregation.mode=") + GetParam().mode,
                                       std::string("compression.codec=") + GetParam().codec, "compression.ratio=0.05",
                                       "compression.start_step=1"};
  settings.insert(settings.end(), GetParam().more.begin(), GetParam().more.end());
  ClusterOptions options = Options(kWorkers, servers, settings);
  options.dealt = GetParam().dealt;
  if (options.dealt && options.nodes != 0) options.nodes = 3;
  TestCluster cluster(options);
  std::mutex mutex;
  std::vector<double> open(kElements);  // inputs - delivered - residuals
  const auto add_owners = [&](std::vector<double> balance) {
    for (std::uint32_t s = 0; s < servers; ++s) {
      cluster.server(s).Inspect([&](const OwnerHost* host) {
        const Owner* owner = host == nullptr ? nullptr : host->owner(GroupId(1));
        const Layout layout = MakeLayout(std::vector<TensorSpec>{{"w", ElementCount(kElements), DType::kFloat32}},
                                         std::vector<std::vector<std::uint32_t>>{{0}}, kWorkers).value();
        for (std::uint32_t u = 0; owner != nullptr && u < layout.slabs.size(); ++u) {
          const auto residual = owner->Residual(SlabId(u));
          for (std::size_t j = 0; j < residual.size(); ++j) {
            balance[layout.slabs[u].offset + j] -= static_cast<double>(residual[j]);
          }
        }
      });
    }
    double sum = 0;
    for (const double b : balance) sum += std::abs(b);
    return sum;
  };
  double missing = -1, lossy_residual = 0;
  const double most_missing = std::string(GetParam().codec) == "onebit" ? static_cast<double>(kElements) * 0x1p-10 : 0;
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32, {286, 245}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    for (std::uint32_t step = 0; step < kSteps; ++step) {
      auto g = group->Input(0);
      for (std::size_t j = 0; j < kElements; ++j) {
        g[j] = static_cast<float>((j * 31 + rank * 17 + step * 5) % 16001) / 64.0F - 125.0F;
      }
      if (step == 4) TALLY_RETURN_IF_ERROR(group->SetWeight(0));
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep(step == 2 ? Vote::kSkip : Vote::kCommit));
      if ((result.outcome == Outcome::kSkipped) != (step == 2)) return Internal("outcome");
      if (step == 2) continue;
      std::lock_guard lock(mutex);
      for (std::size_t j = 0; j < kElements; ++j) {
        if (step != 4) open[j] += static_cast<double>(g[j]);
        if (rank == 0) open[j] -= static_cast<double>(group->Output(0)[j]) * kWorkers;
      }
    }
    // With what this worker keeps as an owner.
    TALLY_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, group->ExportState());
    TALLY_ASSIGN_OR_RETURN(const SavedState state, DecodeState(bytes));
    {
      std::lock_guard lock(mutex);
      for (const auto* parts : {&state.residuals.tensors, &state.owned}) {
        for (const SavedTensor& part : *parts) {
          for (std::size_t j = 0; j < part.values.size(); ++j) {
            open[part.offset + j] -= static_cast<double>(part.values[j]);
            lossy_residual += std::abs(static_cast<double>(part.values[j]));
          }
        }
      }
    }
    TALLY_RETURN_IF_ERROR(client.Barrier());
    if (rank == 0) {
      // The last verdict reaches the owners on its own way: wait for it.
      for (int i = 0; i < 200 && !(missing >= 0 && missing <= most_missing); ++i) {
        missing = add_owners(open);
        if (!exact) break;  // no owner has a residual
        if (missing > most_missing) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    return client.Barrier();
  });
  ASSERT_EQ(Failures(statuses), "");
  // PowerSGD's products are rounded: 10^-6 of a gradient's mean magnitude per element and step.
  EXPECT_LE(missing, exact ? most_missing : 1e-6 * 62 * kWorkers * kSteps * kElements);
  if (std::string(GetParam().codec) != "none") {
    EXPECT_GT(lossy_residual, 0) << "the codec lost nothing: the test proves nothing";
  }
}

std::vector<LawCase> LawCases() {
  std::vector<LawCase> cases = {{"ps", "none"}, {"ps", "int8_shared", {"compression.start_step=0"}}};
  for (const char* codec : {"fp16", "bf16", "int8", "int8_shared", "int4", "onebit", "topk", "randomk", "powersgd"}) {
    for (const char* mode : {"ps", "ring", "hybrid", "hierarchical"}) cases.push_back({mode, codec});
    cases.push_back({"hierarchical", codec, {"aggregation.between=ring"}});
  }
  for (const char* codec : {"fp16", "int8", "int8_shared", "topk", "powersgd"}) {
    for (const char* mode : {"ps", "ring", "hybrid", "hierarchical"}) cases.push_back({mode, codec, {}, true});
    cases.push_back({"hierarchical", codec, {"aggregation.between=ring"}, true});
  }
  for (const char* mode : {"ps", "hybrid"}) {
    // Two changes of the ratio, the first in a step that is skipped.
    cases.push_back({mode, "topk", {"compression.warmup=0.5,0.2", "compression.warmup_steps=1"}});
    cases.push_back({mode, "topk", {"compression.reply=union"}});
    cases.push_back(
        {mode, "topk", {"compression.warmup=0.5,0.2", "compression.warmup_steps=2", "compression.reply=union"}});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Codecs, Law, testing::ValuesIn(LawCases()));

// From the step after the first committed one on, owners add int8_shared's codes as integers: the reply of an element is
// two bytes instead of the four of an fp32 sum.
TEST(Int8Shared, RepliesAreIntegersOnceAStepHasCommitted) {
  constexpr std::uint64_t kElements = 200'000;
  TestCluster cluster(Options(2, 1, {"aggregation.mode=ps", "compression.codec=int8_shared"}));
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    for (std::uint32_t step = 0; step < 5; ++step) {
      for (std::size_t j = 0; j < kElements; ++j) group->Input(0)[j] = static_cast<float>((j + rank) % 97);
      const std::uint64_t before = client.stats().bytes_received;
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep(step == 0 || step == 2 ? Vote::kSkip : Vote::kCommit).status());
      const double per_element = static_cast<double>(client.stats().bytes_received - before) / kElements;
      const double expected = step < 2 ? 4 : 2;  // step 0 was skipped, so step 1 has no scales yet
      if (std::abs(per_element - expected) > 0.05) {
        return Internal("step " + std::to_string(step) + ": " + std::to_string(per_element) + " bytes per element");
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

class Linear : public testing::TestWithParam<const char*> {};

// A linear codec is summed alike by servers, by workers and around a ring, and its NaNs skip the step everywhere.
TEST_P(Linear, AllExchangesDeliverTheSameBits) {
  struct Way {
    std::string mode;
    std::vector<std::string> settings;
  };
  std::vector<float> expected;
  for (const Way& way : {Way{"ps", {}}, Way{"ring", {}}, Way{"hybrid", {"bucket.cap=300KiB"}}}) {
    std::vector<std::string> settings = {"aggregation.mode=" + way.mode, std::string("compression.codec=") + GetParam(),
                                         "compression.start_step=1"};
    settings.insert(settings.end(), way.settings.begin(), way.settings.end());
    TestCluster cluster(Options(3, way.mode == "ring" ? 0 : 2, settings));
    std::mutex mutex;
    std::vector<std::vector<float>> results(3);
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      const std::vector<TensorSpec> tensors = {{"a", ElementCount(70'070), DType::kFloat32, {286, 245}},
                                               {"b", ElementCount(999)},
                                               {"c", ElementCount(131'072), DType::kFloat32, {512, 256}}};
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
      std::vector<float> outputs;
      for (std::uint32_t step = 0; step < 4; ++step) {
        for (std::uint32_t t = 0; t < 3; ++t) {
          auto g = group->Input(t);
          for (std::size_t j = 0; j < g.size(); ++j) {
            g[j] = static_cast<float>((j * 131 + rank * 17 + step * 5) % 997) / 7.0F - 60.0F;
          }
        }
        if (step == 2 && rank == 1) group->Input(0)[70'000] = std::numeric_limits<float>::quiet_NaN();
        TALLY_RETURN_IF_ERROR(group->SetWeight(static_cast<float>(1 + rank)));
        for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
          if (step == 3 && rank == 0 && b == 0) continue;  // never submitted
          TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
        }
        TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
        if ((result.outcome == Outcome::kSkipped) != (step == 2)) return Internal("outcome: " + result.reason);
        if (step == 2) {
          const char* wanted = "rank 1: non-finite value in the gradient of tensor a";
          if (result.reason.find(wanted) == std::string::npos) return Internal("reason: " + result.reason);
          if (!std::isnan(group->Output(0)[0])) return Internal("a skipped tensor delivers NaN");
          continue;
        }
        for (std::uint32_t t = 0; t < (way.settings.empty() || step != 3 ? 3U : 0U); ++t) {
          outputs.insert(outputs.end(), group->Output(t).begin(), group->Output(t).end());
        }
      }
      std::lock_guard lock(mutex);
      results[rank] = std::move(outputs);
      return Status::Ok();
    });
    ASSERT_EQ(Failures(statuses), "") << way.mode;
    if (expected.empty()) expected = results[0];
    for (const std::vector<float>& result : results) {
      const std::size_t n = std::min(result.size(), expected.size());
      EXPECT_EQ(std::memcmp(result.data(), expected.data(), n * sizeof(float)), 0) << way.mode;
      EXPECT_GE(n, 2 * 200'000U);
    }
  }
}


INSTANTIATE_TEST_SUITE_P(Codecs, Linear, testing::Values("randomk", "powersgd"));

}  // namespace
}  // namespace tally::test
