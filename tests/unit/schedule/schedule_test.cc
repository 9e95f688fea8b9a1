// Every schedule of the table verified for 1 to 64 positions, and the verifier against mutants of the ring.
#include "common/schedule/schedule.h"

#include <algorithm>
#include <bit>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using Steps = std::vector<ScheduleStep>;

class ScheduleTable : public ::testing::TestWithParam<std::size_t> {};

TEST_P(ScheduleTable, IsProvedForUpToSixtyFourPositions) {
  const ScheduleEntry& entry = Schedules()[GetParam()];
  for (std::uint32_t n = 1; n <= 64; ++n) {
    const auto report = VerifySchedule(entry, n);
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    EXPECT_EQ(report->order.size(), n);
  }
}

TEST_P(ScheduleTable, IsFoundByName) {
  const ScheduleEntry& entry = Schedules()[GetParam()];
  EXPECT_EQ(FindSchedule(entry.name).value(), &entry);
}

TEST_P(ScheduleTable, GeneratesTheSameStepsAgainAndClearsWhatWasThere) {
  const ScheduleEntry& entry = Schedules()[GetParam()];
  Steps first, second(100);
  entry.generate(Position{2}, Position{1}, 5, &first);
  entry.generate(Position{2}, Position{1}, 5, &second);
  EXPECT_EQ(first, second);
}

INSTANTIATE_TEST_SUITE_P(All, ScheduleTable, ::testing::Range(std::size_t{0}, Schedules().size()),
                         [](const auto& place) { return std::string(Schedules()[place.param].name); });

TEST(Schedule, UnknownNameListsWhatThereIs) {
  const Status status = FindSchedule("rong").status();
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  EXPECT_THAT(status.text(), ::testing::AllOf(::testing::HasSubstr("rong"), ::testing::HasSubstr("ring")));
}

void Ring(Position owner, Position self, std::uint32_t n, Steps* out) {
  FindSchedule("ring").value()->generate(owner, self, n, out);
}
std::uint64_t RingLoad(std::uint32_t n) { return 2 * (n - 1); }

TEST(Ring, StepsOfFourPositions) {
  Steps steps;
  Ring(Position{1}, Position{2}, 4, &steps);  // the first in the order
  EXPECT_EQ(steps, (Steps{{StepOp::kSendPartial, Position{3}}, {StepOp::kReceiveTotal, Position{1}},
                          {StepOp::kSendTotal, Position{3}}}));
  Ring(Position{1}, Position{0}, 4, &steps);  // the last before the owner
  EXPECT_EQ(steps, (Steps{{StepOp::kReceiveAdd, Position{3}}, {StepOp::kSendPartial, Position{1}},
                          {StepOp::kReceiveTotal, Position{3}}}));
  Ring(Position{1}, Position{1}, 4, &steps);
  EXPECT_EQ(steps, (Steps{{StepOp::kReceiveAdd, Position{0}}, {StepOp::kFinish, {}},
                          {StepOp::kSendTotal, Position{2}}}));
  Ring(Position{0}, Position{0}, 1, &steps);
  EXPECT_EQ(steps, (Steps{{StepOp::kFinish, {}}}));
}

TEST(Ring, AddsInRingOrderAndSendsTwiceAround) {
  const VerifyReport report = VerifySchedule(*FindSchedule("ring").value(), 4).value();
  EXPECT_EQ(report.order[1], (std::vector<std::uint32_t>{2, 3, 0, 1}));
  EXPECT_EQ(report.messages, 4u * 2 * 3);
  EXPECT_EQ(report.busiest_link_slabs, 6u);
}

// The most hops from any position to the owner of a slab.
int Hops(const ScheduleEntry& schedule, std::uint32_t n, std::uint32_t owner) {
  int most = 0;
  Steps steps;
  for (std::uint32_t from = 0; from < n; ++from) {
    int hops = 0;
    for (std::uint32_t at = from; at != owner; ++hops) {
      schedule.generate(Position{owner}, Position{at}, n, &steps);
      at = std::ranges::find(steps, StepOp::kSendPartial, &ScheduleStep::op)->peer.value;
    }
    most = std::max(most, hops);
  }
  return most;
}

std::uint64_t SentPerStripe(const ScheduleEntry& schedule, std::uint32_t n, std::uint32_t self,
                            std::set<std::uint32_t>* peers) {
  std::uint64_t sent = 0;
  Steps steps;
  for (std::uint32_t owner = 0; owner < n; ++owner) {
    schedule.generate(Position{owner}, Position{self}, n, &steps);
    for (const ScheduleStep& step : steps) {
      sent += step.op == StepOp::kSendPartial || step.op == StepOp::kSendTotal;
      if (step.op != StepOp::kFinish) peers->insert(step.peer.value);
    }
  }
  return sent;
}

