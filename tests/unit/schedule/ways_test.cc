// Ways: prices against the closed forms, loads of schedules against their programs, the choice.
#include "common/schedule/ways.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/schedule/cost_model.h"
#include "tests/support/placement.h"

namespace tally {
namespace {

constexpr double kB = 1e9, kM = 1e8, kAlpha = 1e-3;

WayQuestion Separate(std::uint32_t n, std::uint32_t k, double rate = kB) {
  WayQuestion question;
  question.placement = test::Separate(n, k, rate);
  question.alpha_s = kAlpha;
  question.owned = {kM, kM};
  question.scheduled_bytes = kM;
  return question;
}

const Way& Named(const std::vector<Way>& ways, std::string_view name) {
  return *std::ranges::find(ways, name, &Way::name);
}

TEST(Ways, EqualNicsMeetTheClosedForms) {
  for (const std::uint32_t n : {2U, 3U, 4U, 7U, 32U}) {
    for (const std::uint32_t k : {1U, 2U, 7U}) {
      const WayQuestion question = Separate(n, k);
      const std::vector<Way> ways = PriceOwnerWays(question);
      const ModelTimes times = PredictTimes({kB, kAlpha, n, k}, kM, kM);
      ASSERT_EQ(ways.size(), 3U);
      EXPECT_NEAR(Named(ways, "ps").seconds, times.ps_sharded_s, 1e-12);
      EXPECT_NEAR(Named(ways, "direct").seconds, times.direct_s, 1e-12);
      EXPECT_NEAR(Named(ways, "hybrid").seconds, times.hybrid_s, 1e-12);
      EXPECT_NEAR(PriceHierarchical(question).seconds, times.direct_s, 1e-12) << "every worker is a node";
      for (const ScheduleEntry& schedule : Schedules()) {
        EXPECT_NEAR(PriceSchedule(schedule, question).seconds, schedule.seconds(kM, kB, kAlpha, n), 1e-12);
      }
    }
  }
  EXPECT_EQ(PriceOwnerWays(Separate(4, 0)).size(), 1U);
  EXPECT_EQ(PriceOwnerWays(Separate(1, 0)).front().seconds, 0) << "a lone worker needs no round";
}

TEST(Ways, TheSlowestNicOfARingBoundsIt) {
  WayQuestion question = Separate(4, 0);
  question.placement.nic_bytes_per_s[2] = 0.3 * kB;
  const Way ring = PriceSchedule(*FindSchedule("ring").value(), question);
  EXPECT_NEAR(ring.bytes_seconds, 1.5 * kM / (0.3 * kB), 1e-9);
  EXPECT_EQ(ring.table.busiest_nic, 2U);
  EXPECT_NEAR(PriceOwnerWays(question).front().bytes_seconds, kM / (0.3 * kB), 1e-9) << "direct owns less there";
}

// Two nodes of two: in order a ring crosses each NIC once each way, shuffled twice; nodes first send half of that.
TEST(Ways, WhatStaysBehindANicDoesNotCount) {
  WayQuestion question = Separate(2, 0);
  question.placement.worker_nics = {0, 0, 1, 1};
  const ScheduleEntry& ring = *FindSchedule("ring").value();
  EXPECT_NEAR(PriceSchedule(ring, question).bytes_seconds, 1.5 * kM / kB, 1e-9);
  EXPECT_NEAR(PriceHierarchical(question).bytes_seconds, kM / kB, 1e-9);
  question.schedule_between = &ring;
  EXPECT_NEAR(PriceHierarchical(question).seconds, kM / kB + 2 * kAlpha, 1e-9) << "a ring of two";
  EXPECT_EQ(PriceHierarchical(question).name, "hierarchical");
  question.placement.worker_nics = {0, 1, 0, 1};
  EXPECT_NEAR(PriceSchedule(ring, question).bytes_seconds, 3 * kM / kB, 1e-9);
  question.placement.worker_nics = {0, 0, 0, 0};
  EXPECT_EQ(PriceSchedule(ring, question).bytes_seconds, 0);
  question.placement.server_nics = {1};
  question.servers_between = true;
  EXPECT_NEAR(PriceHierarchical(question).bytes_seconds, kM / kB, 1e-9) << "one node and a server";
}

TEST(Ways, NothingIsBelowTheBound) {
  for (const std::vector<std::uint32_t>& nics : std::vector<std::vector<std::uint32_t>>{
           {0, 1, 2, 3}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}}) {
    WayQuestion question = Separate(4, 2);
    question.placement.worker_nics = nics;
    std::vector<Way> ways = PriceOwnerWays(question);
    ways.push_back(PriceHierarchical(question));
    for (const ScheduleEntry& schedule : Schedules()) ways.push_back(PriceSchedule(schedule, question));
    for (const Way& way : ways) EXPECT_GE(way.bytes_seconds, BoundSeconds(question) - 1e-12) << way.name;
  }
  EXPECT_NEAR(BoundSeconds(Separate(4, 2)), Named(PriceOwnerWays(Separate(4, 2)), "hybrid").bytes_seconds, 1e-12);
}

TEST(Ways, OnOneMachineAllBytesCount) {
  WayQuestion question = OnOneMachine(4, 2);
  question.owned = {kM, kM};
  question.scheduled_bytes = kM;
  const std::vector<Way> ways = PriceOwnerWays(question);
  EXPECT_GT(Named(ways, "ps").bytes_seconds, Named(ways, "hybrid").bytes_seconds);
  EXPECT_GT(Named(ways, "hybrid").bytes_seconds, Named(ways, "direct").bytes_seconds);
  EXPECT_NEAR(Named(ways, "ps").bytes_seconds, Named(ways, "direct").bytes_seconds * 8 / 6, 1e-9);
  EXPECT_NEAR(PriceSchedule(*FindSchedule("ring").value(), question).bytes_seconds, Named(ways, "direct").bytes_seconds,
              1e-9);
}

TEST(Ways, TheFirstStaysUnlessAnotherGainsATwentieth) {
  std::vector<Way> ways(3);
  ways[0] = {.name = "a", .seconds = 1};
  ways[1] = {.name = "b", .seconds = 0.96};
  ways[2] = {.name = "c", .seconds = 0.94};
  EXPECT_EQ(ChooseWay({ways[0], ways[1]}).way, 0U);
  const Choice choice = ChooseWay(ways);
  EXPECT_EQ(choice.way, 2U);
  EXPECT_EQ(choice.reason, "a 1.00 s, b 960 ms, c 940 ms");
}

}  // namespace
}  // namespace tally
