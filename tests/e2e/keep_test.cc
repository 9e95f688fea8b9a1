// Tensors that a rank keeps (Group::Keep) over real sockets: its residual stays to the last bit, nothing is lost, zeros
// count with the rank's weight, and every exchange gives the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <mutex>

#include "common/schedule/layout.h"
#include "compress/saved_state.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint32_t kWorkers = 4, kSteps = 8;

const std::vector<TensorSpec>& Tensors() {
  static const std::vector<TensorSpec> tensors = {{"a", ElementCount(20'020), DType::kFloat32, {143, 140}},
                                                  {"b", ElementCount(999)},
                                                  {"c", ElementCount(5000), DType::kFloat32, {50, 100}}};
  return tensors;
}

constexpr std::uint64_t kSkipped = 4;

// Which rank keeps which tensor: one, some, all but one; all keep tensor a in step 3.
bool Keeps(std::uint32_t rank, std::uint64_t step, std::uint32_t t) {
  if (step == 0) return false;
  if (step == 3 && t == 0) return true;
  return (rank * 7 + step * 5 + t * 3) % 4 == 0 || (step == 5 && t == 1 && rank != 2) || (step == 6 && rank == 1);
}

// Residuals are the node's where there are node stages: they stay if all its ranks keep the tensor.
bool Stays(const JobSetting& job, std::uint32_t rank, std::uint64_t step, std::uint32_t t) {
  if (job.nodes == 0) return Keeps(rank, step, t);
  for (std::uint32_t r = rank % job.nodes; r < kWorkers; r += job.nodes) {
    if (!Keeps(r, step, t)) return false;
  }
  return true;
}

// A rank's step: gradients of the tensors that it does not keep; garbage in those that it does, which nobody may see.
Result<StepResult> Step(Group* group, std::uint32_t rank) {
  const std::uint64_t step = group->step().value;
  for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
    auto g = group->Input(t);
    for (std::size_t j = 0; j < g.size(); ++j) {
      g[j] = Keeps(rank, step, t) ? std::nanf("") : ExactGradient(rank, step, t, j);
    }
    if (Keeps(rank, step, t)) TALLY_RETURN_IF_ERROR(group->Keep(t));
  }
  for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
    // A bucket of which everything is kept need not be submitted.
    bool needed = false;
    for (const std::uint32_t t : group->bucket(BucketId(b))) needed = needed || !Keeps(rank, step, t);
    if (needed || step % 2 == 0) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
  }
  const std::uint32_t first = group->bucket(BucketId(0)).front();
  if (!Keeps(rank, step, first) && group->Keep(first).kind() != StatusKind::kInvalidArgument) {
    return Internal("a tensor was kept after its bucket was submitted");
  }
  return group->EndStep(step == kSkipped || step == kSteps ? Vote::kSkip : Vote::kCommit);
}

class Kept : public testing::TestWithParam<JobSetting> {};

