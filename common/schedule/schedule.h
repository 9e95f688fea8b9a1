// Schedule: a peer-to-peer algorithm as data. For one slab's owner and one position a pure generator yields the steps
// that this position performs on that slab; every slab follows its own program, so a schedule is a reduction tree into
// the owner followed by a broadcast tree out of it. Programs of different slabs are independent of each other.
// Where to add one: a file here and one line in schedules.inc; the verifier's tests run over the table.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/units.h"

namespace tally {

enum class StepOp : std::uint8_t {
  kSendPartial,   // send the running sum (before any ReceiveAdd: the own contribution) to `peer`
  kReceiveAdd,    // receive a running sum from `peer`; running sum := received + running sum
  kFinish,        // owner only, exactly once, after its last ReceiveAdd: the running sum is the result
  kSendTotal,     // send the result to `peer`
  kReceiveTotal,  // receive the result from `peer`
};

struct ScheduleStep {
  StepOp op = StepOp::kFinish;
  Position peer;  // unused by kFinish
  bool operator==(const ScheduleStep&) const = default;
};

// Which of the two trees of a program runs (halves.h).
enum class Half : std::uint8_t { kBoth, kReduce, kBroadcast };

// A generator: appends nothing to state, reads no clock; the same arguments give the same steps.
// owner < positions, self < positions, positions >= 1. `out` is cleared first.
using ScheduleGenerator = void (*)(Position owner, Position self, std::uint32_t positions,
                                   std::vector<ScheduleStep>* out);

struct ScheduleEntry {
  std::uint8_t id = 0;
  std::string_view name;
  ScheduleGenerator generate = nullptr;
  // Slabs that the busiest directed link carries for one stripe of N slabs: the formula that the verifier checks.
  std::uint64_t (*busiest_link_slabs)(std::uint32_t positions) = nullptr;
  // Its price: of summing `bytes` on each of `positions` that have a full-duplex NIC of bytes_per_s each and pay alpha_s
  // for a round of messages, slabs pipelined. 0 for one position.
  double (*seconds)(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions) = nullptr;
  bool ring_order = false;  // promises sums in the order u+1, u+2, …, u (DESIGN §5), the bits of deterministic owners
};

inline constexpr std::string_view kScheduleAuto = "auto";  // a setting, not a schedule: the coordinator picks (ways.h)

std::span<const ScheduleEntry> Schedules();
// Errors: kInvalidArgument with the list of names.
Result<const ScheduleEntry*> FindSchedule(std::string_view name);

// Proves a schedule for N positions by running the programs of a whole stripe (every position once the owner) over
// links that buffer a single frame each: every position ends with the sum of every contribution exactly once, added
// from left to right in the order u+1, …, u where `ring_order` promises it; sends and receives pair up; nothing
// deadlocks; the busiest link carries what the formula says. Of a half: the owner ends with that sum (kReduce), or every
// position with what the owner began with (kBroadcast), over one frame per position and slab. Errors: kInternal with
// schedule, positions, owner, position and fault.
struct VerifyReport {
  std::uint64_t messages = 0;
  std::uint64_t busiest_link_slabs = 0;
  std::vector<std::vector<std::uint32_t>> order;  // per owner: positions in the order of addition
};
Result<VerifyReport> VerifySchedule(const ScheduleEntry& schedule, std::uint32_t positions, Half half = Half::kBoth);

}  // namespace tally
