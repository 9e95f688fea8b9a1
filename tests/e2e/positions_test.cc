// Ranks that a launcher dealt over nodes and switches in any order: bits follow positions, errors name ranks.
// (exchange_test.cc runs every way with exact sums in such an order.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string_view>
#include <thread>

#include "common/topology/bandwidth_matrix.h"
#include "tests/support/cluster.h"
#include "tests/support/slowdown.h"

namespace tally::test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kWorkers = 5;
constexpr std::size_t kElements = 65536 * 2 + 1;
struct Place {
  const char *node, *switch_path;
};
// Two nodes have two workers, and the switches put c before b.
constexpr Place kPlaces[] = {{"a", "s/l1"}, {"b", "s/l2"}, {"a", "s/l1"}, {"c", "s/l1"}, {"b", "s/l2"}};
constexpr std::uint32_t kPositions[] = {0, 3, 1, 2, 4};  // by rank
constexpr std::uint32_t kRanks[] = {0, 2, 3, 1, 4};      // by position
constexpr std::uint32_t kByRank[] = {0, 1, 2, 3, 4};

ClusterOptions At(const JobSetting& mode, bool shuffled) {
  ClusterOptions options = mode.Options(kWorkers);
  options.rank_settings = [shuffled](std::uint32_t rank) {
    const Place& place = kPlaces[shuffled ? rank : kRanks[rank]];
    return std::vector<std::string>{std::string("topology.node=") + place.node,
                                    std::string("topology.switch=") + place.switch_path};
  };
  return options;
}

const std::vector<JobSetting> kModes = {
    {"ps", 2, {"aggregation.mode=ps"}},
    {"ring", 0, {"aggregation.mode=ring"}},
    {"tree", 0, {"aggregation.mode=ring", "aggregation.schedule=tree"}},
    {"halving", 0, {"aggregation.mode=ring", "aggregation.schedule=halving_doubling"}},
    {"direct", 0, {"aggregation.mode=ring", "compression.codec=int8", "compression.exclude=*"}},
    {"direct_int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}, false},
    {"hybrid", 1, {"aggregation.mode=hybrid"}},
    {"nodes_ring", 0, {"aggregation.mode=hierarchical"}},
    {"nodes_frames", 0, {"aggregation.mode=hierarchical", "link.shm=false"}},
    {"nodes_ps", 2, {"aggregation.mode=hierarchical"}},
    {"nodes_int8", 0, {"aggregation.mode=hierarchical", "compression.codec=int8"}, false},
    {"nodes_hybrid", 1, {"aggregation.mode=hybrid", "aggregation.local=on"}},
};

class Order : public ::testing::TestWithParam<JobSetting> {};

// Of three steps: each rank's outputs, one step after the other, if ranks stand at these positions.
std::vector<std::vector<float>> Outputs(const ClusterOptions& options, std::span<const std::uint32_t> positions) {
  TestCluster cluster(options);
  std::vector<std::vector<float>> outputs(positions.size());
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const std::uint32_t position = positions[rank];
    const std::vector<TensorSpec> tensors = {{"a", ElementCount(kElements)}, {"b", ElementCount(7)}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    for (std::size_t step = 0; step < 3; ++step) {
      TALLY_RETURN_IF_ERROR(group->SetWeight(0.3F + static_cast<float>(position)));
      for (std::uint32_t t = 0; t < 2; ++t) {
        const std::span<float> input = group->Input(t);
        // No sum of these is exact, so another order of addition gives other bits.
        for (std::size_t i = 0; i < input.size(); ++i) {
          input[i] = static_cast<float>(((i + t) * 7919 + position * 104729 + step * 31) % 10007) / 3.0F *
                     (position % 2 == 0 ? 1.0F : 1e-3F);
        }
      }
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) {
        TALLY_RETURN_IF_ERROR(group->Submit(BucketId(b)).status());
      }
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
      for (std::uint32_t t = 0; t < 2; ++t) {
        const std::span<const float> output = group->Output(t);
        outputs[rank].insert(outputs[rank].end(), output.begin(), output.end());
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
  return outputs;
}

TEST_P(Order, BitsFollowPositions) {
  const auto expected = Outputs(At(GetParam(), false), kByRank), got = Outputs(At(GetParam(), true), kPositions);
  ASSERT_EQ(expected[0].size(), 3 * (kElements + 7));
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) EXPECT_TRUE(got[rank] == expected[0]) << "rank " << rank;
}

// A plain sum is a mean of which rank 0 declares all the weight.
TEST_P(Order, SumsAreExactAndOtherCallsNameTheRank) {
  ClusterOptions options = At(GetParam(), true);
  options.settings.push_back("step.timeout=" + Seconds(2));
  TestCluster cluster(options);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, kElements}) {
      std::vector<float> data(n);
      for (std::size_t i = 0; i < n; ++i) data[i] = IntValue(rank, i);
      TALLY_RETURN_IF_ERROR(client.AllReduce(data, ReduceOp::kSum));
      for (std::size_t i = 0; i < n && GetParam().exact; ++i) {
        if (data[i] == IntSum(kWorkers, i)) continue;
        return Internal("element " + std::to_string(i) + " of " + std::to_string(n) + ": " + std::to_string(data[i]));
      }
    }
    std::vector<float> data(rank == 3 ? 7 : 1, 1.0F);  // rank 3 is at position 2
    const Status status = client.AllReduce(data, ReduceOp::kSum);
    return status.ok() ? Internal("sums of different sizes were added") : status;
  });
  bool named = false;
  for (const Status& status : statuses) {
    EXPECT_TRUE(status.kind() == StatusKind::kMismatch || status.kind() == StatusKind::kTimeout) << status.ToString();
    if (status.kind() != StatusKind::kMismatch) continue;
    EXPECT_THAT(status.text(), HasSubstr("rank 3 asks for the sum of 7 fp32 elements"));
    named = true;
  }
  EXPECT_TRUE(named);
}