// What the two promise: as many bytes as a ring, or about as many; few neighbours; few rounds.
TEST(HalvingDoubling, SendsWhatARingSendsToPowersOfTwoInLogRounds) {
  const ScheduleEntry& entry = *FindSchedule("halving_doubling").value();
  for (const std::uint32_t n : {1U, 2U, 3U, 5U, 8U, 33U, 64U}) {
    for (std::uint32_t self = 0; self < n; ++self) {
      std::set<std::uint32_t> peers;
      EXPECT_EQ(SentPerStripe(entry, n, self, &peers), 2 * (n - 1)) << n;
      for (const std::uint32_t peer : peers) {
        const std::uint32_t on = (peer + n - self) % n;
        EXPECT_TRUE(std::has_single_bit(on) || std::has_single_bit(n - on)) << n << ": " << self << " and " << peer;
      }
      EXPECT_LE(Hops(entry, n, self), std::bit_width(n - 1)) << n;
    }
  }
}

TEST(Tree, HasFewNeighboursAndLogRoundsAndSendsLittleMoreThanARing) {
  const ScheduleEntry& entry = *FindSchedule("tree").value();
  for (const std::uint32_t n : {1U, 2U, 3U, 5U, 8U, 33U, 64U}) {
    int most = 0;
    for (std::uint32_t self = 0; self < n; ++self) {
      std::set<std::uint32_t> peers;
      EXPECT_LE(SentPerStripe(entry, n, self, &peers), n == 1 ? 0 : 2 * n + 1) << n;
      EXPECT_LE(peers.size(), 4U) << n;
      const int hops = Hops(entry, n, self), bits = static_cast<int>(std::bit_width(n - 1));
      EXPECT_LE(hops, std::max(bits, 2 * bits - 3)) << n << ", as the cost model has it";
      most = std::max(most, hops);
    }
    if (std::has_single_bit(n)) {
      const int bits = static_cast<int>(std::bit_width(n - 1));
      EXPECT_EQ(most, std::max(bits, 2 * bits - 3)) << n;
    }
  }
}

// Bytes and rounds of the prices are those of the programs: what the busiest position sends, the longest way in and out.
TEST(Schedules, PricesCountTheProgramsBytesAndRounds) {
  for (const ScheduleEntry& entry : Schedules()) {
    for (const std::uint32_t n : {1U, 2U, 3U, 4U, 7U, 16U, 33U}) {
      std::uint64_t sent = 0;
      int hops = 0;
      for (std::uint32_t self = 0; self < n; ++self) {
        std::set<std::uint32_t> peers;
        sent = std::max(sent, SentPerStripe(entry, n, self, &peers));
        hops = std::max(hops, Hops(entry, n, self));
      }
      const double bytes = entry.seconds(1, 1, 0, n), rounds = entry.seconds(0, 1, 1, n);
      EXPECT_NEAR(bytes, static_cast<double>(sent) / n, entry.name == "tree" ? 2.0 / n : 1e-12)
          << entry.name << " " << n;
      EXPECT_GE(rounds, 2 * hops) << entry.name << " " << n;
      EXPECT_LE(rounds, 2 * hops + 4) << entry.name << " " << n;
      EXPECT_DOUBLE_EQ(entry.seconds(3e6, 1e9, 0.5, n), 3e-3 * bytes + 0.5 * rounds);
    }
  }
}

// Everybody sends to the owner, who sends to everybody: another legal shape, in arrival order.
void Star(Position owner, Position self, std::uint32_t n, Steps* out) {
  out->clear();
  if (self == owner) {
    for (std::uint32_t i = n - 1; i >= 1; --i) out->push_back({StepOp::kReceiveAdd, Position{(owner.value + i) % n}});
    out->push_back({StepOp::kFinish, {}});
    for (std::uint32_t i = 1; i < n; ++i) out->push_back({StepOp::kSendTotal, Position{(owner.value + i) % n}});
  } else {
    *out = {{StepOp::kSendPartial, owner}, {StepOp::kReceiveTotal, owner}};
  }
}

TEST(Verifier, AcceptsAnotherShape) {
  const ScheduleEntry star{100, "star", Star, [](std::uint32_t n) -> std::uint64_t { return n > 1 ? 2 : 0; }, nullptr, false};
  for (const std::uint32_t n : {1u, 2u, 3u, 4u, 7u}) {
    const auto report = VerifySchedule(star, n);
    EXPECT_TRUE(report.ok()) << report.status().ToString();
  }
}

bool HasOp(const Steps& steps, StepOp op) {
  return std::any_of(steps.begin(), steps.end(), [op](const ScheduleStep& s) { return s.op == op; });
}
void Drop(Steps* steps, StepOp op) {
  std::erase_if(*steps, [op](const ScheduleStep& s) { return s.op == op; });
}
ScheduleStep* FindOp(Steps* steps, StepOp op) {
  return &*std::find_if(steps->begin(), steps->end(), [op](const ScheduleStep& s) { return s.op == op; });
}

// One fault each, at owner 1 only, so that a verifier that samples owners would miss it.
struct Mutant {
  const char* name;
  ScheduleGenerator generate;
  const char* expected;  // part of the error
};