TEST_P(Kept, ResidualsStayAndNothingIsLost) {
  TestCluster cluster(GetParam().Options(kWorkers));
  std::vector<std::uint64_t> starts;
  std::uint64_t all = 0;
  for (const TensorSpec& tensor : Tensors()) {
    starts.push_back(all);
    all += tensor.elements.value;
  }
  std::mutex mutex;
  std::vector<double> open(all);  // inputs - delivered - residuals
  std::uint32_t stayed = 0;
  double residuals = 0;
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors()));
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      TALLY_ASSIGN_OR_RETURN(const auto bytes_before, group->ExportState());
      TALLY_ASSIGN_OR_RETURN(const SavedState before, DecodeState(bytes_before));
      TALLY_ASSIGN_OR_RETURN(const StepResult result, Step(group, rank));
      if ((result.outcome == Outcome::kSkipped) != (step == kSkipped)) return Internal("outcome: " + result.reason);
      TALLY_ASSIGN_OR_RETURN(const auto bytes_after, group->ExportState());
      TALLY_ASSIGN_OR_RETURN(const SavedState after, DecodeState(bytes_after));
      std::lock_guard lock(mutex);
      for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
        const auto find = [&](const std::vector<SavedTensor>& in) {
          for (const SavedTensor& tensor : in) {
            if (tensor.name == Tensors()[t].name) return tensor.values;
          }
          return std::vector<float>();
        };
        const std::vector<float> e = find(after.residuals.tensors);
        if (Stays(GetParam(), rank, step, t) || step == kSkipped) {
          const auto same = [&](const std::vector<SavedTensor>& a, const std::vector<SavedTensor>& b) {
            const std::vector<float> x = find(a), y = find(b);
            return x.size() == y.size() && (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
          };
          if (!same(before.residuals.tensors, after.residuals.tensors)) return Internal("a kept residual changed");
          if (!same(before.velocities, after.velocities)) return Internal("a kept velocity changed");
          if ((step == 3 && t == 0) && !same(before.carried, after.carried)) return Internal("Q changed, which all keep");
          for (const float x : e) stayed += x != 0;
        }
        if (step == 3 && t == 0) {
          for (const float x : group->Output(t)) {
            if (x != 0) return Internal("all keep the tensor, but something was delivered");
          }
        }
        for (std::size_t j = 0; j < Tensors()[t].elements.value && step != kSkipped; ++j) {
          double& balance = open[starts[t] + j];
          if (!Keeps(rank, step, t)) balance += static_cast<double>(ExactGradient(rank, step, t, j));
          if (rank == 0) balance -= static_cast<double>(group->Output(t)[j]) * kWorkers;
        }
        if (step + 1 != kSteps) continue;
        for (std::size_t j = 0; j < e.size(); ++j) {
          open[starts[t] + j] -= static_cast<double>(e[j]);
          residuals += std::abs(static_cast<double>(e[j]));
        }
        for (const SavedTensor& part : after.owned) {
          if (part.name != Tensors()[t].name) continue;
          for (std::size_t j = 0; j < part.values.size(); ++j) {
            open[starts[t] + part.offset + j] -= static_cast<double>(part.values[j]);
          }
        }
      }
    }
    // Owners hear the last verdict with the frames of one more step, which leaves no trace.
    TALLY_RETURN_IF_ERROR(Step(group, rank).status());
    TALLY_RETURN_IF_ERROR(client.Barrier());
    if (rank == 0) {
      const Layout layout = MakeLayout(Tensors(), std::vector<std::vector<std::uint32_t>>{{2, 1, 0}}, kWorkers).value();
      for (std::uint32_t s = 0; s < GetParam().servers; ++s) {
        cluster.server(s).Inspect([&](const OwnerHost* host) {
          const Owner* owner = host == nullptr ? nullptr : host->owner(GroupId(1));
          for (std::uint32_t u = 0; owner != nullptr && u < layout.slabs.size(); ++u) {
            const auto residual = owner->Residual(SlabId(u));
            for (std::size_t j = 0; j < residual.size(); ++j) {
              open[starts[layout.slabs[u].tensor] + layout.slabs[u].offset + j] -= static_cast<double>(residual[j]);
            }
          }
        });
      }
    }
    return client.Barrier();
  });
  ASSERT_EQ(Failures(statuses), "");
  double missing = 0;
  for (const double x : open) missing += std::abs(x);
  // What is not exact is rounded to 2^-24 of at most 2^10, some ten times an element, rank and step.
  EXPECT_LE(missing, GetParam().exact ? 0 : static_cast<double>(all) * kWorkers * kSteps * 10 * 0x1p-14);
  EXPECT_GT(residuals, 0);
  EXPECT_GT(stayed, 0U) << "no kept residual held anything: the test proves nothing";
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, Kept,
    testing::Values(JobSetting{"ps_int8", 2, {"aggregation.mode=ps", "compression.codec=int8"}},
                    JobSetting{"ps_topk", 2, {"aggregation.mode=ps", "compression.codec=topk", "compression.ratio=0.05"}},
                    JobSetting{"ps_onebit", 1, {"aggregation.mode=ps", "compression.codec=onebit"}, false},
                    JobSetting{"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}},
                    JobSetting{"direct_topk_arrival",
                            0,
                            {"aggregation.mode=ring", "compression.codec=topk", "compression.ratio=0.05",
                             "aggregation.deterministic=false"}},
                    JobSetting{"hybrid_int4", 1, {"aggregation.mode=hybrid", "compression.codec=int4"}},
                    JobSetting{"hybrid_buckets",
                            1,
                            {"aggregation.mode=hybrid", "compression.codec=int8", "bucket.cap=4"}},
                    JobSetting{"nodes_int8", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true, 2},
                    JobSetting{"nodes_ps_topk", 2, {"aggregation.mode=hierarchical", "compression.codec=topk",
                                                    "compression.ratio=0.05", "link.shm=false"}, true, 3},
                    JobSetting{"nodes_powersgd", 1, {"aggregation.mode=hierarchical", "compression.codec=powersgd",
                                                     "compression.start_step=2"}, false, 2},
                    JobSetting{"ring_randomk", 0, {"aggregation.mode=ring", "compression.codec=randomk"}},
                    JobSetting{"tree_randomk",
                            0,
                            {"aggregation.mode=ring", "aggregation.schedule=tree", "compression.codec=randomk"}},
                    JobSetting{"ps_randomk", 1, {"aggregation.mode=ps", "compression.codec=randomk"}},
                    JobSetting{"ring_powersgd",
                            0,
                            {"aggregation.mode=ring", "compression.codec=powersgd",
                             "compression.start_step=0"},
                            false},
                    JobSetting{"halving_doubling_powersgd",
                            0,
                            {"aggregation.mode=ring", "aggregation.schedule=halving_doubling",
                             "compression.codec=powersgd", "compression.start_step=0"},
                            false},
                    JobSetting{"ps_powersgd",
                            2,
                            {"aggregation.mode=ps", "compression.codec=powersgd",
                             "compression.start_step=0"},
                            false}),
    [](const auto& parameter) { return parameter.param.name; });

