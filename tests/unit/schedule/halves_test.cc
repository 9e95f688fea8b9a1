// The two halves of every schedule for 1 to 64 positions, the verifier against broken ones, and what halves cost.
#include "common/schedule/halves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using Steps = std::vector<ScheduleStep>;

class Halves : public ::testing::TestWithParam<std::size_t> {};

TEST_P(Halves, AreProvedForUpToSixtyFourPositions) {
  const ScheduleEntry& entry = Schedules()[GetParam()];
  for (std::uint32_t n = 1; n <= 64; ++n) {
    for (const Half half : {Half::kReduce, Half::kBroadcast}) {
      const auto report = VerifySchedule(entry, n, half);
      ASSERT_TRUE(report.ok()) << report.status().ToString();
      EXPECT_EQ(report->messages, std::uint64_t{n} * (n - 1));
    }
    EXPECT_EQ(VerifySchedule(entry, n, Half::kReduce)->order, VerifySchedule(entry, n)->order);
  }
}

TEST_P(Halves, MakeTheWholeTogether) {
  const ScheduleEntry& entry = Schedules()[GetParam()];
  Steps whole, first, second;
  for (std::uint32_t self = 0; self < 7; ++self) {
    entry.generate(Position(3), Position(self), 7, &whole);
    first = second = whole;
    KeepHalf(Half::kReduce, &first);
    KeepHalf(Half::kBroadcast, &second);
    if (self == 3) second.erase(second.begin());  // kFinish is in both
    first.insert(first.end(), second.begin(), second.end());
    EXPECT_EQ(first, whole);
    KeepHalf(Half::kBoth, &first);
    EXPECT_EQ(first, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Halves, ::testing::Range(std::size_t{0}, Schedules().size()),
                         [](const auto& place) { return std::string(Schedules()[place.param].name); });

const ScheduleEntry& Ring() { return *FindSchedule("ring").value(); }

TEST(HalvesVerifier, NamesWhatIsMissing) {
  ScheduleEntry broken = Ring();
  broken.generate = [](Position owner, Position self, std::uint32_t n, Steps* out) {
    Ring().generate(owner, self, n, out);
    if (self.value == (owner.value + n - 1) % n && n > 2) std::erase_if(*out, [](const ScheduleStep& s) {
      return s.op == StepOp::kReceiveTotal;
    });
  };
  const Status status = VerifySchedule(broken, 4, Half::kBroadcast).status();
  EXPECT_EQ(status.kind(), StatusKind::kInternal);
  EXPECT_THAT(status.text(), ::testing::HasSubstr("ends without the total"));
  EXPECT_TRUE(VerifySchedule(broken, 4, Half::kReduce).ok());
}

TEST(HalvesVerifier, WantsEveryContribution) {
  ScheduleEntry broken = Ring();
  broken.generate = [](Position owner, Position self, std::uint32_t n, Steps* out) {
    Ring().generate(owner, self, n, out);
    if (self.value == (owner.value + 1) % n) out->erase(out->begin());                    // never sends
    if (self.value == (owner.value + 2) % n && self != owner) out->erase(out->begin());  // nor is it awaited
  };
  EXPECT_THAT(VerifySchedule(broken, 4, Half::kReduce).status().text(), ::testing::HasSubstr("holds position"));
  EXPECT_TRUE(VerifySchedule(broken, 4, Half::kBroadcast).ok());
}

TEST(HalvesPrice, IsHalfOfTheWhole) {
  for (const ScheduleEntry& entry : Schedules()) {
    EXPECT_DOUBLE_EQ(HalfSeconds(entry, 1e9, 1e9, 1e-3, 8) * 2, entry.seconds(1e9, 1e9, 1e-3, 8));
  }
}

TEST(HalvesPrice, OfABroadcastIsThatOfItsTree) {
  // A chain of 8: the first piece takes seven hops, the others follow.
  EXPECT_DOUBLE_EQ(BroadcastSeconds(Ring(), 100, 10, 10, 0.5, Position(2), 8), 7 * (1 + 0.5) + 9 * 1);
  // A binomial tree of 8: three sends one after the other; the root sends each piece three times.
  const ScheduleEntry& binomial = *FindSchedule("halving_doubling").value();
  EXPECT_DOUBLE_EQ(BroadcastSeconds(binomial, 100, 10, 10, 0.5, Position(2), 8), 3 * (1 + 0.5) + 9 * 3);
  EXPECT_EQ(BroadcastSeconds(Ring(), 100, 10, 10, 0.5, Position(0), 1), 9 * 0);
}

TEST(HalvesPrice, SmallBroadcastsBranchAndLargeOnesAreAChain) {
  EXPECT_NE(ChooseBroadcast(1024, 1, 1.25e9, 50e-6, Position(0), 16).name, "ring");
  EXPECT_EQ(ChooseBroadcast(1e9, 4000, 1.25e9, 50e-6, Position(0), 16).name, "ring");
  EXPECT_EQ(ChooseBroadcast(1024, 1, 1.25e9, 50e-6, Position(0), 2).name, "ring");
  EXPECT_EQ(ChooseHalf(1024, 1.25e9, 50e-6, 16).name, "halving_doubling");
  EXPECT_EQ(ChooseHalf(1024, 1.25e9, 50e-6, 1).name, "ring");
}

}  // namespace
}  // namespace tally
