// tally model --cluster: the file with its faults, the sweep, where ways cross.
#include "worker/cli/cluster_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tally::cli {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kGood = R"(
[hosts]
workers = 4
nic = "100gbit"
inside = "100GBps"
alpha = "10us"
[network]
leaf_hosts = 2
oversubscription = 2
[servers]
workers_per_server = 4
[gradient]
bytes = "10MB"
[sweep]
workers = [16, 4, 16]
)";

TEST(ClusterFile, IsReadWhole) {
  const Result<ClusterFile> file = ParseClusterFile(kGood, "c.toml");
  ASSERT_TRUE(file.ok()) << file.status().text();
  EXPECT_EQ(file->workers, (std::vector<std::uint32_t>{4, 16})) << "sorted, each once";
  const Cluster cluster = file->At(16);
  EXPECT_EQ(cluster.workers_per_host, 4u);
  EXPECT_EQ(cluster.servers, 4u);
  EXPECT_EQ(cluster.nic_bytes_per_s, 12.5e9);
  EXPECT_EQ(cluster.inside_bytes_per_s, 100e9);
  EXPECT_DOUBLE_EQ(cluster.alpha_s, 1e-5);
  EXPECT_EQ(cluster.leaf_hosts, 2u);
  EXPECT_EQ(cluster.oversubscription, 2);
  EXPECT_TRUE(ReadClusterFile(TALLY_SOURCE_DIR "/deploy/cluster.toml").ok());
}

TEST(ClusterFile, NamesEveryFaultWithItsPlace) {
  const auto fault = [](std::string_view text) {
    const Result<ClusterFile> file = ParseClusterFile(text, "c.toml");
    EXPECT_FALSE(file.ok()) << text;
    return file.ok() ? std::string() : file.status().text();
  };
  const std::string several = fault("[hosts]\nnick = 1\nworkers = 0\nalpha = 5\n[sweep]\nworkers = [4]\n");
  EXPECT_THAT(several, HasSubstr("c.toml:2: a cluster file has no \"hosts.nick\"; did you mean 'hosts.nic'?"));
  EXPECT_THAT(several, HasSubstr("c.toml:3: hosts.workers: "));
  EXPECT_THAT(several, HasSubstr("c.toml:4: hosts.alpha: "));
  EXPECT_THAT(fault(""), HasSubstr("sweep.workers is missing"));
  EXPECT_THAT(fault("[sweep]\nworkers = []\n"), HasSubstr("c.toml:2"));
  EXPECT_THAT(fault("[sweep]\nworkers = [70000]\n"), HasSubstr("65536"));
  EXPECT_THAT(fault("[sweep]\nworkers = {a = 1}\n"), HasSubstr("c.toml:2"));
  EXPECT_THAT(fault("[sweep]\nworkers = [4]\n[hosts]\nslow = 1\n"), HasSubstr("need each other"));
  EXPECT_THAT(fault("[sweep]\nworkers = [4]\n[gradient]\ncodec = \"int9\"\n"), HasSubstr("gradient.codec"));
  EXPECT_THAT(fault("[sweep\n"), HasSubstr("c.toml:1"));
  EXPECT_THAT(fault("[sweep]\nworkers = [4]\n[servers]\ncount = 2\nworkers_per_server = 2\n"), HasSubstr("exclude"));
  EXPECT_FALSE(ReadClusterFile("/nonexistent/c.toml").ok());
  EXPECT_FALSE(ReadClusterFile("/").ok());
}

TEST(ClusterModel, SweepsAndSaysWhereWaysCross) {
  Console console;
  ClusterFile file = *ParseClusterFile(
      "[hosts]\nnic = \"8gbit\"\nalpha = \"0s\"\n[servers]\nworkers_per_server = 1\n[gradient]\nbytes = \"100MB\"\n"
      "[sweep]\nworkers = [2, 8]\n", "c.toml");
  const Result<nlohmann::json> result = SimulateCluster(file, console);
  ASSERT_TRUE(result.ok()) << result.status().text();
  const nlohmann::json& row = (*result)["rows"][1];
  EXPECT_EQ(row["workers"], 8);
  EXPECT_EQ(row["servers"], 8);
  EXPECT_NEAR(row["ring_s"].get<double>(), 0.175, 1e-6);
  EXPECT_NEAR(row["direct_s"].get<double>(), 0.175, 1e-3);
  EXPECT_NEAR(row["ps_sharded_s"].get<double>(), 0.1, 0.005);
  EXPECT_NEAR(row["ps_central_s"].get<double>(), 0.8, 0.01);
  EXPECT_TRUE(row["hierarchical_ring_s"].is_null()) << "one worker on each host";
  EXPECT_EQ(row["fastest"], "ps_sharded");
  const auto crosses = [&](const std::string& faster, const std::string& than, int from) {
    const nlohmann::json wanted = {{"faster", faster}, {"than", than}, {"from_workers", from}};
    return std::ranges::find((*result)["crossings"], wanted) != (*result)["crossings"].end();
  };
  EXPECT_TRUE(crosses("ps_sharded", "ring", 8)) << (*result)["crossings"];

  file.servers = file.workers_per_server = 0;
  file.codec = "0.25";
  const Result<nlohmann::json> alone = SimulateCluster(file, console);
  ASSERT_TRUE(alone.ok());
  EXPECT_TRUE((*alone)["rows"][1]["ps_sharded_s"].is_null());
  EXPECT_TRUE((*alone)["rows"][1]["hybrid_s"].is_null());
  EXPECT_NEAR((*alone)["rows"][1]["direct_s"].get<double>(), 0.175 / 4, 1e-3);
  EXPECT_NEAR((*alone)["rows"][1]["ring_s"].get<double>(), 0.175, 1e-6) << "a ring carries fp32 sums";
}

}  // namespace
}  // namespace tally::cli
