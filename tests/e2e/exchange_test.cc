// Whole jobs over real sockets in one process: every exchange gives the exact sums, and but for two schedules the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <span>
#include <thread>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

struct Way {
  const char* name;
  std::uint32_t servers;
  std::vector<std::string> settings;
  bool ring_order = true;  // adds as a ring does
  std::uint32_t nodes = 0;
  bool own_nics = false;   // each worker has a NIC, rank 1's of a third of the speed; the servers share one

  ClusterOptions Options(std::uint32_t workers, bool dealt) const {
    ClusterOptions options{workers, servers, settings, {}, nodes, dealt};
    if (own_nics) {
      options.rank_settings = [](std::uint32_t rank) {
        return std::vector<std::string>{"topology.node=node" + std::to_string(rank),
                                        std::string("topology.nic_rate=") + (rank == 1 ? "300mbit" : "1gbit")};
      };
    }
    return options;
  }
};

const std::vector<Way>& Ways() {
  static const std::vector<Way> ways = {
      {"ring", 0, {"aggregation.mode=ring"}},
      {"ring_tcp", 0, {"aggregation.mode=ring", "link.shm=false"}},
      {"tree", 0, {"aggregation.mode=ring", "aggregation.schedule=tree"}, false},
      {"halving_doubling", 0, {"aggregation.mode=ring", "aggregation.schedule=halving_doubling"}, false},
      {"tree_tight",
       0,
       {"aggregation.mode=ring", "aggregation.schedule=tree", "link.shm=false", "link.frame=64KiB", "link.credit=64KiB"},
       false},
      {"halving_doubling_tight",
       0,
       {"aggregation.mode=ring", "aggregation.schedule=halving_doubling", "link.frame=64KiB", "link.credit=64KiB"},
       false},
      {"ps", 2, {"aggregation.mode=ps"}},
      {"ps_zmq", 2, {"aggregation.mode=ps", "link.shm=false"}},
      {"ps_tcp", 2, {"aggregation.mode=ps", "servers.transport=tcp", "link.shm=false"}},
      {"ps_one", 1, {"aggregation.mode=ps"}},
      {"direct", 0, {"aggregation.mode=ring", "compression.codec=int8", "compression.exclude=*"}},
      {"direct_tcp", 0, {"aggregation.mode=ring", "compression.codec=int8", "compression.exclude=*", "link.shm=false"}},
      {"hybrid", 1, {"aggregation.mode=hybrid"}},
      {"hybrid_tcp", 1, {"aggregation.mode=hybrid", "link.shm=false"}},
      {"ring_wide", 0, {"aggregation.mode=ring", "link.connections=3", "link.shm=false"}},
      {"ps_wide", 2, {"aggregation.mode=ps", "link.connections=2", "link.shm=false"}},
      {"ring_zmq", 0, {"aggregation.mode=ring", "link.transport=zmq", "link.shm=false"}},
      {"hybrid_zmq", 1, {"aggregation.mode=hybrid", "link.transport=zmq", "link.shm=false"}},
      {"auto", 0, {"aggregation.mode=auto", "aggregation.local=off"}},
      {"auto_servers", 2, {"aggregation.mode=auto", "aggregation.local=off"}},
      {"schedule_auto", 0, {"aggregation.mode=ring", "aggregation.schedule=auto"}},
      {"hybrid_many_servers", 9, {"aggregation.mode=hybrid"}},
      {"hybrid_solved", 2, {"aggregation.mode=hybrid", "topology.nic_rate=1gbit"}, true, 0, true},
      {"ps_solved", 3, {"aggregation.mode=ps", "topology.nic_rate=1gbit"}, true, 0, true},
      {"auto_solved", 2, {"aggregation.mode=auto", "aggregation.local=off", "topology.nic_rate=1gbit"}, true, 0, true},
      {"auto_int8", 2, {"aggregation.mode=auto", "aggregation.local=off", "topology.nic_rate=1gbit",
                        "compression.codec=int8", "compression.exclude=*"}, true, 0, true},
      {"node_auto", 0, {"aggregation.mode=auto"}, false},
      {"nodes_auto", 2, {"aggregation.mode=auto", "topology.nic_rate=1gbit"}, false, 3},
      {"node", 0, {"aggregation.mode=hierarchical"}, false},
      {"node_frames", 0, {"aggregation.mode=hierarchical", "link.shm=false"}, false},
      {"node_tight", 0, {"aggregation.mode=hierarchical", "link.shm=false", "link.frame=64KiB", "link.credit=64KiB"}, false},
      {"nodes_ring", 0, {"aggregation.mode=hierarchical"}, false, 2},
      {"nodes_ring_frames", 0, {"aggregation.mode=hierarchical", "link.shm=false"}, false, 2},
      {"nodes_tight", 0, {"aggregation.mode=hierarchical", "link.shm=false", "link.frame=64KiB", "link.credit=64KiB"}, false, 2},
      {"nodes_tight_ps", 2, {"aggregation.mode=hierarchical", "link.frame=64KiB", "link.credit=64KiB"}, false, 2},
      {"nodes_tree", 0, {"aggregation.mode=hierarchical", "aggregation.schedule=tree"}, false, 3},
      {"nodes_direct", 0, {"aggregation.mode=hierarchical", "compression.codec=int8", "compression.exclude=*"}, false, 3},
      {"nodes_ps", 2, {"aggregation.mode=hierarchical", "link.connections=2"}, false, 2},
      {"nodes_hybrid", 1, {"aggregation.mode=hybrid", "aggregation.local=on"}, false, 3},
      {"nodes_zmq", 1, {"aggregation.mode=ps", "aggregation.local=on", "link.transport=zmq", "link.shm=false"}, false, 2},
  };
  return ways;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

class EveryWay : public testing::TestWithParam<std::tuple<std::size_t, std::uint32_t>> {
 protected:
  ClusterOptions Options(bool dealt = false) const {
    const auto [way, workers] = GetParam();
    return Ways()[way].Options(workers, dealt);
  }
};
class EveryWayDealt : public EveryWay {};  // positions are no ranks

void AllReduces(const ClusterOptions& options) {
  TestCluster cluster(options);
  const std::uint32_t workers = options.workers;
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    for (const std::size_t n : {std::size_t{1}, std::size_t{0}, std::size_t{4095}, std::size_t{4097},
                                std::size_t{100003}, std::size_t{1} << 20}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        std::vector<float> data(n);
        for (std::size_t j = 0; j < n; ++j) data[j] = IntValue(rank, j);
        TALLY_RETURN_IF_ERROR(client.AllReduce(data));
        for (std::size_t j = 0; j < n; ++j) {
          if (data[j] != IntSum(workers, j)) {
            return Internal("n " + std::to_string(n) + ", element " + std::to_string(j) + ": expected " +
                            std::to_string(IntSum(workers, j)) + ", got " + std::to_string(data[j]));
          }
        }
      }
    }
    std::vector<float> mean(10, static_cast<float>(rank));
    TALLY_RETURN_IF_ERROR(client.AllReduce(mean, ReduceOp::kMean));
    const float expected = static_cast<float>(workers * (workers - 1) / 2) / static_cast<float>(workers);
    if (mean[3] != expected) return Internal("mean: got " + std::to_string(mean[3]));
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST_P(EveryWay, AllReduceSumsExactly) { AllReduces(Options()); }
TEST_P(EveryWayDealt, AllReduceSumsExactly) { AllReduces(Options(true)); }

void Steps(ClusterOptions options) {
  options.settings.push_back("bucket.cap=100KB");
  TestCluster cluster(options);
  const std::uint32_t workers = options.workers;
  const std::vector<std::uint64_t> sizes = {0, 1, 7, 0, 4096, 5, 70001, 300, 4099, 20011};
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    // Each rank declares in an order of its own.
    std::vector<TensorSpec> tensors;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const std::size_t i = (t * 3 + rank) % sizes.size();
      tensors.push_back({"t" + std::to_string(i), ElementCount(sizes[i]), DType::kFloat32});
    }
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    for (std::uint32_t step = 0; step < 5; ++step) {
      for (std::uint32_t t = 0; t < tensors.size(); ++t) {
        auto input = group->Input(t);
        for (std::size_t j = 0; j < input.size(); ++j) input[j] = IntValue(rank, j + step);
      }
      const auto buckets = static_cast<std::uint32_t>(group->bucket_count());
      for (std::uint32_t b = 0; b < buckets; ++b) {
        TALLY_ASSIGN_OR_RETURN(Ticket ticket, group->Submit(BucketId((b + rank + step) % buckets)));
      }
      TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
      if (result.outcome != Outcome::kCommitted || result.step.value != step) return Internal("outcome");
      for (std::uint32_t t = 0; t < tensors.size(); ++t) {
        const auto output = group->Output(t);
        for (std::size_t j = 0; j < output.size(); ++j) {
          const float expected = IntSum(workers, j + step) / static_cast<float>(workers);
          if (output[j] != expected) {
            return Internal(tensors[t].name + "[" + std::to_string(j) + "] in step " + std::to_string(step) +
                            ": expected " + std::to_string(expected) + ", got " + std::to_string(output[j]));
          }
        }
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST_P(EveryWay, StepsOfManyTensorsInAnyOrder) { Steps(Options()); }
TEST_P(EveryWayDealt, StepsOfManyTensorsInAnyOrder) { Steps(Options(true)); }

TEST_P(EveryWay, ABucketOfNothingHoldsNothingUp) {
  TestCluster cluster(Options());
  const std::uint32_t workers = std::get<1>(GetParam());
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const std::vector<TensorSpec> tensors = {{"empty", ElementCount(0), DType::kFloat32},
                                             {"w", ElementCount(70001), DType::kFloat32},
                                             {"none", ElementCount(0), DType::kFloat32}};
    GroupOptions options;
    options.buckets = {{"empty"}, {"w"}, {"none"}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors, options));
    for (std::size_t step = 0; step < 3; ++step) {
      for (std::size_t j = 0; j < 70001; ++j) group->Input(1)[j] = IntValue(rank, j + step);
      for (const std::uint32_t b : {2U, 1U, 0U}) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      for (std::size_t j = 0; j < 70001; ++j) {
        if (group->Output(1)[j] != IntSum(workers, j + step) / static_cast<float>(workers)) return Internal("a wrong mean");
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

// More than any credit at once, and one node's workers ahead of the others'.
TEST_P(EveryWay, ALargeBucketOfAStragglersJob) {
  if (std::get<1>(GetParam()) != 4) return;  // one world is enough for so much
  TestCluster cluster(Options());
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    constexpr std::uint64_t kElements = 5'000'000;
    const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    for (std::size_t step = 0; step < 2; ++step) {
      for (std::size_t j = 0; j < kElements; ++j) group->Input(0)[j] = IntValue(rank, j + step);
      if (rank == 3) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      for (std::size_t j = 0; j < kElements; ++j) {
        if (group->Output(0)[j] != IntSum(4, j + step) / 4) return Internal("a wrong mean");
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

std::string NameOfWay(const testing::TestParamInfo<EveryWay::ParamType>& parameter) {
  return std::string(Ways()[std::get<0>(parameter.param)].name) + "_" + std::to_string(std::get<1>(parameter.param));
}
INSTANTIATE_TEST_SUITE_P(Ways, EveryWay,
                         testing::Combine(testing::Range(std::size_t{0}, Ways().size()),
                                          testing::Values(1U, 2U, 3U, 4U, 7U)),
                         NameOfWay);
INSTANTIATE_TEST_SUITE_P(Ways, EveryWayDealt,
                         testing::Combine(testing::Range(std::size_t{0}, Ways().size()),
                                          testing::Values(2U, 3U, 4U, 7U)),
                         NameOfWay);

// One of a node's processes shares no memory, be it the one that would make the results' or another.
TEST(Exchange, OneWithoutSharedMemoryGetsTheSameSumsInFrames) {
  for (const std::uint32_t nodes : {1U, 2U}) {
    for (const std::uint32_t without : {0U, 1U, 3U}) {
      ClusterOptions options;
      options.workers = 5;
      options.nodes = nodes;
      options.settings = {"aggregation.mode=hierarchical"};
      options.rank_settings = [without](std::uint32_t rank) {
        return std::vector<std::string>{rank == without ? "link.shm=false" : "link.shm=true"};
      };
      TestCluster cluster(options);
      const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
        const TensorSpec tensor{"w", ElementCount(400003), DType::kFloat32};
        TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
        std::vector<float> data(100003);
        for (std::size_t step = 0; step < 3; ++step) {
          for (std::size_t j = 0; j < 400003; ++j) group->Input(0)[j] = IntValue(rank, j + step);
          TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
          TALLY_RETURN_IF_ERROR(group->EndStep().status());
          for (std::size_t j = 0; j < 400003; ++j) {
            if (group->Output(0)[j] != IntSum(5, j + step) / 5) return Internal("a wrong mean");
          }
          for (std::size_t j = 0; j < data.size(); ++j) data[j] = IntValue(rank, j);
          TALLY_RETURN_IF_ERROR(client.AllReduce(data));
          for (std::size_t j = 0; j < data.size(); ++j) {
            if (data[j] != IntSum(5, j)) return Internal("a wrong sum");
          }
        }
        return Status::Ok();
      });
      EXPECT_EQ(Failures(statuses), "") << nodes << " nodes, rank " << without << " without";
    }
  }
}

// Sums whose bits depend on the order of addition: every way must give the same ones, to all ranks, but for schedules
// with an order of their own, which must give theirs each time. Other positions are another order.
TEST(Exchange, PsDirectHybridAndRingGiveTheSameBitsAndOtherSchedulesTheirOwn) {
  constexpr std::uint32_t kWorkers = 4;
  constexpr std::size_t kElements = 150001;
  const auto run = [](const Way& way, bool dealt) {
    TestCluster cluster(way.Options(kWorkers, dealt));
    std::vector<std::vector<float>> results(kWorkers);
    const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
      const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
      TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
      TALLY_RETURN_IF_ERROR(group->SetWeight(0.3F + static_cast<float>(rank)));
      auto input = group->Input(0);
      for (std::size_t j = 0; j < kElements; ++j) {
        input[j] = std::sin(static_cast<float>(j * 7 + rank * 13)) * std::pow(10.0F, static_cast<float>((j + rank) % 9));
      }
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      results[rank].assign(group->Output(0).begin(), group->Output(0).end());
      return Status::Ok();
    });
    EXPECT_EQ(Failures(statuses), "") << way.name;
    for (const std::vector<float>& result : results) EXPECT_TRUE(SameBits(result, results[0])) << way.name;
    return results[0];
  };
  const std::vector<float> by_rank = run(Ways().front(), false), by_position = run(Ways().front(), true);
  EXPECT_FALSE(SameBits(by_rank, by_position));
  for (const Way& way : Ways()) {
    for (const bool dealt : {false, true}) {
      if (dealt && way.own_nics) continue;  // each rank on a node of its own: other positions again
      const std::vector<float> result = run(way, dealt);
      EXPECT_EQ(SameBits(result, dealt ? by_position : by_rank), way.ring_order) << way.name;
      if (!way.ring_order) {
        EXPECT_TRUE(SameBits(result, run(way, dealt))) << way.name;
      }
    }
  }
}

// One job, groups of many sizes: each gets an exchange of its own, all ranks the same one, and the client says which.
TEST(Exchange, AutoTakesAWayForEachGroupThatAllRanksFollow) {
  ClusterOptions options{8, 0, {"aggregation.mode=ring", "aggregation.schedule=auto"}, {}};
  TestCluster cluster(options);
  std::vector<std::vector<std::string>> taken(options.workers);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    for (const std::size_t n : {std::size_t{100}, std::size_t{2} << 20, std::size_t{7}}) {
      std::vector<float> data(n);
      for (std::size_t j = 0; j < n; ++j) data[j] = IntValue(rank, j);
      TALLY_RETURN_IF_ERROR(client.AllReduce(data));
      for (std::size_t j = 0; j < n; ++j) {
        if (data[j] != IntSum(8, j)) return Internal("n " + std::to_string(n) + ", element " + std::to_string(j));
      }
      taken[rank].push_back(client.Describe());
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
  for (const auto& of_rank : taken) EXPECT_EQ(of_rank, taken[0]);
  ASSERT_EQ(taken[0].size(), 3U);
  EXPECT_NE(taken[0][0], "schedule ring over shm");
  EXPECT_EQ(taken[0][1], "schedule ring over shm");
  EXPECT_EQ(taken[0][2], taken[0][0]);
}

}  // namespace
}  // namespace tally::test
