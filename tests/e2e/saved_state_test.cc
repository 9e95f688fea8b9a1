// Checkpoints over real sockets: a job that is saved, ended and taken up again gives the bits of one that ran through;
// state that does not belong is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <mutex>

#include "common/schedule/layout.h"
#include "compress/saved_state.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint32_t kWorkers = 3;
constexpr std::uint64_t kElements = 20'020;
constexpr std::uint32_t kHalf = 4;  // steps of each half

const std::vector<TensorSpec>& Tensors() {
  static const std::vector<TensorSpec> tensors = {{"a", ElementCount(kElements), DType::kFloat32, {143, 140}},
                                                  {"b", ElementCount(999)}};
  return tensors;
}

using Rows = std::vector<std::vector<float>>;             // per rank
using States = std::vector<std::vector<std::byte>>;       // per rank

void Fill(Group* group, std::uint32_t rank) {
  for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
    auto g = group->Input(t);
    for (std::size_t j = 0; j < g.size(); ++j) g[j] = ExactGradient(rank, group->step().value, t, j);
  }
}

Status Step(Group* group, Vote vote = Vote::kCommit) {
  for (std::uint32_t b = 0; b < group->bucket_count(); ++b) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
  return group->EndStep(vote).status();
}

struct History {
  Rows outputs{kWorkers};    // of all steps, one after the other
  Rows residuals{kWorkers};  // at the end
  States states{kWorkers};
};

// Steps of a job that begins with `first`, from `states` if there are any. The third one is skipped.
void Train(TestCluster& cluster, std::uint64_t first, std::uint64_t end, const States* states, History* run) {
  std::mutex mutex;
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    GroupOptions options;
    options.first_step = StepId(first);
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), options));
    if (group->step() != StepId(first)) return Internal("the first step's number");
    if (states != nullptr) TALLY_RETURN_IF_ERROR(group->ImportState((*states)[rank]));
    std::vector<float> outputs;
    for (std::uint64_t step = first; step < end; ++step) {
      Fill(group, rank);
      TALLY_RETURN_IF_ERROR(Step(group, step == 2 ? Vote::kSkip : Vote::kCommit));
      for (std::uint32_t t = 0; t < 2 && step != 2; ++t) {
        outputs.insert(outputs.end(), group->Output(t).begin(), group->Output(t).end());
      }
    }
    TALLY_ASSIGN_OR_RETURN(std::vector<std::byte> state, group->ExportState());
    std::lock_guard lock(mutex);
    run->states[rank] = std::move(state);
    run->outputs[rank].insert(run->outputs[rank].end(), outputs.begin(), outputs.end());
    run->residuals[rank].clear();
    for (const std::uint32_t t : {0U, 1U}) {
      run->residuals[rank].insert(run->residuals[rank].end(), group->Residual(t).begin(), group->Residual(t).end());
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

void ExpectSameBits(const Rows& a, const Rows& b) {
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    ASSERT_EQ(a[rank].size(), b[rank].size());
    EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(a[rank])), std::as_bytes(std::span(b[rank])))) << "rank " << rank;
  }
}

class Resumed : public testing::TestWithParam<JobSetting> {};

TEST_P(Resumed, GivesTheBitsOfAJobThatRanThrough) {
  History through, parts;
  {
    TestCluster cluster(GetParam().Options(kWorkers));
    Train(cluster, 0, 2 * kHalf, nullptr, &through);
  }
  {
    TestCluster cluster(GetParam().Options(kWorkers));
    Train(cluster, 0, kHalf, nullptr, &parts);
  }
  TestCluster cluster(GetParam().Options(kWorkers));
  const States states = parts.states;
  Train(cluster, kHalf, 2 * kHalf, &states, &parts);
  ASSERT_FALSE(through.outputs[0].empty());
  ExpectSameBits(through.outputs, parts.outputs);
  ExpectSameBits(through.residuals, parts.residuals);
}

