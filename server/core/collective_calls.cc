#include "server/core/collective_calls.h"

#include <string>

namespace tally {
std::string DescribeCollective(const CollectiveShape& shape) {
  return std::string(shape.op == ReduceOp::kSum ? "the sum" : "the mean") + " of " + std::to_string(shape.elements) +
         " " + std::string(DTypeName(shape.dtype)) + " elements";
}

Status CollectiveMismatch(Rank one, const CollectiveShape& ones, Rank other, const CollectiveShape& others) {
  const bool same_call = ones.call == others.call;
  const auto asked = [same_call](Rank rank, const CollectiveShape& shape) {
    return "rank " + std::to_string(rank.value) + (same_call ? "" : " in call " + std::to_string(shape.call)) +
           " asks for " + DescribeCollective(shape);
  };
  return Mismatch("collective call " + std::to_string(ones.call) + ": " + asked(one, ones) + ", " + asked(other, others) +
                  "; all ranks make the same calls in the same order");
}

Status CollectiveCalls::Note(Rank rank, const CollectiveShape& shape) {
  if (shape.call == 0) return Status::Ok();
  Call& known = recent_[shape.call % recent_.size()];
  if (known.shape.call < shape.call) known = {shape, rank};
  if (known.shape.call > shape.call || known.shape == shape) return Status::Ok();
  return CollectiveMismatch(known.rank, known.shape, rank, shape);
}

}  // namespace tally
