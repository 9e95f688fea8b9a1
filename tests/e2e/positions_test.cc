// Ranks that a launcher dealt over nodes in any order: sums are exact in all modes, bits follow positions, errors name
// ranks, and whoever shares a node stands together.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kElements = 65536 * 2 + 1;
// Of five ranks: nodes a, b, a, c, b and switches that put c before b.
constexpr const char* kNodes[] = {"a", "b", "a", "c", "b"};
constexpr const char* kSwitches[] = {"s/l1", "s/l2", "s/l1", "s/l1", "s/l2"};
constexpr std::uint32_t kPositions[] = {0, 3, 1, 2, 4};  // by rank

std::vector<std::string> Shuffled(std::uint32_t rank) {
  return {std::string("topology.node=") + kNodes[rank], std::string("topology.switch=") + kSwitches[rank]};
}

const std::vector<JobSetting> kModes = {
    {"ps", 2, {"aggregation.mode=ps"}},
    {"ring", 0, {"aggregation.mode=ring"}},
    {"tree", 0, {"aggregation.mode=ring", "aggregation.schedule=tree"}},
    {"halving", 0, {"aggregation.mode=ring", "aggregation.schedule=halving_doubling"}},
    {"direct", 0, {"aggregation.mode=ring", "compression.codec=int8", "compression.min_compress_bytes=0"}, false},
    {"hybrid", 1, {"aggregation.mode=hybrid"}},
};

class Positions : public ::testing::TestWithParam<JobSetting> {};

// Two steps of a job of five; `value` by rank. Each rank's outputs, one step after the other.
using Value = std::function<float(std::uint32_t rank, std::size_t step, std::size_t element)>;
std::vector<std::vector<float>> Outputs(ClusterOptions options, const Value& value) {
  TestCluster cluster(std::move(options));
  std::vector<std::vector<float>> outputs(5);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const std::vector<TensorSpec> tensors = {{"a", ElementCount(kElements)}, {"b", ElementCount(7)}};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
    for (std::size_t step = 0; step < 2; ++step) {
      for (std::uint32_t t = 0; t < 2; ++t) {
        const std::span<float> input = group->Input(t);
        for (std::size_t i = 0; i < input.size(); ++i) input[i] = value(rank, step, i + t);
      }
      for (std::uint32_t b = 0; b < group->bucket_count(); ++b) (void)group->Submit(BucketId(b));
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

TEST_P(Positions, BitsFollowThem) {
  // No sum of these is exact, so another order of addition gives other bits.
  const Value by_position = [](std::uint32_t position, std::size_t step, std::size_t i) {
    return static_cast<float>((i * 7919 + position * 104729 + step * 31) % 10007) / 3.0F * (position % 2 == 0 ? 1.0F : 1e-3F);
  };
  ClusterOptions plain = GetParam().Options(5), shuffled = plain;
  shuffled.rank_settings = Shuffled;
  const auto expected = Outputs(plain, by_position);
  const auto got = Outputs(shuffled, [&](std::uint32_t rank, std::size_t step, std::size_t i) {
    return by_position(kPositions[rank], step, i);
  });
  for (std::uint32_t rank = 0; rank < 5; ++rank) {
    EXPECT_EQ(got[rank], expected[0]) << "rank " << rank;
    ASSERT_FALSE(got[rank].empty());
  }
}

TEST_P(Positions, SumsAreExact) {
  if (!GetParam().exact) return;
  ClusterOptions options = GetParam().Options(5);
  options.rank_settings = Shuffled;
  TestCluster cluster(options);
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    for (const std::size_t n : {std::size_t{1}, std::size_t{7}, kElements}) {
      std::vector<float> data(n);
      for (std::size_t i = 0; i < n; ++i) data[i] = IntValue(rank, i);
      TALLY_RETURN_IF_ERROR(client.AllReduce(data, ReduceOp::kSum));
      for (std::size_t i = 0; i < n; ++i) {
        if (data[i] != IntSum(5, i)) return Internal("element " + std::to_string(i) + " of " + std::to_string(n));
      }
    }
    return Status::Ok();
  });
  EXPECT_EQ(Failures(statuses), "");
}

TEST_P(Positions, ErrorsNameRanks) {
  ClusterOptions options = GetParam().Options(5);
  options.rank_settings = Shuffled;
  options.settings.push_back("step.timeout=300ms");
  TestCluster cluster(options);
  // Rank 3, at position 2, asks for another sum than the others.
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    std::vector<float> data(rank == 3 ? 9 : 7, 1.0F);
    return client.AllReduce(data, ReduceOp::kSum);
  });
  for (const Status& status : statuses) {
    EXPECT_FALSE(status.ok());
    if (status.kind() == StatusKind::kMismatch) EXPECT_THAT(status.text(), HasSubstr("rank 3 "));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Positions, ::testing::ValuesIn(kModes),
                         [](const auto& mode) { return std::string(mode.param.name); });

}  // namespace
}  // namespace tally::test
