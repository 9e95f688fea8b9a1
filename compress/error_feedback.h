// ErrorFeedback: one residual per element of a group at one encode site, double-buffered: encoding reads `old` and
// writes `next`; Commit swaps, Drop forgets `next`. Both are per step and whole, never per bucket (CODECS §2).
// Residuals are in sum units and keyed by tensor and offset. Thread: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/schedule/layout.h"
#include "common/status.h"

namespace tally {

class ErrorFeedback {
 public:
  // Storage for the tensors marked in `tensors_with_feedback` (one flag per tensor of the layout). 8 bytes per element.
  ErrorFeedback(const Layout& layout, const std::vector<bool>& tensors_with_feedback);

  bool Has(std::uint32_t tensor) const;
  // Null if the tensor has none. Valid until the next Commit.
  const float* Old(const Slab& slab) const;
  // Marks the slab as rewritten in this step; a slab never asked for keeps its residual on Commit.
  float* Next(const Slab& slab);

  void Commit();
  void Drop();

  // Sum of |e| and of e*e over everything (double), and bytes held.
  double L1() const;
  double L2() const;
  std::uint64_t bytes() const;
  // The committed residual of a tensor (empty if none), for tests, export and hand-over.
  std::span<const float> Residual(std::uint32_t tensor) const;

 private:
  struct SlabState {
    std::uint64_t start = 0;     // into the buffers
    bool next_written = false;
  };
  std::vector<std::uint64_t> tensor_start_;   // per tensor, or kNone
  std::vector<std::uint64_t> tensor_elements_;
  std::vector<std::uint64_t> slab_touched_;   // starts of slabs written this step, with lengths
  std::vector<float> buffers_[2];
  int old_ = 0;
};

}  // namespace tally
