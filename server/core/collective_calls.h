// CollectiveCalls: notices that ranks ask for different standalone collectives. Every rank numbers its calls from 1 and
// stamps its frames with the number and the shape; equal numbers must have equal shapes. Pure. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/frame.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

// kMismatch for a call that two ranks make differently, both shapes named.
Status CollectiveMismatch(Rank one, const CollectiveShape& ones, Rank other, const CollectiveShape& others);

// "the sum of 100 fp32 elements", "a broadcast of 7 int8 elements from rank 2".
std::string DescribeCollective(const CollectiveShape& shape);

class CollectiveCalls {
 public:
  // `shape.call` of a rank: its own or one that a frame brought; 0 (no collective) and calls that are long over pass.
  // Errors: kMismatch naming the call, both ranks and both shapes.
  Status Note(Rank rank, const CollectiveShape& shape);
  // The same of a call that sends no frames. `what` the rank does: "declares group model".
  Status NoteOther(Rank rank, std::uint64_t call, std::string what);

 private:
  struct Call {
    CollectiveShape shape;
    Rank rank;          // who named it first
    std::string other;  // what it is instead of a collective of that shape
  };
  Status Compare(Call call);
  std::array<Call, 4> recent_{};  // no rank is more than two calls ahead of another
};

}  // namespace tally
