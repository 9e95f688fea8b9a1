// Schedule `ring`: the sum of a slab owned by position o starts at o+1, passes every position once and ends at o; the
// result makes the same way round. Bandwidth-optimal: 2(N-1) slabs per link and stripe of N (Patarasuk & Yuan 2009).
#include "common/schedule/schedule.h"

namespace tally {

void GenerateRing(Position owner, Position self, std::uint32_t positions, std::vector<ScheduleStep>* out) {
  out->clear();
  const Position left{(self.value + positions - 1) % positions};
  const Position right{(self.value + 1) % positions};
  if (self == owner) {
    if (positions > 1) out->push_back({StepOp::kReceiveAdd, left});
    out->push_back({StepOp::kFinish, {}});
    if (positions > 1) out->push_back({StepOp::kSendTotal, right});
    return;
  }
  if (left != owner) out->push_back({StepOp::kReceiveAdd, left});
  out->push_back({StepOp::kSendPartial, right});
  out->push_back({StepOp::kReceiveTotal, left});
  if (right != owner) out->push_back({StepOp::kSendTotal, right});
}

std::uint64_t RingBusiestLinkSlabs(std::uint32_t positions) { return 2 * (std::uint64_t{positions} - 1); }

double RingSeconds(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions) {
  const double n = positions;
  return 2 * (n - 1) / n * bytes / bytes_per_s + 2 * (n - 1) * alpha_s;
}

}  // namespace tally
