// The cost model against the formulas of its header and their limits.
#include "common/schedule/cost_model.h"

#include <gtest/gtest.h>

#include "common/schedule/schedule.h"

namespace tally {
namespace {

constexpr double kB = 1e9, kM = 1e8;  // M/B = 0.1 s

ModelTimes Times(std::uint32_t n, std::uint32_t k, double alpha = 0) {
  return PredictTimes({kB, alpha, n, k}, kM, kM);
}

TEST(CostModel, ParameterServers) {
  EXPECT_DOUBLE_EQ(Times(8, 1).ps_central_s, 0.8);
  EXPECT_DOUBLE_EQ(Times(8, 1).ps_sharded_s, 0.8);
  EXPECT_DOUBLE_EQ(Times(8, 2).ps_sharded_s, 0.4);
  EXPECT_DOUBLE_EQ(Times(8, 8).ps_sharded_s, 0.1);
  EXPECT_DOUBLE_EQ(Times(8, 16).ps_sharded_s, 0.1);  // a worker's own NIC is then the limit
  EXPECT_DOUBLE_EQ(Times(8, 1, 0.25).ps_central_s, 0.8 + 0.5);
  EXPECT_EQ(Times(8, 0).ps_central_s, 0);
  EXPECT_EQ(Times(8, 0).ps_sharded_s, 0);
  EXPECT_EQ(Times(8, 0).ps_colocated_s, 0);
}

TEST(CostModel, CoLocatedServersOnAllWorkersMeetDirect) {
  for (const std::uint32_t n : {2u, 3u, 8u, 32u, 128u}) {
    EXPECT_NEAR(Times(n, n).ps_colocated_s, Times(n, 0).direct_s, 1e-12) << n;
    EXPECT_NEAR(Times(n, 3 * n).ps_colocated_s, Times(n, 0).direct_s, 1e-12) << n;
  }
  EXPECT_NEAR(Times(8, 2).ps_colocated_s, 0.1 * (1 + 6.0 / 2), 1e-12);
  EXPECT_NEAR(Times(8, 1).ps_colocated_s, 0.1 * 7, 1e-12);
}

TEST(CostModel, PeerToPeer) {
  EXPECT_DOUBLE_EQ(Times(4, 0).direct_s, 0.15);
  EXPECT_DOUBLE_EQ(Times(4, 0, 1).direct_s, 0.15 + 2);
}

TEST(CostModel, SchedulesArePricedInTheirTable) {
  const auto seconds = [](const char* name, std::uint32_t n, double alpha) {
    return FindSchedule(name).value()->seconds(kM, kB, alpha, n);
  };
  EXPECT_DOUBLE_EQ(seconds("ring", 4, 0), 0.15);
  EXPECT_DOUBLE_EQ(seconds("ring", 4, 1), 0.15 + 6);
  EXPECT_DOUBLE_EQ(seconds("tree", 4, 1), 0.2 + 4);
  EXPECT_DOUBLE_EQ(seconds("tree", 5, 1), 0.2 + 6);
  EXPECT_DOUBLE_EQ(seconds("tree", 64, 1), 0.2 + 18);
  EXPECT_DOUBLE_EQ(seconds("halving_doubling", 5, 1), 0.16 + 6) << "the ring's bytes in the tree's rounds";
  for (const ScheduleEntry& schedule : Schedules()) EXPECT_EQ(schedule.seconds(kM, kB, 1, 1), 0) << schedule.name;
}

// T = 2n(n-1)M/((n^2+kn-2k)B) for n >= 3, k <= n; k = 0 gives the ring's bound, k = n gives M/B.
TEST(CostModel, HybridMeetsTheClosedFormOfTheDesign) {
  for (std::uint32_t n = 3; n <= 128; n += n < 16 ? 1 : 16) {
    for (std::uint32_t k = 0; k <= n; ++k) {
      const double dn = n, dk = k;
      const double expected = 2 * dn * (dn - 1) / (dn * dn + dk * dn - 2 * dk) * kM / kB;
      EXPECT_NEAR(Times(n, k).hybrid_s, expected, 1e-9) << n << " workers, " << k << " servers";
    }
    EXPECT_NEAR(Times(n, 0).hybrid_s, Times(n, 0).direct_s, 1e-9);
    EXPECT_NEAR(Times(n, n).hybrid_s, kM / kB, 1e-9);
    EXPECT_NEAR(Times(n, 2 * n).hybrid_s, kM / kB, 1e-9);  // more servers do not help
  }
}

TEST(CostModel, HybridIsNeverSlowerThanItsParts) {
  for (const std::uint32_t n : {2u, 3u, 7u, 32u}) {
    for (const std::uint32_t k : {1u, 2u, 5u, 32u}) {
      for (const double down : {0.1, 0.5, 1.0, 2.0, 10.0}) {
        const ModelTimes times = PredictTimes({kB, 0, n, k}, kM, down * kM);
        EXPECT_LE(times.hybrid_s, times.direct_s + 1e-9) << n << " " << k << " " << down;
        EXPECT_LE(times.hybrid_s, times.ps_sharded_s + 1e-9) << n << " " << k << " " << down;
      }
    }
  }
}

TEST(CostModel, DirectionsCountApart) {
  const ModelTimes times = PredictTimes({kB, 0, 4, 2}, kM / 4, kM);
  EXPECT_DOUBLE_EQ(times.ps_sharded_s, 0.2);
  EXPECT_DOUBLE_EQ(times.direct_s, 0.75 * 0.125);
}

TEST(CostModel, OneWorkerNeedsNoPeer) {
  const ModelTimes times = Times(1, 1, 1);
  EXPECT_EQ(times.direct_s, 0);
  EXPECT_EQ(times.hybrid_s, 0);
}

}  // namespace
}  // namespace tally
