// CPU load: the time of cores that one aggregation takes, by what a frame, a byte and an element cost there. Pure.
// Seconds of one core. Costs are measured (`tally probe`) or usual; none is derived from an aggregation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/schedule/ownership.h"
#include "common/schedule/shares.h"

namespace tally {

// Of one transport. Halves for the sender and the receiver.
struct FrameCosts {
  double frame_s = 0;  // a frame from process to process, whatever its size: system calls, headers, wake-ups
  double byte_s = 0;   // a byte of its payload
};

// Of one codec, per element.
struct CodingCosts {
  double encode_s = 0, decode_s = 0, decode_add_s = 0;
};

struct CpuQuestion {
  double cores = 1;          // of each machine
  bool one_machine = false;  // that all members share; else those of one NIC have a machine
  double elements = 0;       // of a worker's gradient
  double frames = 0;         // that a worker's gradient fills on its way to the owners
  double notes = 0;          // frames without payload of each worker besides: the verdict, hand-overs between threads
  FrameCosts workers, servers;     // of links between workers, and to servers
  CodingCosts owned, scheduled;  // of what travels to owners and in schedules
};

// What the members do in one aggregation.
struct CpuLoad {
  std::vector<double> workers, servers;  // by position and index
};

// Through owners: workers encode, owners add and answer, workers decode. `shares` are relative.
CpuLoad CpuLoadOfOwners(const Placement& placement, std::span<const Share> shares, const ExchangeBytes& bytes,
                        const CpuQuestion& question);
// Whatever the schedule, N positions pass each slab N-1 times as a partial sum and N-1 times as the total.
CpuLoad CpuLoadOfSchedule(const Placement& placement, double bytes, const CpuQuestion& question);
// Node stages: `between` is the load of the nodes' exchange, one worker per NIC. What a node's one worker does there
// its workers share; each of them adds its part of all their gradients and copies its part of the mean.
CpuLoad CpuLoadOfNodes(const Placement& placement, const CpuLoad& between, const CpuQuestion& question);

// Of the busiest process, which has one thread for it, or of the busiest machine, whose processes share its cores.
double CpuSeconds(const Placement& placement, const CpuLoad& load, const CpuQuestion& question);

}  // namespace tally
