// Ways: every exchange that could sum a group, priced for the NICs at hand, and which one to take. Pure; the coordinator
// (mode auto, schedule auto) and `tally plan` ask the same functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/schedule/cpu_load.h"
#include "common/schedule/schedule.h"
#include "common/schedule/shares.h"

namespace tally {

// What a round of messages between hosts costs where nobody measured it: TCP through one switch, with both ends' wake-ups.
inline constexpr double kUsualAlphaS = 50e-6;

enum class WayKind : std::uint8_t { kPs, kDirect, kSchedule, kHierarchical, kHybrid };

struct Way {
  WayKind kind = WayKind::kDirect;
  std::string_view name;                    // ps, direct, hierarchical, hybrid, or the schedule's
  const ScheduleEntry* schedule = nullptr;  // kSchedule
  double seconds = 0;                       // the longer of the next two, and rounds of messages
  double bytes_seconds = 0;                 // of the busiest NIC; with servers also of the last frame's replies
  double cpu_seconds = 0;                   // of the busiest machine's cores; 0 where their costs are not known
  ShareTable table = {};                    // shares are empty where slabs have no owners that were chosen
};

struct WayQuestion {
  Placement placement;
  double alpha_s = kUsualAlphaS;
  ExchangeBytes owned;        // encoded, through owners
  double scheduled_bytes = 0;  // of one worker's gradient as a schedule carries it
  // Hierarchical: nodes sum through servers, else by a schedule, else straight to owners among them.
  bool servers_between = false;
  const ScheduleEntry* schedule_between = nullptr;
  bool one_machine = false;      // no NIC: not the busiest one's bytes count but those of all
  double frame_bytes = 0;        // of the largest reply: what a server sends last is sent to all; 0: not counted
  std::optional<CpuQuestion> cpu = std::nullopt;
};
// Of a job that stays on one machine; its sizes are left to the caller.
WayQuestion OnOneMachine(std::uint32_t workers, std::uint32_t servers);

// Best shares each: ps, direct and hybrid; without servers direct alone.
std::vector<Way> PriceOwnerWays(const WayQuestion& question);
// What stays inside a node is free, each node then counts as one worker on its NIC.
Way PriceHierarchical(const WayQuestion& question);
// Each NIC carries what the program says, whatever the positions behind it.
Way PriceSchedule(const ScheduleEntry& schedule, const WayQuestion& question);

// No exchange of these bytes is faster: best shares on all members, each NIC's workers summed for nothing, no rounds.
double BoundSeconds(const WayQuestion& question);

// The cheapest of `ways`, of which there is one, but the first of them unless another gains a twentieth: prices are not
// known better. `reason`: for people.
struct Choice {
  std::size_t way = 0;
  std::string reason;  // "ps 1.2 ms, direct 0.9 ms"
};
Choice ChooseWay(const std::vector<Way>& ways);

}  // namespace tally
