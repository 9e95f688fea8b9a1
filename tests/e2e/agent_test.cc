// Clients whose engines run in the node's tally-worker: the same sums and bits as with the engine inside, and
// residuals that outlive a training process.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>

#include "compress/saved_state.h"
#include "tests/support/cluster.h"
#include "tests/support/node_daemon.h"

namespace tally::test {
namespace {

constexpr std::uint32_t kRanks = 3;
constexpr const char *kPowerSgd = "compression.codec=powersgd", *kAtOnce = "compression.start_step=0";

const std::vector<TensorSpec>& Tensors() {
  static const std::vector<TensorSpec> tensors = {{"a", ElementCount(70001), DType::kFloat32},
                                                  {"none", ElementCount(0), DType::kFloat32},
                                                  {"m", ElementCount(64 * 48), DType::kFloat32, {64, 48}},
                                                  {"h", ElementCount(1003), DType::kFloat16},
                                                  {"b", ElementCount(333), DType::kFloat32}};
  return tensors;
}

GroupOptions Buckets() { return {"g", {{"b", "h"}, {"m", "none"}, {"a"}}, {}}; }

std::vector<std::string> With(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

// All that a rank sees of a job: outputs and residuals of each step.
using Seen = std::vector<std::vector<float>>;

void Note(std::span<const float> numbers, Seen* seen) { seen->emplace_back(numbers.begin(), numbers.end()); }

bool SameBits(const Seen& a, const Seen& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0) return false;
  }
  return true;
}

// A step with one of everything that a group offers, in turn.
Status Step(Group& group, std::uint32_t rank, Seen* seen) {
  const std::uint64_t step = group.step().value;
  std::vector<std::vector<float>> own(Tensors().size());
  for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
    if (Tensors()[t].dtype == DType::kFloat16) {
      const std::span<std::uint16_t> bits = group.Input16(t);
      for (std::size_t j = 0; j < bits.size(); ++j)
        bits[j] = static_cast<std::uint16_t>(0x3C00 + (j * 7 + rank + step) % 64);
      continue;
    }
    const bool outside = step % 3 == 1 && t == 0;
    own[t].resize(Tensors()[t].elements.value);
    const std::span<float> g = outside ? std::span<float>(own[t]) : group.Input(t);
    for (std::size_t j = 0; j < g.size(); ++j) g[j] = ExactGradient(rank, step, t, j);
    if (t == 0) TALLY_RETURN_IF_ERROR(group.SetInput(t, g));
  }
  TALLY_RETURN_IF_ERROR(group.SetWeight(static_cast<float>(1 + (rank + step) % 2)));
  if (step == 2) TALLY_RETURN_IF_ERROR(group.SetLossScale(4));
  if (step == 3 && rank == 1) TALLY_RETURN_IF_ERROR(group.Keep(4));
  std::vector<Ticket> tickets;
  for (const std::uint32_t b : {2U, 0U, 1U}) {
    if (step == 4 && b == 1) continue;
    TALLY_ASSIGN_OR_RETURN(Ticket ticket, group.Submit(BucketId(b)));
    tickets.push_back(std::move(ticket));
  }
  if (step != 4) {
    for (Ticket& ticket : tickets) TALLY_RETURN_IF_ERROR(ticket.Wait());
  }
  TALLY_ASSIGN_OR_RETURN(const StepResult result, group.EndStep(step == 5 && rank == 2 ? Vote::kSkip : Vote::kCommit));
  if (result.step.value != step) return Internal("ended step " + std::to_string(result.step.value));
  if ((result.outcome == Outcome::kSkipped) != (step == 5)) return Internal("verdict of step " + std::to_string(step));
  for (std::uint32_t t = 0; t < Tensors().size(); ++t) {
    Note(group.Output(t), seen);
    Note(group.Residual(t), seen);
    Seen& halves = *seen;
    halves.emplace_back();
    for (const std::uint16_t bits : group.Output16(t)) halves.back().push_back(static_cast<float>(bits));
  }
  return Status::Ok();
}

