// Event simulation of one aggregation on a virtual cluster: any owners or schedule, with or without node stages. Pure.
// Messages are chunks of slabs; every link (a NIC's direction, a leaf's up- or downlink, a process' port inside a host)
// serves them first come, first served and cuts through: the next link begins with a message's head, and no link hands
// on faster than it gets.
#pragma once

// Chosen over fluid flows with max-min fair rates (as in Velho et al., TOMACS 2013, on SimGrid) because Tally's frames do
// leave a process in one order, and an event costs O(log n) where a fair share costs all flows.
// Not simulated: computation, credit, loss, incast; a process has one message of each lane (NIC, inside) in service and
// prefers what became ready to its own next slabs, as a small credit makes it.

#include <cstdint>
#include <vector>

#include "common/schedule/cluster.h"
#include "common/schedule/schedule.h"

namespace tally {

struct SimulatedExchange {
  const ScheduleEntry* schedule = nullptr;  // null: owners, with the shares below
  // Fractions of the bytes by server and by position; together they add up to 1. Empty: none. Positions are the workers,
  // with node stages the workers' hosts.
  std::vector<double> server_shares, position_shares;
  bool node_stages = false;  // sums inside each host first, results inside it last; slabs spread over its workers
  double bytes = 0;          // one worker's gradient: what node stages carry
  double up_bytes = 0;       // encoded, to the owners; in a schedule: what a whole partial sum takes
  double down_bytes = 0;     // back; in a schedule: a whole total
};

struct SimulationOptions {
  // Full: every process. Classes: one of each class of processes that a rotation of the positions maps onto each other;
  // it gives the same times, where the cluster is that regular. Auto: classes where that is less.
  enum class Detail : std::uint8_t { kAuto, kFull, kClasses } detail = Detail::kAuto;
  // Bounds of a run, full and by classes: about half a minute of one core at most, and 1 GB.
  std::uint64_t max_full_messages = 5u << 20, max_class_messages = 48u << 20;
  std::uint64_t pipeline_messages = 2u << 20;  // where all together send more, slabs are joined to larger chunks
};

struct SimulatedTime {
  double seconds = 0;  // until the last process has the last total
  bool by_classes = false;
  std::uint64_t messages = 0;  // simulated
  std::uint32_t chunks_per_owner = 0;
  double busiest_link_s = 0;   // of the link with most to carry: its bytes over its rate, no latency
  // Of the whole cluster.
  double nic_sent_bytes = 0, nic_received_bytes = 0;
  double leaf_bytes = 0;       // through uplinks
  double inside_bytes = 0;
};

// Errors: kInvalidArgument: bytes below 0; shares that are not one per server or position, or do not add up to 1.
Status CheckExchange(const Cluster& cluster, const SimulatedExchange& exchange);

// Errors: kInvalidArgument for a bad cluster or shares; kUnsupported with the bound where it would take more messages;
// kInternal for a schedule that does not end.
Result<SimulatedTime> Simulate(const Cluster& cluster, const SimulatedExchange& exchange,
                               const SimulationOptions& options = {});

// The least rotation of positions that maps cluster and exchange onto themselves: a divisor of the number of positions,
// which is itself the answer where nothing repeats. Requires valid arguments.
std::uint32_t SymmetryPeriod(const Cluster& cluster, const SimulatedExchange& exchange);

}  // namespace tally
