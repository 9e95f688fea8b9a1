#include "common/schedule/ways.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/check.h"
#include "common/human.h"

namespace tally {
namespace {

constexpr double kWorthIt = 0.95;
constexpr double kLoopbackBytesPerS = 2e9;  // that all members together pass on

bool AloneOnEqualNics(const Placement& placement) {
  std::set<std::uint32_t> nics(placement.worker_nics.begin(), placement.worker_nics.end());
  if (nics.size() != placement.worker_nics.size()) return false;
  return std::ranges::all_of(nics, [&](std::uint32_t nic) {
    return placement.nic_bytes_per_s[nic] == placement.nic_bytes_per_s[*nics.begin()];
  });
}

// Of the busiest NIC; on one machine all bytes pass the same cores and memory.
double BytesSeconds(const ShareTable& table, const WayQuestion& question) {
  if (!question.one_machine) return table.seconds;
  if (question.cpu.has_value()) return 0;  // it counts there
  double sent = 0;
  for (const NicLoad& load : table.loads) sent += load.sent_bytes;
  return sent / question.placement.nic_bytes_per_s.front();
}

// What crosses each NIC when every position owns its part of `bytes`, by the programs.
std::vector<NicLoad> LoadsOfSchedule(const ScheduleEntry& schedule, const Placement& placement, double bytes) {
  const auto n = static_cast<std::uint32_t>(placement.worker_nics.size());
  const double part = bytes / n;
  std::vector<NicLoad> loads(placement.nic_bytes_per_s.size());
  std::vector<ScheduleStep> steps;
  for (std::uint32_t owner = 0; owner < n; ++owner) {
    for (std::uint32_t self = 0; self < n; ++self) {
      schedule.generate(Position{owner}, Position{self}, n, &steps);
      for (const ScheduleStep& step : steps) {
        if (step.op != StepOp::kSendPartial && step.op != StepOp::kSendTotal) continue;
        const std::uint32_t from = placement.worker_nics[self], to = placement.worker_nics[step.peer.value];
        if (from == to) continue;
        loads[from].sent_bytes += part;
        loads[to].received_bytes += part;
      }
    }
  }
  return loads;
}

// A server sends while it receives, but the last frame's replies only when all of it is there.
double LastReplySeconds(const Placement& placement, OwnerSet set, const WayQuestion& question) {
  if (set == OwnerSet::kWorkers || question.one_machine) return 0;
  double slowest = 0;
  for (const std::uint32_t nic : placement.server_nics) {
    slowest = std::max(slowest, question.frame_bytes / placement.nic_bytes_per_s[nic]);
  }
  return static_cast<double>(placement.worker_nics.size()) * slowest;
}

// Bytes and computation overlap, rounds do not.
double Together(const Way& way, double rounds_s) { return std::max(way.bytes_seconds, way.cpu_seconds) + rounds_s; }

// What the coordinator publishes where no NIC tells owners apart.
ShareTable EqualTable(const Placement& placement, OwnerSet set, const ExchangeBytes& bytes) {
  ShareTable table;
  table.shares = EqualShares(set, static_cast<std::uint32_t>(placement.server_nics.size()),
                             static_cast<std::uint32_t>(placement.worker_nics.size()));
  table.loads = LoadsOfShares(placement, table.shares, bytes);
  FindBusiestNic(placement, &table);
  return table;
}

Way PriceOwners(WayKind kind, std::string_view name, OwnerSet set, const Placement& placement,
                const WayQuestion& question) {
  Way way{.kind = kind, .name = name};
  way.table = (question.one_machine ? EqualTable : SolveShares)(placement, set, question.owned);
  way.bytes_seconds = BytesSeconds(way.table, question) + LastReplySeconds(placement, set, question);
  if (question.cpu.has_value()) {
    way.cpu_seconds = CpuSeconds(placement, CpuLoadOfOwners(placement, way.table.shares, question.owned, *question.cpu),
                                 *question.cpu);
  }
  const bool alone = placement.worker_nics.size() == 1 && set != OwnerSet::kServers;
  way.seconds = Together(way, alone ? 0 : 2 * question.alpha_s);
  return way;
}

// The workers of a NIC as one.
Placement NodesOf(const Placement& placement) {
  Placement nodes = placement;
  std::set<std::uint32_t> seen;
  std::erase_if(nodes.worker_nics, [&](std::uint32_t nic) { return !seen.insert(nic).second; });
  return nodes;
}

}  // namespace

WayQuestion OnOneMachine(std::uint32_t workers, std::uint32_t servers) {
  WayQuestion question;
  question.one_machine = true;
  question.placement.nic_bytes_per_s.assign(std::size_t{workers} + servers, kLoopbackBytesPerS);
  for (std::uint32_t i = 0; i < workers; ++i) question.placement.worker_nics.push_back(i);
  for (std::uint32_t i = 0; i < servers; ++i) question.placement.server_nics.push_back(workers + i);
  return question;
}

Way PriceSchedule(const ScheduleEntry& schedule, const WayQuestion& question) {
  const Placement& placement = question.placement;
  const auto n = static_cast<std::uint32_t>(placement.worker_nics.size());
  Way way{.kind = WayKind::kSchedule, .name = schedule.name, .schedule = &schedule};
  const double rounds_s = schedule.seconds(0, 1, question.alpha_s, n);
  if (AloneOnEqualNics(placement)) {
    const double rate = placement.nic_bytes_per_s[placement.worker_nics.front()];
    const double seconds = schedule.seconds(question.scheduled_bytes, rate, 0, n);
    way.table.loads.resize(placement.nic_bytes_per_s.size());
    for (const std::uint32_t nic : placement.worker_nics) way.table.loads[nic] = {seconds * rate, seconds * rate};
  } else {
    way.table.loads = LoadsOfSchedule(schedule, placement, question.scheduled_bytes);
  }
  FindBusiestNic(placement, &way.table);
  way.bytes_seconds = BytesSeconds(way.table, question);
  if (question.cpu.has_value()) {
    way.cpu_seconds = CpuSeconds(placement, CpuLoadOfSchedule(placement, question.scheduled_bytes, *question.cpu),
                                 *question.cpu);
  }
  way.seconds = Together(way, rounds_s);
  return way;
}

std::vector<Way> PriceOwnerWays(const WayQuestion& question) {
  const Placement& placement = question.placement;
  std::vector<Way> ways = {PriceOwners(WayKind::kDirect, "direct", OwnerSet::kWorkers, placement, question)};
  if (placement.server_nics.empty()) return ways;
  ways.insert(ways.begin(), PriceOwners(WayKind::kPs, "ps", OwnerSet::kServers, placement, question));
  ways.push_back(PriceOwners(WayKind::kHybrid, "hybrid", OwnerSet::kBoth, placement, question));
  return ways;
}

Way PriceHierarchical(const WayQuestion& question) {
  const Placement nodes = NodesOf(question.placement);
  WayQuestion between = question;
  between.placement = nodes;
  between.cpu.reset();
  const bool scheduled = !question.servers_between && question.schedule_between != nullptr;
  const bool servers = question.servers_between && !nodes.server_nics.empty();
  Way way = scheduled ? PriceSchedule(*question.schedule_between, between)
                      : PriceOwners(WayKind::kHierarchical, "hierarchical",
                                    servers ? OwnerSet::kServers : OwnerSet::kWorkers, nodes, between);
  way.kind = WayKind::kHierarchical;
  way.name = "hierarchical";
  if (question.cpu.has_value()) {
    const CpuLoad load = scheduled ? CpuLoadOfSchedule(nodes, question.scheduled_bytes, *question.cpu)
                                   : CpuLoadOfOwners(nodes, way.table.shares, question.owned, *question.cpu);
    way.cpu_seconds = CpuSeconds(question.placement, CpuLoadOfNodes(question.placement, load, *question.cpu),
                                 *question.cpu);
    way.seconds = Together(way, way.seconds - way.bytes_seconds);
  }
  way.table.shares.clear();
  return way;
}

double BoundSeconds(const WayQuestion& question) {
  return SolveShares(NodesOf(question.placement), OwnerSet::kBoth, question.owned).seconds;
}

Choice ChooseWay(const std::vector<Way>& ways) {
  TALLY_CHECK(!ways.empty(), "a choice among no ways");
  Choice choice;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (ways[i].seconds < kWorthIt * ways[choice.way].seconds) choice.way = i;
    choice.reason += (i == 0 ? "" : ", ") + std::string(ways[i].name) + " " + HumanSeconds(ways[i].seconds);
  }
  return choice;
}

}  // namespace tally