const Mutant kMutants[] = {
    {"DroppedSendPartial",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 3) Drop(out, StepOp::kSendPartial);
     },
     "never gets past receiving a partial sum"},
    {"DroppedSendTotal",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 2) Drop(out, StepOp::kSendTotal);
     },
     "never gets past receiving the total"},
    {"DroppedReceiveAdd",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 3) Drop(out, StepOp::kReceiveAdd);
     },
     "holds position 2 0 times"},
    {"DroppedReceiveTotal",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 0) Drop(out, StepOp::kReceiveTotal);
     },
     "ends without the total"},
    {"DroppedFinish",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1) Drop(out, StepOp::kFinish);
     },
     "before it has it"},
    {"DoubledAdd",  // position 2's contribution goes round and also straight to the owner
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value != 1) return;
       if (s.value == 2) out->insert(out->begin(), {StepOp::kSendPartial, Position{1}});
       if (s.value == 1) out->insert(out->begin() + 1, {StepOp::kReceiveAdd, Position{2}});
     },
     "not from left to right"},
    {"DoubledSend",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 2) out->insert(out->begin(), {StepOp::kSendPartial, Position{3}});
     },
     "never gets past"},
    {"WrongPeerSend",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 3) FindOp(out, StepOp::kSendPartial)->peer = Position{2};
     },
     "never gets past"},
    {"PeerOutOfRange",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 3) FindOp(out, StepOp::kSendPartial)->peer = Position{n};
     },
     "no peer"},
    {"PeerIsSelf",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 3) FindOp(out, StepOp::kSendPartial)->peer = s;
     },
     "no peer"},
    {"SendsBeforeAdding",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 0) std::swap((*out)[0], (*out)[1]);
     },
     "holds position 2 0 times"},
    {"TotalBeforeFinish",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 1) std::swap((*out)[1], (*out)[2]);
     },
     "before it has it"},
    {"FinishBeforeAdd",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 1) std::swap((*out)[0], (*out)[1]);
     },
     "0 times"},
    {"FinishTwice",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 1) out->push_back({StepOp::kFinish, {}});
     },
     "finishes twice"},
    {"FinishByAnother",
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && s.value == 2) out->push_back({StepOp::kFinish, {}});
     },
     "does not own"},
    {"OtherWayRound",  // a legal ring in the opposite direction: another order of addition
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       const auto mirror = [n](Position p) { return Position{(n - p.value) % n}; };
       Ring(mirror(o), mirror(s), n, out);
       for (ScheduleStep& step : *out) step.peer = mirror(step.peer);
     },
     "ring order wants"},
    {"CyclicWait",  // everybody wants the total before giving anything
     [](Position o, Position s, std::uint32_t n, Steps* out) {
       Ring(o, s, n, out);
       if (o.value == 1 && HasOp(*out, StepOp::kReceiveTotal)) {
         const ScheduleStep wait = *FindOp(out, StepOp::kReceiveTotal);
         Drop(out, StepOp::kReceiveTotal);
         out->insert(out->begin(), wait);
       }
     },
     "never gets past"},
};

class VerifierCatches : public ::testing::TestWithParam<Mutant> {};

TEST_P(VerifierCatches, TheMutant) {
  const ScheduleEntry entry{100, "mutant", GetParam().generate, RingLoad, nullptr, true};
  const auto report = VerifySchedule(entry, 4);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.status().text(), ::testing::HasSubstr(GetParam().expected));
  EXPECT_THAT(report.status().text(), ::testing::HasSubstr("mutant with 4 positions"));
}

INSTANTIATE_TEST_SUITE_P(Ring, VerifierCatches, ::testing::ValuesIn(kMutants),
                         [](const auto& mutant) { return std::string(mutant.param.name); });

TEST(Verifier, CatchesAContributionThatCountsTwice) {
  const ScheduleEntry entry{100, "doubled",
                            [](Position o, Position s, std::uint32_t n, Steps* out) {
                              Star(o, s, n, out);
                              if (s == o) out->insert(out->begin(), {StepOp::kReceiveAdd, Position{(o.value + 1) % n}});
                              if (s.value == (o.value + 1) % n) out->insert(out->begin(), {StepOp::kSendPartial, o});
                            },
                            [](std::uint32_t) -> std::uint64_t { return 3; }, nullptr, false};
  EXPECT_THAT(VerifySchedule(entry, 3).status().text(), ::testing::HasSubstr("2 times"));
}

TEST(Verifier, CatchesSumsThatAreNotNestedFromTheLeft) {
  const ScheduleEntry entry{100, "star", Star, [](std::uint32_t) -> std::uint64_t { return 2; }, nullptr, true};
  EXPECT_THAT(VerifySchedule(entry, 4).status().text(), ::testing::HasSubstr("left to right"));
}

TEST(Verifier, CatchesAWrongFormula) {
  const ScheduleEntry entry{100, "heavy", Ring, [](std::uint32_t n) -> std::uint64_t { return 2 * n; }, nullptr, true};
  EXPECT_THAT(VerifySchedule(entry, 5).status().text(), ::testing::HasSubstr("carries 8"));
}

}  // namespace
}  // namespace tally