// No server has a residual in the ps jobs here: none's reply is exact, linear codecs, int8_shared and topk's unions leave owners none.
INSTANTIATE_TEST_SUITE_P(
    Jobs, Resumed,
    testing::Values(JobSetting{"ps_none", 1, {"aggregation.mode=ps"}},
                    JobSetting{"ring_powersgd",
                            0,
                            {"aggregation.mode=ring", "compression.codec=powersgd",
                             "compression.start_step=1"}},
                    JobSetting{"ring_powersgd_warming_up",
                            0,
                            {"aggregation.mode=ring", "compression.codec=powersgd",
                             "compression.start_step=5"}},
                    JobSetting{"ps_powersgd",
                            2,
                            {"aggregation.mode=ps", "compression.codec=powersgd", "compression.start_step=4"}},
                    JobSetting{"nodes_int8", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true, 2},
                    JobSetting{"nodes_int8_shared",
                               0,
                               {"aggregation.mode=hierarchical", "compression.codec=int8_shared"},
                               true,
                               2},
                    JobSetting{"nodes_powersgd", 0, {"aggregation.mode=hierarchical", "compression.codec=powersgd"}, true, 2},
                    JobSetting{"ring_randomk", 0, {"aggregation.mode=ring", "compression.codec=randomk"}},
                    JobSetting{"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}},
                    JobSetting{"direct_int8_dealt",
                               0,
                               {"aggregation.mode=ring", "compression.codec=int8"},
                               true,
                               0,
                               true},
                    JobSetting{"ring_powersgd_dealt",
                               0,
                               {"aggregation.mode=ring", "compression.codec=powersgd"},
                               true,
                               0,
                               true},
                    JobSetting{"nodes_topk_dealt",
                               0,
                               {"aggregation.mode=hierarchical", "compression.codec=topk", "compression.ratio=0.05"},
                               true,
                               2,
                               true},
                    JobSetting{"direct_onebit", 0, {"aggregation.mode=ring", "compression.codec=onebit"}},
                    JobSetting{"direct_topk",
                            0,
                            {"aggregation.mode=ring", "compression.codec=topk", "compression.ratio=0.05"}},
                    JobSetting{"ps_int8_shared", 2, {"aggregation.mode=ps", "compression.codec=int8_shared"}},
                    JobSetting{"ps_topk_union",
                            2,
                            {"aggregation.mode=ps", "compression.codec=topk", "compression.ratio=0.05",
                             "compression.reply=union"}},
                    JobSetting{"direct_topk_warming_up",
                            0,
                            {"aggregation.mode=ring", "compression.codec=topk", "compression.ratio=0.05",
                             "compression.start_step=1", "compression.warmup=0.5,0.2", "compression.warmup_steps=2"}},
                    JobSetting{"direct_dgc", 0, {"aggregation.mode=ring", "compression.codec=dgc"}}),
    [](const auto& parameter) { return parameter.param.name; });

// What servers keep as owners is lost between the jobs, and nothing else is.
TEST(SavedState, OverServersOnlyTheOwnersResidualsAreLost) {
  const JobSetting setting{"", 2, {"aggregation.mode=ps", "compression.codec=int8"}};
  std::vector<double> balance(kElements + 999);  // inputs - delivered - residuals
  History run;
  const auto subtract_owners = [&](TestCluster& cluster) {
    double sum = 0;
    const Layout layout = MakeLayout(Tensors(), std::vector<std::vector<std::uint32_t>>{{1, 0}}, kWorkers).value();
    for (const std::uint32_t s : {0U, 1U}) {
      cluster.server(s).Inspect([&](const OwnerHost* host) {
        const Owner* owner = host == nullptr ? nullptr : host->owner(GroupId(1));
        for (std::uint32_t u = 0; owner != nullptr && u < layout.slabs.size(); ++u) {
          const auto residual = owner->Residual(SlabId(u));
          const std::size_t start = layout.slabs[u].tensor * kElements + layout.slabs[u].offset;
          for (std::size_t j = 0; j < residual.size(); ++j) {
            balance[start + j] -= static_cast<double>(residual[j]);
            sum += std::abs(static_cast<double>(residual[j]));
          }
        }
      });
    }
    return sum;
  };
  States states;
  for (std::uint64_t first = 0; first < 2 * kHalf; first += kHalf) {
    TestCluster cluster(setting.Options(kWorkers));
    run.outputs = Rows(kWorkers);
    // The owners' residuals are read while the workers are still in the job.
    std::mutex mutex;
    double owners = 0;
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      GroupOptions options;
      options.first_step = StepId(first);
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), options));
      if (first != 0) TALLY_RETURN_IF_ERROR(group->ImportState(states[rank]));
      for (std::uint64_t step = first; step < first + kHalf; ++step) {
        Fill(group, rank);
        TALLY_RETURN_IF_ERROR(Step(group));
        std::lock_guard lock(mutex);
        for (const std::uint32_t t : {0U, 1U}) {
          for (std::size_t j = 0; j < group->Input(t).size(); ++j) {
            balance[t * kElements + j] += static_cast<double>(group->Input(t)[j]);
            if (rank == 0) balance[t * kElements + j] -= static_cast<double>(group->Output(t)[j]) * kWorkers;
          }
        }
      }
      TALLY_ASSIGN_OR_RETURN(const auto state, group->ExportState());
      {
        std::lock_guard lock(mutex);
        states.resize(kWorkers);
        states[rank] = state;
        for (std::uint32_t t = 0; t < 2 && first != 0; ++t) {
          for (std::size_t j = 0; j < group->Residual(t).size(); ++j) {
            balance[t * kElements + j] -= static_cast<double>(group->Residual(t)[j]);
          }
        }
      }
      // Owners hear the last verdict with the frames of one more step, which leaves no trace.
      TALLY_RETURN_IF_ERROR(Step(group, Vote::kSkip));
      TALLY_RETURN_IF_ERROR(client.Barrier());
      if (rank == 0) owners = subtract_owners(cluster);
      return client.Barrier();
    });
    ASSERT_EQ(Failures(statuses), "");
    EXPECT_GT(owners, 0);
  }
  double missing = 0;
  for (const double b : balance) missing += std::abs(b);
  // Means of three are rounded: half a unit of 2^-17 a step and element.
  EXPECT_LE(missing, static_cast<double>(balance.size()) * 2 * kHalf * kWorkers * 0x1p-18);
}

