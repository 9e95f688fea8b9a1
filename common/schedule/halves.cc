#include "common/schedule/halves.h"

#include <algorithm>

namespace tally {
namespace {

constexpr double kWorthIt = 0.95;  // prices are not known better

template <typename Price>
const ScheduleEntry& Cheapest(const Price& price) {
  const ScheduleEntry* best = &Schedules().front();
  double least = price(*best);
  for (const ScheduleEntry& schedule : Schedules()) {
    const double seconds = price(schedule);
    if (seconds >= kWorthIt * least) continue;
    best = &schedule;
    least = seconds;
  }
  return *best;
}

}  // namespace

void KeepHalf(Half half, std::vector<ScheduleStep>* steps) {
  if (half == Half::kBoth) return;
  std::erase_if(*steps, [half](const ScheduleStep& step) {
    if (step.op == StepOp::kFinish) return false;
    const bool reduces = step.op == StepOp::kSendPartial || step.op == StepOp::kReceiveAdd;
    return reduces != (half == Half::kReduce);
  });
}

double HalfSeconds(const ScheduleEntry& schedule, double bytes, double bytes_per_s, double alpha_s,
                   std::uint32_t positions) {
  return schedule.seconds(bytes, bytes_per_s, alpha_s, positions) / 2;
}

double BroadcastSeconds(const ScheduleEntry& schedule, double bytes, std::uint64_t pieces, double bytes_per_s,
                        double alpha_s, Position root, std::uint32_t positions) {
  const double piece_s = bytes / static_cast<double>(pieces) / bytes_per_s;
  std::vector<double> arrival(positions, 0);
  std::vector<std::uint32_t> reached = {root.value};  // whoever sends has been reached before
  std::vector<ScheduleStep> steps;
  std::uint64_t most_sends = 0;
  for (std::size_t i = 0; i < reached.size(); ++i) {
    const std::uint32_t self = reached[i];
    schedule.generate(root, Position(self), positions, &steps);
    std::uint64_t sends = 0;
    for (const ScheduleStep& step : steps) {
      if (step.op != StepOp::kSendTotal) continue;
      arrival[step.peer.value] = arrival[self] + static_cast<double>(++sends) * piece_s + alpha_s;
      reached.push_back(step.peer.value);
    }
    most_sends = std::max(most_sends, sends);
  }
  // The first piece is everywhere; whoever sends most then does so with each further one.
  return *std::max_element(arrival.begin(), arrival.end()) +
         static_cast<double>((pieces - 1) * most_sends) * piece_s;
}

const ScheduleEntry& ChooseHalf(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions) {
  return Cheapest([=](const ScheduleEntry& schedule) {
    return HalfSeconds(schedule, bytes, bytes_per_s, alpha_s, positions);
  });
}

const ScheduleEntry& ChooseBroadcast(double bytes, std::uint64_t pieces, double bytes_per_s, double alpha_s,
                                     Position root, std::uint32_t positions) {
  return Cheapest([=](const ScheduleEntry& schedule) {
    return BroadcastSeconds(schedule, bytes, pieces, bytes_per_s, alpha_s, root, positions);
  });
}

}  // namespace tally
