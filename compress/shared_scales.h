// SharedScales: the scales that all workers encode a slab's blocks with in a step, so that their codes add up as
// integers (int8_shared): those that the replies of the last committed step gave. Double-buffered as residuals are.
// Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/schedule/layout.h"
#include "compress/error_feedback.h"

namespace tally {

inline constexpr std::size_t kSharedBlock = 256;  // elements with one scale
constexpr std::size_t SharedBlocks(std::size_t n) { return (n + kSharedBlock - 1) / kSharedBlock; }

class SharedScales {
 public:
  // For the slabs of the tensors marked, one flag per tensor of the layout.
  SharedScales(const Layout& layout, const std::vector<bool>& tensors);

  // Whether a committed step has given any; until then Old is all zeros.
  bool known() const { return known_; }
  // Per block of slab u, null if its tensor has none. 0 stands for a block that was all zeros everywhere.
  const float* Old(std::uint32_t slab) const { return any() ? scales_.Old(as_tensors_.slabs[slab]) : nullptr; }
  float* Next(std::uint32_t slab);
  // The step that is open gives scales, also where this process gets none (another one may carry its slabs, or all keep
  // their tensors): all members count them as known from the same step on.
  void Expect() { given_ = given_ || any(); }

  // Between steps: what a slab's Old is (empty if its tensor has none), and its replacement, which then counts as known.
  std::span<const float> Values(std::uint32_t slab) const {
    return any() ? scales_.Residual(slab) : std::span<const float>();
  }
  // Between steps: as if no step had committed yet.
  void Forget();
  void Restore(std::uint32_t slab, std::span<const float> values);
  // 0 or a power of two that int8 encodes with.
  static bool IsScale(float value);

  void Commit();
  void Drop();

 private:
  bool any() const { return !as_tensors_.slabs.empty(); }

  Layout as_tensors_;  // each slab a tensor of as many elements as it has blocks; empty if no tensor is marked
  ErrorFeedback scales_;
  bool known_ = false, given_ = false;
};

}  // namespace tally
