// Which cores a thread is bound to, on machines that hwloc makes of descriptions; lists of cores.
#include "common/topology/pin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/topology/cpu_list.h"

namespace tally {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(CpuList, ReadsNumbersAndRanges) {
  EXPECT_THAT(ParseCpuList("8,0-3,2").value(), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(ParseCpuList("4095").value(), ElementsAre(4095));
  for (const char* bad : {"", ",", "1,", ",1", "a", "1-", "-1", "3-2", "0x1", "1 2", "4096", "0-4096", "99999999999"}) {
    EXPECT_FALSE(ParseCpuList(bad).ok()) << bad;
  }
}

TEST(Pin, FollowsTheNicToItsNumaNode) {
  const auto nodes = NumaNodes("numa:2 core:4 pu:1").value();
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_THAT(nodes[1].cpus, ElementsAre(4, 5, 6, 7));
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const PinPlan plan = PlanPin("auto", nodes, "eth1", 1, all);
  EXPECT_THAT(plan.cpus, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(plan.numa, 1U);
  EXPECT_THAT(plan.why, HasSubstr("eth1"));
}

TEST(Pin, NeverLeavesWhatTheProcessMayUse) {
  const auto nodes = NumaNodes("numa:2 core:4 pu:1").value();
  const std::vector<std::uint32_t> some = {2, 3, 5}, first = {0, 1};
  EXPECT_THAT(PlanPin("auto", nodes, "eth1", 1, some).cpus, ElementsAre(5));
  const PinPlan outside = PlanPin("auto", nodes, "eth1", 1, first);
  EXPECT_THAT(outside.cpus, IsEmpty());
  EXPECT_FALSE(outside.numa.has_value());
  EXPECT_FALSE(outside.refused) << "auto asks for nothing that it must have";
  EXPECT_THAT(PlanPin("1-5", nodes, "", std::nullopt, some).cpus, ElementsAre(2, 3, 5));
  EXPECT_TRUE(PlanPin("6-7", nodes, "", std::nullopt, some).refused);
}

TEST(Pin, DoesNothingWhereThereIsNothingToChoose) {
  const auto one = NumaNodes("numa:1 core:4 pu:1").value(), two = NumaNodes("numa:2 core:2 pu:1").value();
  const std::vector<std::uint32_t> all = {0, 1, 2, 3};
  EXPECT_THAT(PlanPin("auto", one, "eth0", 0, all).cpus, IsEmpty());
  EXPECT_THAT(PlanPin("auto", two, "eth0", std::nullopt, all).cpus, IsEmpty()) << "nobody says where the NIC is";
  EXPECT_THAT(PlanPin("auto", two, "", std::nullopt, all).cpus, IsEmpty());
  EXPECT_THAT(PlanPin("auto", two, "eth0", 7, all).cpus, IsEmpty());
  EXPECT_THAT(PlanPin("none", two, "eth0", 0, all).cpus, IsEmpty());
}

TEST(Pin, ListedCoresPreferTheirNodesMemory) {
  const auto nodes = NumaNodes("numa:2 core:4 pu:1").value();
  const std::vector<std::uint32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(PlanPin("4-5", nodes, "", std::nullopt, all).numa, 1U);
  EXPECT_FALSE(PlanPin("3-4", nodes, "", std::nullopt, all).numa.has_value()) << "of both nodes";
}

TEST(Pin, AThreadRunsWhereItIsPutAndOthersStay) {
  const std::vector<std::uint32_t> before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  std::vector<std::uint32_t> inside;
  Status status;
  std::thread([&] {
    status = Pin(PlanPinHere(std::to_string(before.back()), ""));
    inside = AllowedCpus();
  }).join();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_THAT(inside, ElementsAre(before.back()));
  EXPECT_EQ(AllowedCpus(), before);
}

}  // namespace
}  // namespace tally