// One job's attempts at wrong state: each is refused with both values and changes nothing.
TEST(SavedState, ThatDoesNotBelongIsRefused) {
  const JobSetting setting{"", 0, {"aggregation.mode=ring", "compression.codec=int8"}};
  History run;
  {
    TestCluster cluster(setting.Options(kWorkers));
    Train(cluster, 0, kHalf, nullptr, &run);
  }
  const auto attempt = [&](const JobSetting& other, std::uint64_t first, const std::vector<TensorSpec>& tensors,
                           const std::function<std::vector<std::byte>(std::uint32_t)>& state,
                           const std::vector<std::string>& named) {
    TestCluster cluster(other.Options(kWorkers));
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      GroupOptions options;
      options.first_step = StepId(first);
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors, options));
      TALLY_ASSIGN_OR_RETURN(const auto before, group->ExportState());
      const Status status = group->ImportState(state(rank));
      if (status.ok()) return Internal("it was taken");
      for (const std::string& text : named) {
        if (status.text().find(text) == std::string::npos) return Internal(text + " is not in: " + status.text());
      }
      TALLY_ASSIGN_OR_RETURN(const auto after, group->ExportState());
      if (before != after) return Internal("it changed something");
      Fill(group, rank);
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
        TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      }
      if (group->ExportState().ok()) return Internal("exported within a step");
      if (group->ImportState(state(rank)).kind() != StatusKind::kInvalidArgument) return Internal("imported in a step");
      return group->EndStep().status();
    });
    EXPECT_EQ(Failures(statuses), "");
  };
  const auto own = [&](std::uint32_t rank) { return run.states[rank]; };
  attempt(setting, kHalf, Tensors(), [&](std::uint32_t rank) { return run.states[(rank + 1) % kWorkers]; },
          {"expected those of rank", "got those of rank"});
  attempt(setting, kHalf + 1, Tensors(), own, {"expected 5", "got 4"});
  attempt(setting, kHalf, {{"a", ElementCount(kElements)}, {"b", ElementCount(999)}}, own, {"layout"});
  attempt({"", 0, {"aggregation.mode=ring", "compression.codec=onebit"}}, kHalf, Tensors(), own, {"codec of"});
  attempt(setting, kHalf, Tensors(),
          [&](std::uint32_t rank) {
            std::vector<std::byte> bytes = run.states[rank];
            bytes[bytes.size() / 2] ^= std::byte{1};
            return bytes;
          },
          {"checksum", "expected", "got"});
}

