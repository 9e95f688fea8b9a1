#include "server/core/owner_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/core/group_plan.h"

namespace tally {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kElements = 4 * 65536;
constexpr std::uint32_t kWorkers = 2;

Config Job(const std::string& codec, bool error_feedback) {
  Config job;
  job.job.workers = kWorkers;
  job.aggregation.mode = Mode::kPs;
  job.servers.addresses = {"tcp://127.0.0.1:1"};
  job.compression.codec = codec;
  job.compression.error_feedback = error_feedback;
  return job;
}

std::shared_ptr<const GroupTables> Tables(const Config& job) {
  DeclareMessage declared;
  declared.group = "default";
  declared.tensors = {{"w", ElementCount(kElements), DType::kFloat32}};
  const std::vector<DeclareMessage> all(kWorkers, declared);
  LayoutMessage layout = PlanGroup(all, job).value();
  layout.group = GroupId(1);
  return MakeGroupTables(std::move(layout), job, kWorkers).value();
}

// The least memory cap that a group fits, found by asking.
std::uint64_t Needed(const Config& job) {
  const auto tables = Tables(job);
  std::uint64_t fits = std::uint64_t{1} << 30, refused = 1;
  while (fits - refused > 1) {
    const std::uint64_t cap = (fits + refused) / 2;
    BufferPool pool;
    OwnerHost::Options options;
    options.self = {Role::kServer, 0};
    options.workers = kWorkers;
    options.memory_cap_bytes = cap;
    OwnerHost host(options, &pool);
    (host.AddGroup(tables, job).ok() ? fits : refused) = cap;
  }
  return fits;
}

TEST(OwnerHost, TheMemoryCapCountsTwoStepsResidualsAndCredit) {
  const std::uint64_t dense = kElements * sizeof(float);
  const Config none = Job("none", true);
  const std::uint64_t credit = MakeFlowLimits(*Tables(none), none, kWorkers).credit_bytes;
  EXPECT_EQ(Needed(none), 2 * dense + kWorkers * credit);
  // A lossy reply has a residual in two buffers.
  EXPECT_EQ(Needed(Job("int8", true)) - Needed(Job("int8", false)), 2 * dense);
}

TEST(OwnerHost, ARefusalNamesBothNumbersAndLaterGroupsCountToo) {
  const Config job = Job("none", true);
  const auto tables = Tables(job);
  BufferPool pool;
  OwnerHost::Options options;
  options.self = {Role::kServer, 0};
  options.workers = kWorkers;
  options.memory_cap_bytes = Needed(job) + 1000;
  OwnerHost host(options, &pool);
  ASSERT_TRUE(host.AddGroup(tables, job).ok());
  const Status status = host.AddGroup(tables, job);
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr(std::to_string(Needed(job))));
  EXPECT_THAT(status.text(), HasSubstr(std::to_string(Needed(job) + 1000)));
  EXPECT_THAT(status.text(), HasSubstr("server.memory_cap"));
}

TEST(OwnerHost, PushesForGroupsItDoesNotOwnAreCorrupt) {
  BufferPool pool;
  OwnerHost host({}, &pool);
  Frame frame;
  frame.header.group = GroupId(7);
  const Status status = host.OnPush(frame);
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_THAT(status.text(), HasSubstr("7"));
}

}  // namespace
}  // namespace tally