// dgc's velocity is not conserved; it stays.
TEST(KeptTensors, DgcsVelocityStays) {
  TestCluster cluster(JobSetting{"", 0, {"aggregation.mode=ring", "compression.codec=dgc"}}.Options(kWorkers));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors()));
    TALLY_RETURN_IF_ERROR(Step(group, rank).status());
    for (std::uint32_t t = 0; t < Tensors().size(); ++t) TALLY_RETURN_IF_ERROR(group->Keep(t));
    TALLY_ASSIGN_OR_RETURN(const auto before, group->ExportState());
    TALLY_RETURN_IF_ERROR(group->EndStep().status());
    TALLY_ASSIGN_OR_RETURN(const auto after, group->ExportState());
    TALLY_ASSIGN_OR_RETURN(const SavedState a, DecodeState(before));
    TALLY_ASSIGN_OR_RETURN(const SavedState b, DecodeState(after));
    if (a.velocities.size() != Tensors().size()) return Internal("no velocities");
    for (std::size_t i = 0; i < a.velocities.size(); ++i) {
      if (a.velocities[i].values != b.velocities[i].values) return Internal("a velocity changed");
      if (a.residuals.tensors[i].values != b.residuals.tensors[i].values) return Internal("a residual changed");
    }
    for (std::size_t i = 0; i < a.owned.size(); ++i) {
      if (a.owned[i].values != b.owned[i].values) return Internal("an owner's residual changed");
    }
    return a.owned.empty() ? Internal("no owner's residuals") : Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// Uncompressed and through a linear codec, zeros that travel as a flag give the bits of zeros that travel.
TEST(KeptTensors, AllExchangesDeliverTheSameBits) {
  for (const std::string codec : {"none", "powersgd", "randomk"}) {
    std::vector<float> expected;
    for (const JobSetting& way : {JobSetting{"ring", 0, {"aggregation.mode=ring"}}, JobSetting{"ps", 2, {"aggregation.mode=ps"}},
                               JobSetting{"hybrid", 1, {"aggregation.mode=hybrid"}}}) {
      JobSetting setting = way;
      setting.settings.insert(setting.settings.end(),
                              {"compression.codec=" + codec, "compression.start_step=1"});
      TestCluster cluster(setting.Options(kWorkers));
      std::mutex mutex;
      std::vector<std::vector<float>> results(kWorkers);
      const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
        TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors()));
        std::vector<float> outputs;
        for (std::uint64_t step = 0; step < kSteps; ++step) {
          TALLY_RETURN_IF_ERROR(group->SetWeight(static_cast<float>(1 + rank)));
          TALLY_RETURN_IF_ERROR(Step(group, rank).status());
          for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
            outputs.insert(outputs.end(), group->Output(t).begin(), group->Output(t).end());
          }
        }
        std::lock_guard lock(mutex);
        results[rank] = std::move(outputs);
        return Status::Ok();
      });
      ASSERT_EQ(Failures(statuses), "") << way.name;
      if (expected.empty()) expected = results[0];
      for (const std::vector<float>& result : results) {
        ASSERT_EQ(result.size(), expected.size());
        EXPECT_EQ(std::memcmp(result.data(), expected.data(), result.size() * sizeof(float)), 0) << codec << way.name;
      }
    }
  }
}

}  // namespace
}  // namespace tally::test