std::vector<Seen> RunJob(const JobSetting& setting, const std::vector<std::string>& more) {
  ClusterOptions options = setting.Options(kRanks);
  options.settings = With(options.settings, more);
  TestCluster cluster(options);
  std::vector<Seen> seen(kRanks);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), Buckets()));
    for (int step = 0; step < 7; ++step) TALLY_RETURN_IF_ERROR(Step(*group, rank, &seen[rank]));
    const ClientStats stats = client.stats();
    if (stats.steps_committed != 6 || stats.steps_skipped != 1) return Internal("counters");
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
  return seen;
}

class AgentModes : public testing::TestWithParam<JobSetting> {};

TEST_P(AgentModes, GiveTheSameBitsAsTheEngineInside) {
  NodeDaemon daemon;
  const std::vector<Seen> inside = RunJob(GetParam(), {}), attached = RunJob(GetParam(), daemon.attach());
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_FALSE(inside[rank].empty());
    EXPECT_TRUE(SameBits(inside[rank], attached[rank])) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AgentModes,
    testing::Values(
        JobSetting{"ps", 2, {"aggregation.mode=ps"}},
        JobSetting{"ps_int8", 2, {"aggregation.mode=ps", "compression.codec=int8"}},
        JobSetting{"ps_topk", 1, {"aggregation.mode=ps", "compression.codec=topk", "compression.ratio=0.1"}},
        JobSetting{"ring", 0, {"aggregation.mode=ring"}},
        JobSetting{"ring_sent", 0, {"aggregation.mode=ring", "link.shm=false"}},
        JobSetting{"ring_powersgd", 0, {"aggregation.mode=ring", kPowerSgd, kAtOnce}},
        JobSetting{"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}},
        JobSetting{"direct_onebit", 0, {"aggregation.mode=ring", "compression.codec=onebit"}},
        JobSetting{"direct_fp16", 0, {"aggregation.mode=ring", "compression.codec=fp16"}},
        JobSetting{"direct_dgc", 0, {"aggregation.mode=ring", "compression.codec=dgc", "compression.ratio=0.1"}},
        JobSetting{"hybrid", 2, {"aggregation.mode=hybrid"}},
        JobSetting{"hybrid_int8", 2, {"aggregation.mode=hybrid", "compression.codec=int8"}},
        JobSetting{"hierarchical", 0, {"aggregation.mode=hierarchical"}},
        JobSetting{"hierarchical_powersgd", 0, {"aggregation.mode=hierarchical", kPowerSgd, kAtOnce}},
        JobSetting{"hierarchical_int8", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true, 2},
        JobSetting{"hierarchical_ps", 1, {"aggregation.mode=hierarchical"}, true, 2},
        JobSetting{"dealt", 0, {"aggregation.mode=ring", "compression.codec=int8"}, true, 2, true}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(Agent, SumsAreExact) {
  NodeDaemon daemon;
  for (const char* mode : {"ring", "hierarchical"}) {
    TestCluster cluster({kRanks, 0, With({std::string("aggregation.mode=") + mode}, daemon.attach()), {}});
    EXPECT_EQ(Failures(cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
                const TensorSpec tensor{"w", ElementCount(200'003), DType::kFloat32};
                TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
                for (std::uint64_t step = 0; step < 3; ++step) {
                  for (std::size_t j = 0; j < group->Input(0).size(); ++j)
                    group->Input(0)[j] = IntValue(rank, j + step);
                  TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
                  TALLY_RETURN_IF_ERROR(group->EndStep().status());
                  for (std::size_t j = 0; j < group->Output(0).size(); ++j) {
                    if (group->Output(0)[j] != IntSum(kRanks, j + step) / kRanks)
                      return Internal("wrong sum at " + std::to_string(j));
                  }
                }
                return Status::Ok();
              })),
              "")
        << mode;
  }
}

TEST(Agent, StandaloneCollectives) {
  NodeDaemon daemon;
  for (const char* mode : {"ring", "hierarchical"}) {
    TestCluster cluster({kRanks, 0, With({std::string("aggregation.mode=") + mode}, daemon.attach()), {}});
    EXPECT_EQ(
        Failures(cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
          const auto n = static_cast<std::int64_t>(kRanks);
          TALLY_ASSIGN_OR_RETURN(Buffer * buffer, client.MakeBuffer(5'003));
          for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{777}, std::size_t{100'003}}) {
            std::vector<float> sum(count);
            for (std::size_t j = 0; j < count; ++j) sum[j] = IntValue(rank, j);
            TALLY_RETURN_IF_ERROR(client.AllReduce(std::span(sum)));
            for (std::size_t j = 0; j < count; ++j) {
              if (sum[j] != IntSum(kRanks, j)) return Internal("sum");
            }
            std::vector<std::int64_t> own(count, rank), all(count * kRanks);
            TALLY_RETURN_IF_ERROR(client.AllGather(std::span(own), std::span(all)));
            for (std::size_t j = 0; j < all.size(); ++j) {
              if (all[j] != static_cast<std::int64_t>(j / count)) return Internal("all-gather");
            }
            TALLY_RETURN_IF_ERROR(client.ReduceScatter(std::span(all), std::span(own), ReduceOp::kSum));
            for (const std::int64_t x : own) {
              if (x != n * rank) return Internal("reduce-scatter");
            }
            TALLY_RETURN_IF_ERROR(client.Broadcast(std::span(own), Rank(2)));
            TALLY_RETURN_IF_ERROR(client.AllReduce(std::span(own), ReduceOp::kMax));
            for (const std::int64_t x : own) {
              if (x != 2 * n) return Internal("broadcast");
            }
          }
          for (std::size_t j = 0; j < buffer->input().size(); ++j) buffer->input()[j] = IntValue(rank, j);
          TALLY_RETURN_IF_ERROR(client.AllReduce(*buffer));
          for (std::size_t j = 0; j < buffer->output().size(); ++j) {
            if (buffer->output()[j] != IntSum(kRanks, j)) return Internal("buffer");
          }
          return client.Barrier();
        })),
        "")
        << mode;
  }
}

// What a rank sees does not change when its training process goes between steps and another comes.
class AgentReturn : public testing::TestWithParam<JobSetting> {};

TEST_P(AgentReturn, FindsResidualsAsTheyWere) {
  NodeDaemon daemon;
  const std::vector<Seen> inside = RunJob(GetParam(), {});
  ClusterOptions options = GetParam().Options(kRanks);
  options.settings = With(options.settings, daemon.attach());
  TestCluster cluster(options);
  std::vector<Seen> seen(kRanks);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), Buckets()));
    std::unique_ptr<Client> next;
    for (std::uint64_t step = 0; step < 7; ++step) {
      if (step == rank + 1 || step == 6) {
        TALLY_RETURN_IF_ERROR((next == nullptr ? client : *next).Detach());
        next.reset();
        TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, cluster.WorkerConfig(rank));
        TALLY_ASSIGN_OR_RETURN(next, Client::Join(config));
        TALLY_ASSIGN_OR_RETURN(group, next->DeclareGroup(Tensors(), Buckets()));
        if (group->step().value != step) return Internal("came back to step " + std::to_string(group->step().value));
      }
      TALLY_RETURN_IF_ERROR(Step(*group, rank, &seen[rank]));
    }
    return next->Leave();
  });
  EXPECT_EQ(Failures(statuses), "");
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(SameBits(inside[rank], seen[rank])) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AgentReturn,
    testing::Values(
        JobSetting{"ps_int8", 1, {"aggregation.mode=ps", "compression.codec=int8"}},
        JobSetting{"direct_topk", 0, {"aggregation.mode=ring", "compression.codec=topk", "compression.ratio=0.1"}},
        JobSetting{"ring_powersgd", 0, {"aggregation.mode=ring", kPowerSgd, kAtOnce}},
        JobSetting{"hierarchical_int8", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, true, 2}),
    [](const auto& param) { return std::string(param.param.name); });

