// A training run gives the same weights, bit for bit, whichever way its gradients are summed.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <mutex>

#include "benchmarks/mlp/data.h"
#include "benchmarks/mlp/model.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint32_t kWorkers = 4, kSteps = 8;

// Pictures that are made up, so that the test needs no data set: class-dependent waves with noise.
mlp::Dataset Shard(std::uint32_t rank) {
  mlp::Dataset data;
  std::uint32_t state = 12345 + rank;
  for (std::size_t row = 0; row < 200; ++row) {
    const auto label = static_cast<std::uint8_t>((row % 3 + rank * 2) % mlp::kClasses);
    for (std::size_t j = 0; j < mlp::kInputs; ++j) {
      state = state * 1664525 + 1013904223;
      data.pixels.push_back(static_cast<float>((j * (label + 1U)) % 17) / 8.0F - 1.0F +
                            static_cast<float>(state >> 24) / 512.0F);
    }
    data.labels.push_back(label);
  }
  return data;
}

Status Train(Client& client, std::uint32_t rank, std::string* digest) {
  mlp::Mlp model(1);
  std::vector<TensorSpec> tensors;
  for (std::size_t t = 0; t < mlp::kTensors; ++t) {
    tensors.push_back(
        {mlp::TensorName(t), ElementCount(mlp::TensorSize(t)), DType::kFloat32, mlp::TensorShape(t)});
  }
  TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(tensors));
  const mlp::Dataset shard = Shard(rank);
  std::array<std::span<float>, mlp::kTensors> gradients;
  for (std::uint32_t t = 0; t < mlp::kTensors; ++t) gradients[t] = group->Input(t);
  mlp::Batch batch;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    mlp::DrawBatch(shard, 7, rank, step, 16, batch);
    std::vector<std::size_t> waiting(group->bucket_count());
    for (std::uint32_t b = 0; b < waiting.size(); ++b) waiting[b] = group->bucket(BucketId(b)).size();
    Status submitted;
    model.Backward(batch, gradients, [&](std::size_t layer) {
      for (const std::size_t t : {2 * layer + 1, 2 * layer}) {
        const BucketId bucket = group->bucket_of(static_cast<std::uint32_t>(t));
        if (--waiting[bucket.value] == 0 && submitted.ok()) submitted = group->Submit(bucket).status();
      }
    });
    TALLY_RETURN_IF_ERROR(submitted);
    TALLY_ASSIGN_OR_RETURN(const StepResult result, group->EndStep());
    if (result.outcome != Outcome::kCommitted) return Internal("skipped: " + result.reason);
    for (std::uint32_t t = 0; t < mlp::kTensors; ++t) model.Update(t, group->Output(t), 0.01F, 0.9F);
  }
  *digest = model.Sha256();
  return Status::Ok();
}

TEST(Training, WeightsAreTheSameBitsThroughPsDirectHybridAndRing) {
  struct Way {
    const char* name;
    std::uint32_t servers;
    std::vector<std::string> settings;
  };
  const std::vector<Way> ways = {
      {"ps", 2, {"aggregation.mode=ps"}},
      {"direct", 0, {"aggregation.mode=ring", "compression.codec=int8", "compression.exclude=*"}},
      {"hybrid", 2, {"aggregation.mode=hybrid"}},
      {"ring", 0, {"aggregation.mode=ring"}},
      {"ring, other buckets and frames", 0, {"aggregation.mode=ring", "link.frame=64KiB", "link.connections=2"}},
  };
  std::string expected;
  for (const Way& way : ways) {
    ClusterOptions options;
    options.workers = kWorkers;
    options.servers = way.servers;
    options.settings = way.settings;
    options.settings.push_back(std::string(way.name).size() > 6 ? "bucket.cap=1MiB" : "bucket.cap=256KiB");
    TestCluster cluster(options);
    std::array<std::string, kWorkers> digests;
    const auto statuses = cluster.Run(
        [&](Client& client, std::uint32_t rank) { return Train(client, rank, &digests[rank]); });
    ASSERT_EQ(Failures(statuses), "") << way.name;
    if (expected.empty()) expected = digests[0];
    for (const std::string& digest : digests) EXPECT_EQ(digest, expected) << way.name;
  }
  EXPECT_EQ(expected.size(), 64U);
}

// Lossy codecs: the ranks still agree bit by bit, through servers and directly.
TEST(Training, RanksAgreeUnderEveryCodec) {
  for (const char* codec : {"fp16", "bf16", "int8", "int8_shared", "int4", "onebit", "topk", "dgc", "randomk", "powersgd"}) {
    std::string through_servers;
    for (const std::uint32_t servers : {2U, 0U}) {
      ClusterOptions options;
      options.workers = kWorkers;
      options.servers = servers;
      options.settings = {servers > 0 ? "aggregation.mode=ps" : "aggregation.mode=ring",
                          std::string("compression.codec=") + codec, "compression.start_step=3"};
      TestCluster cluster(options);
      std::array<std::string, kWorkers> digests;
      const auto statuses = cluster.Run(
          [&](Client& client, std::uint32_t rank) { return Train(client, rank, &digests[rank]); });
      ASSERT_EQ(Failures(statuses), "") << codec;
      for (const std::string& digest : digests) EXPECT_EQ(digest, digests[0]) << codec;
      if (servers > 0) {
        through_servers = digests[0];
      } else {
        EXPECT_EQ(digests[0], through_servers) << codec << ": owners in workers and in servers do the same";
      }
    }
  }
}

}  // namespace
}  // namespace tally::test
