// Halves: of a slab's program the reduction tree into its owner alone, or the broadcast tree out of it alone. An
// all-gather is the second half of every rank's block, a reduce-scatter the first, a broadcast the second from one
// root. Pure. What it takes is priced from the programs themselves.
#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/schedule.h"

namespace tally {

// Drops the other half's steps. In kReduce the owner ends with the sum, in kBroadcast it begins with what all get; both
// keep kFinish, the point in between. kBoth drops nothing.
void KeepHalf(Half half, std::vector<ScheduleStep>* steps);

// Price of one half of every position's slab, `bytes` in all of them together: half of the schedule's, as the way out
// is the way in backwards.
double HalfSeconds(const ScheduleEntry& schedule, double bytes, double bytes_per_s, double alpha_s,
                   std::uint32_t positions);

// Price of getting `bytes` from `root` to all in equal pieces, each sent on when it is there and one after the other.
double BroadcastSeconds(const ScheduleEntry& schedule, double bytes, std::uint64_t pieces, double bytes_per_s,
                        double alpha_s, Position root, std::uint32_t positions);

// The cheapest schedules by these prices; the ring unless another gains a twentieth.
const ScheduleEntry& ChooseHalf(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions);
const ScheduleEntry& ChooseBroadcast(double bytes, std::uint64_t pieces, double bytes_per_s, double alpha_s,
                                     Position root, std::uint32_t positions);

}  // namespace tally
