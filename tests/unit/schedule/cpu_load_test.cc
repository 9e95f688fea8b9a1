// CPU load: who takes how much of an aggregation, against sums by hand, and when it decides a way's time.
#include "common/schedule/cpu_load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/schedule/ways.h"
#include "tests/support/placement.h"

namespace tally {
namespace {

constexpr double kRate = 1e9;

CpuQuestion Question() {
  CpuQuestion question;
  question.cores = 2;
  question.elements = 1000;
  question.frames = 8;
  question.workers = question.servers = {.frame_s = 1e-3, .byte_s = 1e-6};
  question.owned = question.scheduled = {.encode_s = 1e-5, .decode_s = 2e-5, .decode_add_s = 4e-5};
  return question;
}
double Sum(const CpuLoad& load) {
  return std::accumulate(load.workers.begin(), load.workers.end(), 0.0) +
         std::accumulate(load.servers.begin(), load.servers.end(), 0.0);
}

// Frames and bytes cost half at each end, so over all members each is counted once.
TEST(CpuLoad, OwnersCountEachFrameByteAndElementOnce) {
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 7U}) {
    for (const auto set : {OwnerSet::kServers, OwnerSet::kWorkers, OwnerSet::kBoth}) {
      const Placement placement = test::Separate(n, 2, kRate);
      const std::vector<Share> shares = EqualShares(set, 2, n);
      const CpuQuestion question = Question();
      const CpuLoad load = CpuLoadOfOwners(placement, shares, {4000, 1000}, question);
      const double of_workers = set == OwnerSet::kServers ? 0 : n / static_cast<double>(shares.size());
      const double crossing = n - of_workers;  // pushes, in gradients: what a worker owns stays with it
      const double frames = 2 * question.frames * crossing, bytes = (4000 + 1000) * crossing;
      const double coding = n * (1e-5 + 2e-5) * 1000 + (n * 4e-5 + 1e-5) * 1000;
      EXPECT_NEAR(Sum(load), frames * 1e-3 + bytes * 1e-6 + coding, 1e-9) << n << " workers";
    }
  }
}

TEST(CpuLoad, SchedulesPassEachSlabTwiceAround) {
  for (const std::uint32_t n : {1U, 2U, 5U}) {
    const CpuQuestion question = Question();
    const CpuLoad load = CpuLoadOfSchedule(test::Separate(n, 0, kRate), 4000, question);
    const double hops = 2.0 * (n - 1);
    EXPECT_NEAR(Sum(load), hops * (8 * 1e-3 + 4000 * 1e-6) + (n * 3e-5 + (n - 1) * 4e-5) * 1000, 1e-9) << n;
  }
}

TEST(CpuLoad, NotesCostWorkersAlone) {
  CpuQuestion question = Question();
  const Placement placement = test::Separate(3, 0, kRate);
  const double without = Sum(CpuLoadOfSchedule(placement, 4000, question));
  question.notes = 5;
  EXPECT_NEAR(Sum(CpuLoadOfSchedule(placement, 4000, question)) - without, 3 * 5 * 1e-3, 1e-12);
}

TEST(CpuLoad, TheBusiestThreadOrMachineCounts) {
  Placement placement = test::Separate(3, 1, kRate);
  CpuQuestion question = Question();
  const CpuLoad load{{1, 2, 1}, {5}};
  EXPECT_EQ(CpuSeconds(placement, load, question), 5) << "a process has one thread";
  question.one_machine = true;
  EXPECT_EQ(CpuSeconds(placement, load, question), 5);
  question.cores = 1;
  EXPECT_EQ(CpuSeconds(placement, load, question), 9);
  question.one_machine = false;
  placement.server_nics = {0};
  EXPECT_EQ(CpuSeconds(placement, load, question), 6) << "worker 0 and the server share a machine";
}

TEST(CpuLoad, NodesShareWhatOneWorkerWouldDoBetweenThem) {
  Placement placement = test::Separate(4, 0, kRate);
  placement.worker_nics = {0, 0, 1, 1};
  const CpuQuestion question = Question();
  const CpuLoad load = CpuLoadOfNodes(placement, {{1, 3}, {}}, question);
  const double inside = (4e-5 + 2e-5 / 2) * 1000;
  EXPECT_NEAR(load.workers[0], 0.5 + inside, 1e-12);
  EXPECT_NEAR(load.workers[3], 1.5 + inside, 1e-12);
}

TEST(Ways, TheLongerOfBytesAndCoresCounts) {
  WayQuestion question;
  question.placement = test::Separate(4, 0, kRate);
  question.owned = {1e6, 1e6};
  question.scheduled_bytes = 1e6;
  const ScheduleEntry& ring = *FindSchedule("ring").value();
  const double bytes_s = PriceSchedule(ring, question).bytes_seconds;
  question.cpu = Question();
  question.cpu->workers = {1e-9, 1e-15};
  question.cpu->scheduled = {};
  EXPECT_NEAR(PriceSchedule(ring, question).seconds, bytes_s + 6 * question.alpha_s, 1e-12);
  question.cpu->workers = {1, 0};
  const Way slow = PriceSchedule(ring, question);
  EXPECT_NEAR(slow.cpu_seconds, 3 * 8 / 2.0, 1e-9) << "three quarters of eight frames, four times, half of each";
  EXPECT_NEAR(slow.seconds, slow.cpu_seconds + 6 * question.alpha_s, 1e-9);
}

TEST(Ways, AServersLastRepliesComeAfterAllPushes) {
  WayQuestion question;
  question.placement = test::Separate(4, 2, kRate);
  question.owned = {1e6, 1e6};
  const auto find = [&](std::string_view name) {
    const std::vector<Way> ways = PriceOwnerWays(question);
    return *std::ranges::find(ways, name, &Way::name);
  };
  const double ps = find("ps").bytes_seconds, direct = find("direct").bytes_seconds;
  question.frame_bytes = 1e5;
  EXPECT_NEAR(find("ps").bytes_seconds - ps, 4 * 1e5 / kRate, 1e-12);
  EXPECT_EQ(find("direct").bytes_seconds, direct);
}

}  // namespace
}  // namespace tally