// A rank that goes on without its state is told from the others, whatever its codec.
TEST(SavedState, OnSomeRanksOnlyIsAnErrorOnAll) {
  const JobSetting setting{"", 1, {"aggregation.mode=ps", "compression.codec=int8"}};
  History run;
  {
    TestCluster cluster(setting.Options(kWorkers));
    Train(cluster, 0, kHalf, nullptr, &run);
  }
  TestCluster cluster(setting.Options(kWorkers));
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    GroupOptions options;
    options.first_step = StepId(kHalf);
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), options));
    if (rank != 1) TALLY_RETURN_IF_ERROR(group->ImportState(run.states[rank]));
    Fill(group, rank);
    return Step(group);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    EXPECT_NE(status.text().find("saved state"), std::string::npos) << status.text();
  }
}

// A slab that a worker owned and servers own now: its owner's residual goes on as the worker's own.
TEST(SavedState, OfAFormerOwnerIsNotLost) {
  const JobSetting direct{"", 0, {"aggregation.mode=ring", "compression.codec=int8"}, true, 0, true};
  const JobSetting ps{"", 1, {"aggregation.mode=ps", "compression.codec=int8"}};
  History before, after;
  {
    TestCluster cluster(direct.Options(kWorkers));
    Train(cluster, 0, 2, nullptr, &before);
  }
  TestCluster cluster(ps.Options(kWorkers));
  Train(cluster, 2, 2, &before.states, &after);
  std::vector<double> owned(kElements + 999), moved(kElements + 999);
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    const auto state = DecodeState(before.states[rank]);
    ASSERT_TRUE(state.ok());
    EXPECT_FALSE(state->owned.empty());
    for (const SavedTensor& part : state->owned) {
      const std::size_t start = (part.name == "b" ? kElements : 0) + part.offset;
      for (std::size_t j = 0; j < part.values.size(); ++j) owned[start + j] += static_cast<double>(part.values[j]);
    }
    for (std::size_t j = 0; j < moved.size(); ++j) {
      moved[j] += static_cast<double>(after.residuals[rank][j]) - static_cast<double>(before.residuals[rank][j]);
    }
  }
  EXPECT_EQ(owned, moved);
}

// On other machines ranks have other positions and own other slabs. All that was kept is still there, once.
TEST(SavedState, OfOtherPositionsIsNotLost) {
  const JobSetting dealt{"", 0, {"aggregation.mode=ring", "compression.codec=int8"}, true, 0, true};
  JobSetting by_rank = dealt;
  by_rank.dealt = false;
  History before, after;
  {
    TestCluster cluster(dealt.Options(kWorkers));
    Train(cluster, 0, 2, nullptr, &before);
  }
  TestCluster cluster(by_rank.Options(kWorkers));
  Train(cluster, 2, 2, &before.states, &after);
  const auto kept = [](const States& states, std::vector<double>* sum) {
    double owned = 0;
    for (const std::vector<std::byte>& bytes : states) {
      const auto state = DecodeState(bytes);
      if (!state.ok()) return -1.0;
      for (const auto* parts : {&state->residuals.tensors, &state->owned}) {
        for (const SavedTensor& part : *parts) {
          const std::size_t start = (part.name == "b" ? kElements : 0) + part.offset;
          for (std::size_t j = 0; j < part.values.size(); ++j) (*sum)[start + j] += static_cast<double>(part.values[j]);
        }
      }
      for (const SavedTensor& part : state->owned) {
        for (const float value : part.values) owned += std::abs(static_cast<double>(value));
      }
    }
    return owned;
  };
  std::vector<double> then(kElements + 999), now(kElements + 999);
  const double owned_then = kept(before.states, &then), owned_now = kept(after.states, &now);
  EXPECT_EQ(then, now);
  EXPECT_GT(owned_then, 0);
  EXPECT_GE(owned_now, 0);
  EXPECT_LT(owned_now, owned_then) << "ranks 1 and 2 own other slabs: what they kept of theirs is their own now";
}

