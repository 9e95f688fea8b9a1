#include "worker/collective_plan.h"

#include <algorithm>

#include "common/check.h"
#include "common/schedule/layout.h"

namespace tally {
namespace {

// A piece of a broadcast is as many times smaller than one that alternates among owners: it is sent on hop by hop.
constexpr std::uint32_t kBroadcastPieces = 4;

}  // namespace

CollectivePlan::CollectivePlan(const CollectiveShape& shape, std::span<const Rank> ranks, std::uint64_t eager_bytes)
    : shape_(shape),
      ranks_(ranks.begin(), ranks.end()),
      positions_(static_cast<std::uint32_t>(ranks.size())),
      eager_bytes_(eager_bytes) {
  // Cut as fp32 numbers of as many bytes would be: pieces are of at most 256 KiB and at least 16 KiB.
  const std::uint64_t size = DTypeBytes(shape.dtype), bytes = shape.elements * size;
  const std::uint32_t parts = in_blocks() ? 1 : positions_ * (rooted() ? kBroadcastPieces : 1);
  const Cut cut = CutTensor((bytes + 3) / 4, parts);
  std::uint64_t count = 1;
  if (shape.elements > 0) {
    piece_elements_ = cut.elements * 4 / size;
    count = (shape.elements + piece_elements_ - 1) / piece_elements_;
  }
  if (in_blocks()) count *= positions_;
  pieces_ = static_cast<std::uint32_t>(count);
  if (rooted()) {
    const auto found = std::ranges::find(ranks_, Rank(shape.root));
    TALLY_CHECK(found != ranks_.end(), "a root that the caller checked");
    root_ = Position(static_cast<std::uint32_t>(found - ranks_.begin()));
  }
}

std::uint64_t CollectivePlan::first(std::uint32_t u) const {
  return (in_blocks() ? u / positions_ : u) * piece_elements_;
}

std::size_t CollectivePlan::elements(std::uint32_t u) const {
  const std::uint64_t begin = first(u);
  return begin >= shape_.elements ? 0 : std::min(piece_elements_, shape_.elements - begin);
}

std::uint64_t CollectivePlan::block_offset(std::uint32_t u) const {
  return ranks_[owner(u).value].value * shape_.elements * DTypeBytes(shape_.dtype);
}

Half CollectivePlan::half(std::uint32_t u) const {
  if (shape_.kind == CollectiveKind::kAllReduce) return Half::kBoth;
  const std::uint64_t copies = in_blocks() ? positions_ : 1;
  const std::uint64_t until = (first(u) + piece_elements_) * DTypeBytes(shape_.dtype) * copies;
  if (until > eager_bytes_ || (rooted() && u == 0)) return Half::kBoth;
  return adds() ? Half::kReduce : Half::kBroadcast;
}

std::uint64_t CollectivePlan::in_offset(std::uint32_t u) const {
  const std::uint64_t within = first(u) * DTypeBytes(shape_.dtype);
  return shape_.kind == CollectiveKind::kReduceScatter ? block_offset(u) + within : within;
}

std::uint64_t CollectivePlan::out_offset(std::uint32_t u) const {
  const std::uint64_t within = first(u) * DTypeBytes(shape_.dtype);
  return shape_.kind == CollectiveKind::kAllGather ? block_offset(u) + within : within;
}

}  // namespace tally
