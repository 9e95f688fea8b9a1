#include "server/core/collective_calls.h"

#include <string>
#include <utility>

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

std::string Asks(const CollectiveShape& shape) { return "asks for " + DescribeCollective(shape); }

Status Misfit(Rank one, std::uint64_t ones_call, const std::string& ones, Rank other, std::uint64_t others_call,
              const std::string& others) {
  const auto said = [same = ones_call == others_call](Rank rank, std::uint64_t call, const std::string& what) {
    return "rank " + std::to_string(rank.value) + (same ? " " : " in call " + std::to_string(call) + " ") + what;
  };
  return Mismatch("collective call " + std::to_string(ones_call) + ": " + said(one, ones_call, ones) + ", " +
                  said(other, others_call, others) + "; all ranks make the same calls in the same order");
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
  return Misfit(one, ones.call, Asks(ones), other, others.call, Asks(others));
}

Status CollectiveCalls::Note(Rank rank, const CollectiveShape& shape) {
  if (shape.call == 0) return Status::Ok();
  return Compare({shape, rank, {}});
}

Status CollectiveCalls::NoteOther(Rank rank, std::uint64_t call, std::string what) {
  return Compare({{.call = call}, rank, std::move(what)});
}

Status CollectiveCalls::Compare(Call call) {
  Call& known = recent_[call.shape.call % recent_.size()];
  if (known.shape.call > call.shape.call) return Status::Ok();
  if (known.shape.call < call.shape.call) {
    known = std::move(call);
    return Status::Ok();
  }
  if (known.shape == call.shape && known.other == call.other) return Status::Ok();
  const auto does = [](const Call& c) { return c.other.empty() ? Asks(c.shape) : c.other; };
  return Misfit(known.rank, known.shape.call, does(known), call.rank, call.shape.call, does(call));
}

}  // namespace tally
