// What each mode expands to, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/coordinator.h"

namespace tally {
namespace {

using ::testing::HasSubstr;

Config With(Mode mode, std::size_t servers, const std::string& codec = "none") {
  Config config;
  config.aggregation.mode = mode;
  config.compression.codec = codec;
  for (std::size_t i = 0; i < servers; ++i) {
    config.servers.addresses.push_back("tcp://127.0.0.1:" + std::to_string(7070 + i));
  }
  return config;
}

TEST(Mode, PsSharesOnServers) {
  const ModeExpansion mode = ExpandMode(With(Mode::kPs, 2, "int8")).value();
  EXPECT_EQ(mode.exchange, ExchangeKind::kOwners);
  EXPECT_TRUE(mode.server_shares);
  EXPECT_FALSE(mode.worker_shares);
}

TEST(Mode, RingIsAScheduleForLinearCodecsAndDirectForTheOthers) {
  const ModeExpansion ring = ExpandMode(With(Mode::kRing, 0)).value();
  EXPECT_EQ(ring.exchange, ExchangeKind::kSchedule);
  EXPECT_EQ(ring.schedule, "ring");
  EXPECT_FALSE(ring.server_shares);
  EXPECT_FALSE(ring.worker_shares);
  Config other = With(Mode::kRing, 0, "randomk");
  other.aggregation.schedule = "tree";
  EXPECT_EQ(ExpandMode(other).value().schedule, "tree");
  EXPECT_TRUE(ExpandMode(other).value().warnings.empty());
  other.compression.codec = "int8";
  EXPECT_THAT(ExpandMode(other).value().warnings, ::testing::ElementsAre(HasSubstr("aggregation.schedule = tree is not used")));
  for (const char* codec : {"int8", "topk", "bf16", "fp16", "auto"}) {
    const ModeExpansion direct = ExpandMode(With(Mode::kRing, 0, codec)).value();
    EXPECT_EQ(direct.exchange, ExchangeKind::kOwners) << codec;
    EXPECT_EQ(direct.schedule, "") << codec;
    EXPECT_FALSE(direct.server_shares) << codec;
    EXPECT_TRUE(direct.worker_shares) << codec;
  }
}

TEST(Mode, WarnsOfACodecThatLosesWithoutErrorFeedback) {
  Config config = With(Mode::kPs, 1, "topk");
  EXPECT_TRUE(ExpandMode(config).value().warnings.empty());
  config.compression.error_feedback = false;
  const std::vector<std::string> warnings = ExpandMode(config).value().warnings;
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("topk"));
  EXPECT_THAT(warnings[0], HasSubstr("compression.error_feedback"));
  config.compression.codec = "int8";
  EXPECT_TRUE(ExpandMode(config).value().warnings.empty());
}

TEST(Mode, HybridSharesOnBoth) {
  const ModeExpansion mode = ExpandMode(With(Mode::kHybrid, 1)).value();
  EXPECT_EQ(mode.exchange, ExchangeKind::kOwners);
  EXPECT_TRUE(mode.server_shares);
  EXPECT_TRUE(mode.worker_shares);
}

TEST(Mode, NeedsServers) {
  for (const Mode mode : {Mode::kPs, Mode::kHybrid}) {
    const Status status = ExpandMode(With(mode, 0)).status();
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_THAT(status.text(), HasSubstr("servers.addresses"));
    EXPECT_THAT(status.text(), HasSubstr("ring"));
  }
}

TEST(Mode, HierarchicalIsNodeStagesAroundWhatRunsBetweenNodes) {
  Config config = With(Mode::kHierarchical, 0);
  config.aggregation.between = Mode::kRing;
  const auto ring = ExpandMode(config);
  ASSERT_TRUE(ring.ok()) << ring.status().ToString();
  EXPECT_TRUE(ring->node_stages);
  EXPECT_EQ(ring->exchange, ExchangeKind::kSchedule);
  config.compression.codec = "int8";
  EXPECT_TRUE(ExpandMode(config)->worker_shares) << "direct between nodes";
  config.aggregation.between = Mode::kPs;
  const auto no_servers = ExpandMode(config);
  EXPECT_EQ(no_servers.status().kind(), StatusKind::kInvalidArgument);
  EXPECT_THAT(no_servers.status().text(), HasSubstr("aggregation.between = ps"));
  config = With(Mode::kHierarchical, 2);
  config.aggregation.between = Mode::kPs;
  EXPECT_TRUE(ExpandMode(config)->server_shares && ExpandMode(config)->node_stages);
  config.aggregation.local = LocalStages::kOff;
  EXPECT_FALSE(ExpandMode(config)->node_stages);
}

TEST(Mode, LocalStagesGoAroundAnyMode) {
  for (const Mode mode : {Mode::kRing, Mode::kPs, Mode::kHybrid}) {
    Config config = With(mode, 2);
    EXPECT_FALSE(ExpandMode(config)->node_stages);
    config.aggregation.local = LocalStages::kOn;
    EXPECT_TRUE(ExpandMode(config)->node_stages);
  }
}

TEST(Mode, AutoIsOpenAndConnectsWhoMayOwn) {
  for (const std::size_t servers : {0U, 2U}) {
    const ModeExpansion mode = ExpandMode(With(Mode::kAuto, servers)).value();
    EXPECT_TRUE(mode.open);
    EXPECT_EQ(mode.exchange, ExchangeKind::kOwners);
    EXPECT_EQ(mode.server_shares, servers > 0);
    EXPECT_TRUE(mode.worker_shares);
    EXPECT_EQ(mode.schedule, "ring");
    EXPECT_EQ(ExpandMode(With(Mode::kAuto, servers, "int8")).value().schedule, "") << "no schedule carries it";
  }
  EXPECT_EQ(DescribeExpansion(ExpandMode(With(Mode::kAuto, 2)).value()),
            "node stages around auto: owners on servers, workers or both or schedule ring, for each group");
  Config flat = With(Mode::kAuto, 2);
  flat.aggregation.local = LocalStages::kOff;
  EXPECT_EQ(DescribeExpansion(ExpandMode(flat).value()),
            "auto: owners on servers, workers or both or schedule ring, for each group");
  Config job = With(Mode::kRing, 0);
  job.aggregation.schedule = "auto";
  EXPECT_EQ(ExpandMode(job).value().schedule, "auto");
  EXPECT_EQ(DescribeExpansion(ExpandMode(job).value()), "the cheapest schedule");
}

TEST(Mode, UnknownCodec) {
  EXPECT_EQ(ExpandMode(With(Mode::kRing, 0, "int9")).status().kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace tally
