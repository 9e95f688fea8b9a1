// Links between two processes of a job: found among several addresses, several of them, and what only probes.
#include "server/core/data_links.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/unit/common/link_harness.h"

namespace tally::testing {
namespace {

// Counts what comes, and over which links.
class Inbox : public LinkHandler {
 public:
  void OnFrame(Link& link, Frame& frame) override {
    steps.insert(frame.header.step.value);
    used.insert(&link);
  }
  void OnClosed(Link&, const Status&) override {}

  std::set<std::uint64_t> steps;
  std::set<Link*> used;
};

class NeighbourLinksTest : public LinkTest {
 protected:
  void SetUp() override {
    Use("tcp");
    Config::Log quiet;
    quiet.level = "off";
    logger = std::move(Logger::Make(quiet)).value();
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      links[rank] = std::make_unique<DataLinks>(&loop, &inbox[rank], logger.get(), 1 << 20);
      links[rank]->on_error = [this](const Status& why) {
        error = why;
        ++errors;
      };
    }
  }

  // Rank 0 listens at `host` and, as another process would, somebody at 127.0.0.2; both ranks know the members.
  std::vector<std::string> Start(const std::string& host) {
    LinkIdentity twin = Self(0);
    ++twin.incarnation;
    auto wrong = transport->Listen("tcp://127.0.0.2:0", twin, &server);
    auto right = links[0]->Listen(transport.get(), "tcp://" + host + ":0", Self(0));
    EXPECT_TRUE(wrong.ok() && right.ok());
    EpochMessage epoch;
    epoch.epoch = Self(0).epoch;
    epoch.job_hash = Self(0).job_hash;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      Member& member = epoch.members.emplace_back();
      member.index = rank;
      member.position = Position(rank);
      member.incarnation = Self(rank).incarnation;
    }
    for (std::uint32_t rank = 0; rank < 2; ++rank) links[rank]->Admit(epoch, Self(rank));
    return {*wrong, *right};
  }
  static LinkIdentity Self(std::uint32_t rank) { return Identity(Role::kWorker, rank); }

  const OwnerRef first{Role::kWorker, 0}, second{Role::kWorker, 1};
  std::unique_ptr<Logger> logger;
  Inbox inbox[2];
  std::unique_ptr<DataLinks> links[2];
  Status error;
  int errors = 0;
};

TEST_F(NeighbourLinksTest, LeadToTheMemberAndShareItsFrames) {
  const std::vector<std::string> endpoints = Start("127.0.0.3");
  links[1]->Dial(transport.get(), first, endpoints, 3, seconds(20));
  ASSERT_TRUE(RunUntil(loop, [&] { return links[1]->complete(first, 3) && links[0]->complete(second, 3); }));
  EXPECT_FALSE(links[0]->complete(second, 4)) << "the question who answers is no link";
  const std::vector<std::byte> payload = Pattern(50000, 1);
  FrameHeader header;
  for (std::uint64_t step = 0; step < 30; ++step) {
    header.step = StepId(step);
    links[1]->Send(first, header, payload, pool.WrapConst(payload, {}));
  }
  ASSERT_TRUE(RunUntil(loop, [&] { return inbox[0].steps.size() == 30; }));
  EXPECT_EQ(inbox[0].used.size(), 3u);
  EXPECT_TRUE(error.ok()) << error.ToString();
}

TEST_F(NeighbourLinksTest, NoWayIsToldOnce) {
  const std::vector<std::string> endpoints = Start("127.0.0.3");
  links[1]->Dial(transport.get(), first, {endpoints[0], "tcp://127.0.0.4:1"}, 2, milliseconds(300));
  ASSERT_TRUE(RunUntil(loop, [&] { return !error.ok(); }));
  EXPECT_NE(error.text().find("no address of worker 0 leads to it"), std::string::npos) << error.text();
  EXPECT_FALSE(links[1]->complete(first, 1));
  bool later = false;
  loop.After(milliseconds(100), [&] { later = true; });
  ASSERT_TRUE(RunUntil(loop, [&] { return later; }));
  EXPECT_EQ(errors, 1) << "two connections were wanted";
}

TEST_F(NeighbourLinksTest, MeasuringLeavesNoLinks) {
  const std::vector<std::string> endpoints = Start("127.0.0.3");
  MeasuredMessage measured;
  bool done = false;
  links[1]->Measure(transport.get(), first, endpoints, seconds(20), [&](const MeasuredMessage& m) {
    measured = m;
    done = true;
  });
  ASSERT_TRUE(RunUntil(loop, [&] { return done; }));
  EXPECT_GT(measured.bytes_per_s, 0);
  EXPECT_FALSE(links[0]->complete(second, 1));
  EXPECT_FALSE(links[1]->complete(first, 1));
  EXPECT_TRUE(inbox[0].steps.empty());
}

TEST_F(NeighbourLinksTest, AProbeOfNoMemberIsRefused) {
  const std::vector<std::string> endpoints = Start("127.0.0.3");
  LinkIdentity stranger = Self(1);
  stranger.probe = true;
  ++stranger.incarnation;
  EXPECT_EQ(Connect(endpoints[1], &client, stranger).kind(), StatusKind::kMismatch);
}

}  // namespace
}  // namespace tally::testing
