// Joining: what is refused, how soon, and in which words; and what happens when members misfit.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

ClusterOptions Ring(std::uint32_t workers) {
  ClusterOptions options;
  options.workers = workers;
  options.settings = {"aggregation.mode=ring"};
  return options;
}

TEST(Join, DuplicateRankIsRefusedAndTheFirstUndisturbed) {
  ClusterOptions options = Ring(2);
  TestCluster cluster(options);
  std::vector<Status> statuses(3);
  std::vector<std::thread> threads;
  std::atomic<bool> refused{false};
  const auto join = [&](std::uint32_t slot, std::uint32_t rank, int delay_ms) {
    threads.emplace_back([&, slot, rank, delay_ms] {
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      auto config = cluster.WorkerConfig(rank);
      ASSERT_TRUE(config.ok()) << config.status().text();
      auto client = Client::Join(*config);
      statuses[slot] = client.ok() ? (*client)->Barrier() : client.status();
      if (slot == 1) refused = true;
      for (int i = 0; i < 1000 && !refused; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (client.ok()) {
        EXPECT_TRUE((*client)->Leave().ok());
      }
    });
  };
  join(0, 0, 0);
  join(1, 1, 1000);
  join(2, 1, 300);  // comes first as rank 1; the other is refused while this one lives
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(statuses[0].ok()) << statuses[0].text();
  EXPECT_TRUE(statuses[2].ok()) << statuses[2].text();
  EXPECT_FALSE(statuses[1].ok());
  EXPECT_NE(statuses[1].text().find("rank 1"), std::string::npos) << statuses[1].text();
}

TEST(Join, WorldSizeAndJobKeysMustAgree) {
  ClusterOptions options = Ring(2);
  options.rank_settings = [](std::uint32_t rank) {
    return rank == 1 ? std::vector<std::string>{"bucket.cap=1MiB", "membership.join_timeout=3s"}
                     : std::vector<std::string>{"membership.join_timeout=3s"};
  };
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) { return client.Barrier(); });
  const bool first_won = statuses[0].kind() == StatusKind::kTimeout;
  const Status& refused = statuses[first_won ? 1 : 0];
  EXPECT_EQ(refused.kind(), StatusKind::kMismatch) << refused.ToString();
  EXPECT_NE(refused.text().find("bucket.cap"), std::string::npos) << refused.text();
}

TEST(Join, MissingRankEndsAtTheDeadline) {
  TestCluster cluster(Ring(3));
  auto config = cluster.WorkerConfig(0);
  ASSERT_TRUE(config.ok());
  config->config.membership.join_timeout = std::chrono::milliseconds(700);
  const auto begin = std::chrono::steady_clock::now();
  const auto client = Client::Join(*config);
  EXPECT_EQ(client.status().kind(), StatusKind::kTimeout) << client.status().ToString();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(Join, NobodyThereNamesTheAddress) {
  TestCluster cluster(Ring(2));
  auto config = cluster.WorkerConfig(1);  // rank 0, who would coordinate, never comes
  ASSERT_TRUE(config.ok());
  config->config.membership.join_timeout = std::chrono::milliseconds(700);
  const auto client = Client::Join(*config);
  ASSERT_FALSE(client.ok());
  EXPECT_NE(client.status().text().find("127.0.0.1"), std::string::npos) << client.status().text();
}

TEST(Join, BusyPortIsNamed) {
  ClusterOptions options;
  options.servers = 1;
  TestCluster cluster(options);
  Config config;
  config.server.listen = cluster.server(0).control_address();
  Config::Log log;
  log.level = "off";
  auto logger = Logger::Make(log);
  ASSERT_TRUE(logger.ok());
  const auto second = Server::Start(config, logger->get());
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().kind(), StatusKind::kUnavailable);
  const std::string port = config.server.listen.substr(config.server.listen.rfind(':') + 1);
  EXPECT_NE(second.status().text().find(port), std::string::npos) << second.status().text();
  EXPECT_NE(second.status().text().find("in use"), std::string::npos) << second.status().text();
}

TEST(Declare, MisfitNamesTensorAndBothValuesOnEveryRank) {
  TestCluster cluster(Ring(3));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    std::vector<TensorSpec> tensors = {{"weight", ElementCount(100), DType::kFloat32},
                                       {"bias", ElementCount(rank == 1 ? 20 : 10), DType::kFloat32}};
    return client.DeclareGroup(tensors).status();
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    EXPECT_NE(status.text().find("bias"), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("20"), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("10"), std::string::npos) << status.text();
  }
}

class CollectiveIn : public testing::TestWithParam<std::string> {};

