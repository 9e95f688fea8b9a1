// Schedule `halving_doubling`: partial sums of a slab gather in a binomial tree of which its owner is the root, the result
// goes the same ways back. Like vector halving and distance doubling (Thakur, Rabenseifner and Gropp 2005) it sends
// 2(N-1) slabs per position and stripe, as a ring does, in ceil(log2 N) rounds each way; partners are a power of two away
// around the circle (as in Bruck et al. 1997), so any number of positions does.
#include <algorithm>
#include <bit>

#include "common/schedule/tree_program.h"

namespace tally {

void GenerateHalvingDoubling(Position owner, Position self, std::uint32_t positions, std::vector<ScheduleStep>* out) {
  out->clear();
  const std::uint32_t place = (self.value + positions - owner.value) % positions;
  const auto at = [&](std::uint32_t other) { return Position{(owner.value + other) % positions}; };
  // The sender of place r is r less its lowest bit; those that send to it lie a smaller power of two behind it.
  const std::uint32_t bits = place == 0 ? std::bit_ceil(positions) : place & ~(place - 1);
  for (std::uint32_t bit = 1; bit < bits && place + bit < positions; bit <<= 1) {
    out->push_back({StepOp::kReceiveAdd, at(place + bit)});
  }
  CompleteTreeProgram(place == 0 ? std::nullopt : std::optional(at(place - bits)), out);
}

// Partial sums go 2^k back, from the places whose lowest bit that is; totals go 2^k on, and around meet them.
std::uint64_t HalvingDoublingBusiestLinkSlabs(std::uint32_t positions) {
  const auto places = [positions](std::uint32_t bit) { return (positions - 1 + bit) / (2 * bit); };
  std::uint64_t busiest = 0;
  for (std::uint32_t bit = 1; bit < positions; bit <<= 1) {
    const std::uint32_t around = positions - bit;
    busiest = std::max<std::uint64_t>(busiest, places(bit) + (std::has_single_bit(around) ? places(around) : 0));
  }
  return busiest;
}

double HalvingDoublingSeconds(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions) {
  const double n = positions;
  return 2 * (n - 1) / n * bytes / bytes_per_s + 2 * std::bit_width(positions - 1) * alpha_s;
}

}  // namespace tally
