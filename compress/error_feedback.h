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
  // Between steps: in the step to come every residual counts as `factor` times what it is. Commit takes that over for
  // all of them, also for those that the step does not rewrite; Drop forgets it.
  void Scale(float factor);
  // What the residual counts as. Null if the tensor has none. Valid until the next call of either Old or of Commit.
  const float* Old(const Slab& slab) const;
  // Marks the slab as rewritten in this step; a slab never asked for keeps its residual on Commit.
  float* Next(const Slab& slab);
  // The same for a whole tensor, whose residual is one run.
  const float* OldTensor(std::uint32_t tensor) const;
  float* NextTensor(std::uint32_t tensor);
  // Takes back what Next gave out in this step: the tensor keeps its residual on Commit.
  void Keep(std::uint32_t tensor);

  // Adds to a tensor's residual from element `offset` on, in whatever the open step has written too, so that neither
  // verdict loses it: what a leaver or a former owner hands over.
  void Add(std::uint32_t tensor, std::uint64_t offset, std::span<const float> values);
  // Between steps: a tensor's residual becomes `values`, all of it.
  void Restore(std::uint32_t tensor, std::span<const float> values);

  void Commit();
  void Drop();

  // Sum of |e| and of e*e over everything committed (double), and bytes held.
  double L1() const;
  double L2() const;
  std::uint64_t bytes() const;
  // The committed residual of a tensor (empty if none), for tests, export and hand-over.
  std::span<const float> Residual(std::uint32_t tensor) const;

 private:
  // `old` flips per tensor, so that a tensor's residual is one run; its slabs that were not rewritten are copied.
  struct TensorState {
    std::uint64_t start = 0;  // into both buffers, or kNone
    std::uint64_t elements = 0;
    std::uint64_t slab_elements = 0;
    std::uint32_t first_slab = 0, slab_count = 0;
    std::uint32_t slabs_written = 0;  // in this step
    unsigned old = 0;
  };
  void EndStep(bool commit);
  void ClearWritten(TensorState* tensor);
  void KeepUnwritten(const TensorState& tensor);
  const float* Scaled(const float* e, std::uint64_t count) const;
  template <typename Term>
  double Sum(const Term& term) const;

  std::vector<TensorState> tensors_;
  std::vector<bool> written_;           // per slab of the layout, in this step
  std::vector<std::uint32_t> touched_;  // tensors with slabs_written > 0
  std::vector<float> buffers_[2];
  float factor_ = 1;                    // of the open step
  mutable std::vector<float> scaled_;   // what Old gave out, if that is not 1
};

}  // namespace tally