// What was handed over is what was delivered and what the residuals hold, to the last bit, over a return.
TEST(Agent, NothingIsLostOverAReturn) {
  NodeDaemon daemon;
  constexpr std::uint64_t kElements = 1000;
  const std::vector<std::string> settings = {"aggregation.mode=ring", "compression.codec=topk",
                                             "compression.ratio=0.05"};
  TestCluster cluster({2, 0, With(settings, daemon.attach()), {}});
  std::vector<double> given(kElements), delivered(kElements), left(kElements);
  std::mutex mutex;
  const auto statuses = cluster.Run([&](Client& first, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
    Client* client = &first;
    std::unique_ptr<Client> next;
    TALLY_ASSIGN_OR_RETURN(Group * group, client->DeclareGroup(std::span(&tensor, 1)));
    for (std::uint64_t step = 0; step < 6; ++step) {
      for (std::size_t j = 0; j < kElements; ++j) group->Input(0)[j] = ExactGradient(rank, step, 0, j);
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      {
        const std::lock_guard lock(mutex);
        for (std::size_t j = 0; j < kElements; ++j) {
          given[j] += ExactGradient(rank, step, 0, j);
          if (rank == 0) delivered[j] += 2.0 * group->Output(0)[j];
        }
      }
      if (rank == 1 && step == 3) {
        TALLY_RETURN_IF_ERROR(client->Detach());
        TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, cluster.WorkerConfig(rank));
        TALLY_ASSIGN_OR_RETURN(next, Client::Join(config));
        client = next.get();
        TALLY_ASSIGN_OR_RETURN(group, client->DeclareGroup(std::span(&tensor, 1)));
      }
    }
    {
      TALLY_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, group->ExportState());
      TALLY_ASSIGN_OR_RETURN(const SavedState state, DecodeState(bytes));
      const std::lock_guard lock(mutex);
      for (const SavedTensor& owned : state.owned) {
        for (std::size_t j = 0; j < owned.values.size(); ++j) left[owned.offset + j] += owned.values[j];
      }
      for (std::size_t j = 0; j < kElements; ++j) left[j] += group->Residual(0)[j];
    }
    return client->Leave();
  });
  EXPECT_EQ(Failures(statuses), "");
  double residual = 0;
  for (std::size_t j = 0; j < kElements; ++j) {
    EXPECT_EQ(given[j], delivered[j] + left[j]) << j;
    residual += std::abs(left[j]);
  }
  EXPECT_GT(residual, 0);
}