INSTANTIATE_TEST_SUITE_P(All, Order, ::testing::ValuesIn(kModes),
                         [](const auto& mode) { return std::string(mode.param.name); });

// Hosts whose ring by rank has two slow edges, as tally topology --measure would write it.
class MeasuredOrder : public ::testing::TestWithParam<JobSetting> {};

TEST_P(MeasuredOrder, AvoidsSlowEdgesAndBitsFollowIt) {
  const BandwidthMatrix matrix{{"a", "b", "c", "d"}, {0, 1, 9, 9, 1, 0, 9, 9, 9, 9, 0, 1, 9, 9, 1, 0}, 4};
  std::vector<MatrixPlace> places;
  for (const std::string& name : matrix.names) places.push_back({name, "host"});
  const std::vector<std::uint32_t> by_rank = {0, 1, 2, 3};
  const MatrixOrder order = OrderByMatrix(matrix, places, by_rank).value();
  ASSERT_EQ(order.least, 9);
  std::vector<std::uint32_t> positions(4);
  for (std::uint32_t p = 0; p < 4; ++p) positions[order.order[p]] = p;
  ASSERT_NE(positions, by_rank);

  ClusterOptions options = GetParam().Options(4);
  options.rank_settings = [&](std::uint32_t rank) {
    return std::vector<std::string>{"topology.node=" + matrix.names[rank]};
  };
  const auto expected = Outputs(options, by_rank);
  EXPECT_FALSE(Outputs(options, positions)[0] == expected[0]) << "these data show nothing";
  char path[] = "/tmp/tally-matrix-XXXXXX";
  const int file = mkstemp(path);
  ASSERT_GE(file, 0);
  const std::string text = PrintBandwidthMatrix(matrix);
  ASSERT_EQ(write(file, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  close(file);
  options.settings.push_back(std::string("topology.matrix=") + path);
  const auto got = Outputs(options, positions);
  unlink(path);
  for (std::uint32_t rank = 0; rank < 4; ++rank) EXPECT_TRUE(got[rank] == expected[0]) << "rank " << rank;
}

INSTANTIATE_TEST_SUITE_P(All, MeasuredOrder, ::testing::Values(kModes[0], kModes[1], kModes[4]),
                         [](const auto& mode) { return std::string(mode.param.name); });

TEST(Matrix, AFileThatIsNoneIsRefusedAtOnce) {
  ClusterOptions options = kModes[1].Options(2);
  options.settings.push_back("topology.matrix=/nonexistent/matrix");
  TestCluster cluster(options);
  auto config = cluster.WorkerConfig(0);
  ASSERT_TRUE(config.ok()) << config.status().text();
  const auto client = Client::Join(*config);
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_THAT(client.status().text(), HasSubstr("/nonexistent/matrix"));
}

// A rank never hands over its part, and another one says for whom it waits: for ranks, in an exchange as inside a node.
struct Wait {
  std::size_t mode;  // of kModes
  std::uint32_t absent, waiting;
  const char* text;
};
class OrderOfWaiting : public ::testing::TestWithParam<Wait> {};

TEST_P(OrderOfWaiting, NamesRanks) {
  const Wait wait = GetParam();
  ClusterOptions options = At(kModes[wait.mode], true);
  options.settings.push_back("step.timeout=" + Seconds(1));
  TestCluster cluster(options);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(4)};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    if (rank != wait.absent) TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
    // Only one waits, so that nobody else's waiting ends the job first.
    if (rank != wait.waiting) std::this_thread::sleep_for(std::chrono::seconds(2 * kSlowdown));
    return group->EndStep().status();
  });
  const Status& status = statuses[wait.waiting];
  EXPECT_EQ(status.kind(), StatusKind::kTimeout) << status.ToString();
  EXPECT_THAT(status.text(), HasSubstr(wait.text));
}

std::size_t ModeNumber(std::string_view name) {
  for (std::size_t i = 0; i < kModes.size(); ++i) {
    if (kModes[i].name == name) return i;
  }
  return kModes.size();
}
INSTANTIATE_TEST_SUITE_P(All, OrderOfWaiting,
                         ::testing::Values(Wait{ModeNumber("ring"), 3, 1, "slab 0 from rank 3"},
                                           Wait{ModeNumber("direct"), 3, 1, "slab 0 (w) from rank 0"},
                                           Wait{ModeNumber("nodes_ring"), 3, 1, "slab 0 from rank 3"},
                                           Wait{ModeNumber("nodes_ring"), 4, 1, "slab 0 (w) misses rank 4"},
                                           Wait{ModeNumber("nodes_frames"), 1, 4, "(w) from rank 1 of the node"}),
                         [](const auto& wait) {
                           return std::string(kModes[wait.param.mode].name) + "_" + std::to_string(wait.param.absent);
                         });

// A file of switches is about workers: a server runs where it does not name the host.
TEST(Servers, NeedNoPlaceAmongTheSwitches) {
  const std::string file = ::testing::TempDir() + "tally_servers_place_" + std::to_string(getpid());
  std::ofstream(file) << "SwitchName=s0 Nodes=tux[0-2]\n";
  JobSetting setting{"", 1, {"aggregation.mode=ps", "topology.file=" + file}};
  ClusterOptions options = setting.Options(2);
  options.rank_settings = [](std::uint32_t rank) {
    return std::vector<std::string>{"topology.host=tux" + std::to_string(rank)};
  };
  TestCluster cluster(options);
  EXPECT_EQ(Failures(cluster.Run([](Client& client, std::uint32_t) { return client.Barrier(); })), "");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace tally::test