TEST(FirstStep, ThatDiffersBetweenRanksIsRefused) {
  TestCluster cluster(JobSetting{"", 0, {"aggregation.mode=ring"}}.Options(kWorkers));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    GroupOptions options;
    options.first_step = StepId(rank == 2 ? 8 : 7);
    return client.DeclareGroup(Tensors(), options).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    for (const char* named : {"step 7", "step 8", "rank 2"}) {
      EXPECT_NE(status.text().find(named), std::string::npos) << status.text();
    }
  }
}

// Other switches put nodes in another order, with the same ranks on each: whoever carries a slab carries it again.
TEST(SavedState, OfNodesInAnotherOrderIsTakenUp) {
  const auto placed = [](bool moved) {
    ClusterOptions options =
        JobSetting{"", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true}.Options(4);
    options.rank_settings = [moved](std::uint32_t rank) {
      const char* const nodes[] = {"a", "b", "c", "c"};
      return std::vector<std::string>{std::string("topology.node=") + nodes[rank],
                                      std::string("topology.switch=") + (moved && rank == 1 ? "s2" : "s1")};
    };
    return options;
  };
  std::vector<std::vector<std::byte>> states(4);
  const auto run = [&](bool moved, std::uint64_t first) {
    TestCluster cluster(placed(moved));
    return cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      GroupOptions options;
      options.first_step = StepId(first);
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), options));
      if (first != 0) TALLY_RETURN_IF_ERROR(group->ImportState(states[rank]));
      for (int step = 0; step < 2; ++step) {
        Fill(group, rank);
        TALLY_RETURN_IF_ERROR(Step(group));
      }
      TALLY_ASSIGN_OR_RETURN(states[rank], group->ExportState());
      return Status::Ok();
    });
  };
  EXPECT_EQ(Failures(run(false, 0)), "");
  EXPECT_EQ(Failures(run(true, 2)), "");
}

// What a node's codecs keep lies with whoever carries a slab: on other nodes that is somebody else.
TEST(SavedState, OfAnotherArrangementOfNodesIsRefused) {
  const JobSetting on_two{"", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true, 2};
  History history;
  {
    TestCluster cluster(on_two.Options(kWorkers));
    Train(cluster, 0, kHalf, nullptr, &history);
  }
  JobSetting on_one = on_two, without = on_two;
  on_one.nodes = 1;
  without.settings[0] = "aggregation.mode=ring";
  // As many on each node, but other ranks.
  ClusterOptions others = on_two.Options(kWorkers);
  others.rank_settings = [](std::uint32_t rank) {
    return std::vector<std::string>{rank == 2 ? "topology.node=b" : "topology.node=a"};
  };
  for (const ClusterOptions& other : {on_one.Options(kWorkers), without.Options(kWorkers), others}) {
    TestCluster cluster(other);
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      GroupOptions options;
      options.first_step = StepId(kHalf);
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), options));
      return group->ImportState(history.states[rank]);
    });
    for (const Status& status : statuses) {
      EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
      EXPECT_NE(status.text().find("node stages"), std::string::npos) << status.text();
    }
  }
}

}  // namespace
}  // namespace tally::test