TEST(Agent, StateGoesOutAndIn) {
  NodeDaemon daemon;
  const JobSetting setting{"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}};
  std::vector<std::vector<std::byte>> states(kRanks);
  std::vector<Seen> before(kRanks), after(kRanks);
  const auto run = [&](std::vector<Seen>* seen, bool restore) {
    ClusterOptions options = setting.Options(kRanks);
    options.settings = With(options.settings, daemon.attach());
    TestCluster cluster(options);
    EXPECT_EQ(Failures(cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
                GroupOptions group_options = Buckets();
                if (restore) group_options.first_step = StepId(2);
                TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(Tensors(), group_options));
                Seen ignored;
                if (restore) {
                  if (group->ImportState({}).kind() != StatusKind::kCorrupt) return Internal("no state was read back");
                  TALLY_RETURN_IF_ERROR(group->ImportState(states[rank]));
                } else {
                  for (int step = 0; step < 2; ++step) TALLY_RETURN_IF_ERROR(Step(*group, rank, &ignored));
                  TALLY_ASSIGN_OR_RETURN(states[rank], group->ExportState());
                }
                float one = 1;  // memory that was lent before is not used for what comes after
                TALLY_RETURN_IF_ERROR(client.AllReduce(std::span(&one, 1)));
                if (one != kRanks) return Internal("sum");
                return Step(*group, rank, &(*seen)[rank]);
              })),
              "");
  };
  run(&before, false);
  run(&after, true);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(SameBits(before[rank], after[rank])) << rank;
}

