#include "server/core/collective_calls.h"

#include <string>

namespace tally {
namespace {

std::string Describe(const CollectiveShape& shape) {
  return std::string(shape.op == ReduceOp::kSum ? "the sum" : "the mean") + " of " + std::to_string(shape.elements) +
         " " + std::string(DTypeName(shape.dtype)) + " elements";
}

}  // namespace

Status CollectiveCalls::Note(Position rank, const CollectiveShape& shape) {
  if (shape.call == 0) return Status::Ok();
  Call& known = recent_[shape.call % recent_.size()];
  if (known.shape.call < shape.call) known = {shape, rank};
  if (known.shape.call > shape.call || known.shape == shape) return Status::Ok();
  return Mismatch("collective call " + std::to_string(shape.call) + ": rank " + std::to_string(known.rank.value) +
                  " asks for " + Describe(known.shape) + ", rank " + std::to_string(rank.value) + " for " +
                  Describe(shape) + "; all ranks make the same calls in the same order");
}

}  // namespace tally