TEST(Collective, DifferentSizesAreAnErrorOnEveryRank) {
  TestCluster cluster(Ring(3));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    std::vector<float> data(rank == 2 ? 200 : 100, 1.0F);
    return client.AllReduce(data);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    EXPECT_NE(status.text().find("200"), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("100"), std::string::npos) << status.text();
  }
}

// Both sizes have groups already, so that no declaration tells the ranks apart.
TEST_P(CollectiveIn, DifferentCallsOfKnownSizesAreAnErrorOnEveryRank) {
  ClusterOptions options;
  options.workers = 3;
  options.servers = GetParam() == "ps" ? 2 : 0;
  const bool on_node = GetParam() == "hierarchical";
  options.settings = {"aggregation.mode=" + std::string(GetParam() == "ps" || on_node ? GetParam() : "ring"),
                      std::string("compression.codec=") + (GetParam() == "direct" ? "int8" : "none"),
                      "step.timeout=20s"};
  TestCluster cluster(options);
  std::atomic<int> agreed{0};
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    std::vector<float> some(100, 1.0F), more(200, 1.0F);
    TALLY_RETURN_IF_ERROR(client.AllReduce(some));
    TALLY_RETURN_IF_ERROR(client.AllReduce(more));
    TALLY_RETURN_IF_ERROR(client.AllReduce(some, ReduceOp::kMean));
    ++agreed;
    return client.AllReduce(rank == 1 ? more : some);
  });
  EXPECT_GE(agreed, 1);  // the others may hear of the failure before their third call's end
  for (const Status& status : statuses) {
    EXPECT_EQ(status.kind(), StatusKind::kMismatch) << status.ToString();
    // On a node the ranks' first call was to find out whether all share memory.
    for (const char* named : {on_node ? "call 5" : "call 4", "200", "100", "rank 1"}) {
      EXPECT_NE(status.text().find(named), std::string::npos) << named << " in: " << status.text();
    }
  }
  // Servers take the next job after one that failed.
  for (const Status& status : cluster.Run([](Client& client, std::uint32_t) -> Status {
         std::vector<float> data(50, 1.0F);
         TALLY_RETURN_IF_ERROR(client.AllReduce(data));
         return data[49] == 3 ? Status::Ok() : Internal("a wrong sum");
       })) {
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}
INSTANTIATE_TEST_SUITE_P(Modes, CollectiveIn, testing::Values("ring", "direct", "ps", "hierarchical"));

TEST(Leave, UnequalNumbersOfCallsOnOneNodeDoNotHang) {
  ClusterOptions options;
  options.workers = 3;
  options.settings = {"aggregation.mode=hierarchical"};
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    std::vector<float> data(1000, 1.0F);
    for (int call = 0; call < (rank == 1 ? 2 : 3); ++call) TALLY_RETURN_IF_ERROR(client.AllReduce(data));
    return Status::Ok();
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1].text();
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_EQ(statuses[rank].kind(), StatusKind::kUnavailable) << statuses[rank].ToString();
    EXPECT_NE(statuses[rank].text().find("rank 1"), std::string::npos) << statuses[rank].text();
  }
}

TEST(Leave, UnequalNumbersOfStepsDoNotHang) {
  TestCluster cluster(Ring(3));
  const auto statuses = cluster.Run([](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(1000), DType::kFloat32};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    for (int step = 0; step < (rank == 1 ? 2 : 3); ++step) {
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
    }
    return Status::Ok();
  });
  EXPECT_TRUE(statuses[1].ok()) << statuses[1].text();
  for (const std::uint32_t rank : {0U, 2U}) {
    EXPECT_EQ(statuses[rank].kind(), StatusKind::kUnavailable) << statuses[rank].ToString();
    EXPECT_NE(statuses[rank].text().find("left the job"), std::string::npos) << statuses[rank].text();
    EXPECT_NE(statuses[rank].text().find("rank 1"), std::string::npos) << statuses[rank].text();
  }
}

// What rank 0 sent last may need its time on the way when that rank has left: no reason to fail.
TEST(Leave, TheLastStepEndsOverASlowLink) {
  ClusterOptions options = Ring(3);
  options.settings.push_back("membership.dead=60s");
  options.rank_settings = [](std::uint32_t rank) {
    return rank == 1 ? std::vector<std::string>{"link.rate=100kbit"} : std::vector<std::string>{};
  };
  TestCluster cluster(options);
  const auto statuses = cluster.Run([](Client& client, std::uint32_t) -> Status {
    std::vector<float> data(4096, 1);  // one slab, in more than a second
    TALLY_RETURN_IF_ERROR(client.AllReduce(data));
    return data[4095] == 3 ? Status::Ok() : Internal("wrong sum");
  });
  EXPECT_EQ(Failures(statuses), "");
}

}  // namespace
}  // namespace tally::test