TEST(Agent, AReturnWithAnotherDeclarationIsRefusedAndNothingLost) {
  NodeDaemon daemon;
  TestCluster cluster({1, 0, daemon.attach(), {}});
  const TensorSpec tensor{"w", ElementCount(10), DType::kFloat32}, other{"w", ElementCount(11), DType::kFloat32};
  const auto join = [&](std::vector<std::string> more = {}) -> Result<std::unique_ptr<Client>> {
    ConfigSources sources;
    TALLY_ASSIGN_OR_RETURN(LoadedConfig config, cluster.WorkerConfig(0));
    sources.text = ProcessText(config.config);
    sources.overrides = std::move(more);
    TALLY_ASSIGN_OR_RETURN(config, LoadConfig(sources));
    return Client::Join(config);
  };
  auto first = join();
  ASSERT_TRUE(first.ok()) << first.status().text();
  auto group = (*first)->DeclareGroup(std::span(&tensor, 1));
  ASSERT_TRUE(group.ok());
  (*group)->Input(0)[3] = 5;
  ASSERT_TRUE((*group)->Submit(BucketId(0)).ok());
  EXPECT_EQ((*first)->Detach().kind(), StatusKind::kInvalidArgument) << "in the middle of a step";
  ASSERT_TRUE((*group)->EndStep().ok());
  ASSERT_TRUE((*first)->Detach().ok());
  EXPECT_FALSE((*group)->Submit(BucketId(0)).ok());

  auto second = join({"compression.codec=int8"});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().kind(), StatusKind::kMismatch);
  EXPECT_NE(second.status().text().find("compression.codec"), std::string::npos) << second.status().text();

  second = join();
  ASSERT_TRUE(second.ok()) << second.status().text();
  group = (*second)->DeclareGroup(std::span(&other, 1));
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().kind(), StatusKind::kMismatch);
  EXPECT_NE(group.status().text().find("was w (10 fp32), is w (11 fp32)"), std::string::npos) << group.status().text();
  GroupOptions late;
  late.first_step = StepId(7);
  group = (*second)->DeclareGroup(std::span(&tensor, 1), late);
  ASSERT_FALSE(group.ok());
  EXPECT_EQ(group.status().kind(), StatusKind::kMismatch);
  group = (*second)->DeclareGroup(std::span(&tensor, 1));
  ASSERT_TRUE(group.ok()) << group.status().text();
  EXPECT_EQ((*group)->step().value, 1U);
  EXPECT_EQ((*group)->Output(0)[3], 5) << "the last mean is still there";
  EXPECT_EQ((*group)->Input(0)[3], 0) << "as a new group's";
  EXPECT_TRUE((*second)->Leave().ok());
}

TEST(Agent, ASecondProcessOfTheSameRankIsRefusedAndTheFirstUndisturbed) {
  NodeDaemon daemon;
  TestCluster cluster({1, 0, daemon.attach(), {}});
  EXPECT_EQ(Failures(cluster.Run([&](Client& client, std::uint32_t) -> Status {
              TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, cluster.WorkerConfig(0));
              const auto second = Client::Join(config);
              if (second.ok()) return Internal("there are two");
              if (second.status().text().find("rank 0 of job test is taken by training process " +
                                              std::to_string(getpid())) == std::string::npos) {
                return second.status();
              }
              return client.Barrier();
            })),
            "");
}

