// StepWeight: what a rank's gradient counts for in one step.
#pragma once

namespace tally {

// A rank's weight in one step: its gradient is multiplied by `factor`, and `declared` is what it adds to W. They differ
// only in a plain sum, which is a mean whose declared weights add up to one (rank 0 declares 1, the others 0).
struct StepWeight {
  float factor = 1;
  double declared = 1;
  bool operator==(const StepWeight&) const = default;
};

}  // namespace tally
