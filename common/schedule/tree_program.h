// What a position does for a slab that travels along a tree, once its receives from the subtrees behind it stand in the
// program: it sums, hands on, gets the result and gives it back to them.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/schedule/schedule.h"

namespace tally {

// `towards`: the neighbour on the way to the owner; none at the owner itself. Who was received from last, from the largest
// subtree, gets the result first.
inline void CompleteTreeProgram(std::optional<Position> towards, std::vector<ScheduleStep>* steps) {
  const std::size_t behind = steps->size();
  if (towards.has_value()) {
    steps->push_back({StepOp::kSendPartial, *towards});
    steps->push_back({StepOp::kReceiveTotal, *towards});
  } else {
    steps->push_back({StepOp::kFinish, {}});
  }
  for (std::size_t i = behind; i-- > 0;) steps->push_back({StepOp::kSendTotal, (*steps)[i].peer});
}

}  // namespace tally