// Children that load data hold copies of the socket.
TEST(Agent, ARankThatIsGivenBackIsFreeThoughAChildHoldsTheSocket) {
  NodeDaemon daemon;
  TestCluster cluster({1, 0, daemon.attach(), {}});
  const auto config = cluster.WorkerConfig(0);
  ASSERT_TRUE(config.ok()) << config.status().text();
  auto first = Client::Join(*config);
  ASSERT_TRUE(first.ok()) << first.status().text();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    while (true) pause();
  }
  EXPECT_TRUE((*first)->Detach().ok());
  const auto second = Client::Join(*config);
  EXPECT_TRUE(second.ok()) << second.status().text();
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// Where others are, the one that comes back could not know: neither before its first step nor after it had made some.
TEST(Agent, StandaloneCallsAreMadeByOneProcessFromStepToStep) {
  NodeDaemon daemon;
  TestCluster cluster({2, 0, daemon.attach(), {}});
  const TensorSpec tensor{"w", ElementCount(10), DType::kFloat32};
  EXPECT_EQ(Failures(cluster.Run([&](Client& first, std::uint32_t rank) -> Status {
              TALLY_ASSIGN_OR_RETURN(Group * group, first.DeclareGroup(std::span(&tensor, 1)));
              TALLY_ASSIGN_OR_RETURN(Buffer * buffer, first.MakeBuffer(3));
              TALLY_RETURN_IF_ERROR(first.Barrier());
              if (first.Detach().kind() != StatusKind::kInvalidArgument) return Internal("given back after a call");
              TALLY_RETURN_IF_ERROR(group->EndStep().status());
              Client* client = &first;
              std::unique_ptr<Client> next;
              if (rank == 1) {
                buffer->input()[1] = 7;
                TALLY_RETURN_IF_ERROR(first.Detach());
                TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, cluster.WorkerConfig(rank));
                TALLY_ASSIGN_OR_RETURN(next, Client::Join(config));
                client = next.get();
                TALLY_ASSIGN_OR_RETURN(group, client->DeclareGroup(std::span(&tensor, 1)));
                TALLY_ASSIGN_OR_RETURN(buffer, client->MakeBuffer(3));
                if (buffer->input()[1] != 0) return Internal("another process's numbers");
                for (const Status& status : {client->Barrier(), client->AllReduce(*buffer)}) {
                  if (status.kind() != StatusKind::kInvalidArgument) return Internal("called: " + status.text());
                }
              }
              TALLY_RETURN_IF_ERROR(group->EndStep().status());
              buffer->input()[0] = 1;
              TALLY_RETURN_IF_ERROR(client->AllReduce(*buffer));
              if (buffer->output()[0] != 2) return Internal("sum");
              TALLY_RETURN_IF_ERROR(client->Barrier());
              return client->Leave();
            })),
            "");
}

// As Python's hook does: a step ends on a thread of its own, while the caller's thread asks for something else.
TEST(Agent, QuestionsOfTwoThreadsGetTheirOwnAnswers) {
  NodeDaemon daemon;
  TestCluster cluster({2, 0, daemon.attach(), {}});
  const TensorSpec tensor{"w", ElementCount(100), DType::kFloat32};
  EXPECT_EQ(Failures(cluster.Run([&](Client& client, std::uint32_t) -> Status {
              TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
              Status ended;
              std::thread ends([&] {
                for (int step = 0; step < 200 && ended.ok(); ++step) ended = group->EndStep().status();
              });
              std::uint64_t steps = 0;
              bool grows = true;
              for (int i = 0; i < 200; ++i) {
                const std::uint64_t now = client.stats().steps_committed;
                grows = grows && now >= steps;
                steps = now;
              }
              ends.join();
              TALLY_RETURN_IF_ERROR(ended);
              return grows && client.stats().steps_committed == 200 ? Status::Ok() : Internal("another's answer");
            })),
            "");
}

