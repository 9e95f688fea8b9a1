#include "server/core/collective_calls.h"

#include <string>

namespace tally {
namespace {

std::string OpText(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMean: return "mean";
    case ReduceOp::kMin: return "minimum";
    case ReduceOp::kMax: return "maximum";
    case ReduceOp::kProduct: return "product";
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor: return std::string("bitwise ") + ReduceOpName(op);
  }
  return "unknown operation";
}

}  // namespace

std::string DescribeCollective(const CollectiveShape& shape) {
  const std::string what = std::to_string(shape.elements) + " " + DTypeName(shape.dtype) + " elements";
  switch (shape.kind) {
    case CollectiveKind::kAllReduce: return "the " + OpText(shape.op) + " of " + what;
    case CollectiveKind::kBroadcast: return "a broadcast of " + what + " from rank " + std::to_string(shape.root);
    case CollectiveKind::kAllGather: return "an all-gather of " + what + " per rank";
    case CollectiveKind::kReduceScatter: return "a reduce-scatter by " + OpText(shape.op) + " of " + what + " per rank";
  }
  return "an unknown collective of " + what;
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