TEST(Agent, AWeightThatOverflowsSkipsTheStepAsInside) {
  NodeDaemon daemon;
  for (const std::vector<std::string>& settings : {std::vector<std::string>{}, daemon.attach()}) {
    TestCluster cluster({2, 0, settings, {}});
    EXPECT_EQ(Failures(cluster.Run([&](Client& client, std::uint32_t) -> Status {
                const TensorSpec tensor{"w", ElementCount(10), DType::kFloat32};
                TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
                TALLY_RETURN_IF_ERROR(group->SetWeight(1e38F));
                TALLY_RETURN_IF_ERROR(group->SetLossScale(1e-5F));
                group->Input(0)[0] = 1;
                TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
                TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
                return result.outcome == Outcome::kSkipped ? Status::Ok() : Internal("committed");
              })),
              "")
        << settings.size();
  }
}

// tally-worker was started elsewhere.
TEST(Agent, FilesOfTheSettingsAreThoseThatTheTrainingProcessSees) {
  NodeDaemon daemon;
  const std::filesystem::path before = std::filesystem::current_path();
  std::string name = (std::filesystem::temp_directory_path() / "tally-agent-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  std::ofstream(name + "/labels") << "topology.kubernetes.io/region=\"eu\"\ntopology.kubernetes.io/zone=\"a\"\n";
  TestCluster cluster({1, 0, With({"topology.file=labels"}, daemon.attach()), {}});
  std::filesystem::current_path(name);
  EXPECT_EQ(Failures(cluster.Run([](Client& client, std::uint32_t) { return client.Barrier(); })), "");
  std::filesystem::current_path(before);
  std::filesystem::remove_all(name);
}

TEST(Agent, ResidualsAndCallsCountAsMemory) {
  NodeDaemon daemon({"worker.memory_cap=1MiB"});
  const auto said = [&](const std::vector<std::string>& settings, const TestCluster::Body& body) {
    TestCluster cluster({1, 0, With(settings, daemon.attach()), {}});
    return cluster.Run(body)[0].text();
  };
  const auto declare = [](Client& client, std::uint32_t) {
    const TensorSpec tensor{"w", ElementCount(100'000), DType::kFloat32};
    return client.DeclareGroup(std::span(&tensor, 1)).status();
  };
  EXPECT_EQ(said({}, declare), "");
  EXPECT_NE(said({"compression.codec=int8"}, declare).find("1600000 bytes, but of 1048576"), std::string::npos);
  const auto call = [](Client& client, std::uint32_t) {
    std::vector<float> numbers(60'000);
    TALLY_RETURN_IF_ERROR(client.AllReduce(std::span(numbers)));
    TALLY_RETURN_IF_ERROR(client.AllReduce(std::span(numbers)));
    numbers.resize(90'000);
    return client.AllReduce(std::span(numbers));
  };
  EXPECT_NE(said({}, call).find("720000 bytes, but of 1048576"), std::string::npos) << said({}, call);
}

TEST(Agent, MoreMemoryThanAllowedEndsTheJobWithBothNumbers) {
  NodeDaemon daemon({"worker.memory_cap=1MiB"});
  TestCluster cluster({2, 0, daemon.attach(), {}});
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(1'000'000), DType::kFloat32};
    if (rank == 0) return client.DeclareGroup(std::span(&tensor, 1)).status();
    return client.Barrier();
  });
  for (const Status& status : statuses) {
    EXPECT_NE(status.text().find("8000000 bytes, but of 1048576 bytes (worker.memory_cap"), std::string::npos)
        << status.text();
  }
}

TEST(Agent, WithoutADaemonTheErrorSaysWhatToDo) {
  TestCluster cluster(
      {1, 0, {"worker.attach=agent", "worker.agent=tally-nobody", "membership.join_timeout=50ms"}, {}});
  const auto config = cluster.WorkerConfig(0);
  ASSERT_TRUE(config.ok()) << config.status().text();
  const auto client = Client::Join(*config);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().kind(), StatusKind::kUnavailable);
  EXPECT_NE(client.status().text().find("no tally-worker listens on local socket tally-nobody"), std::string::npos)
      << client.status().text();
}

}  // namespace
}  // namespace tally::test
