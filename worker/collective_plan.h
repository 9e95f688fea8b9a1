// CollectivePlan: how the numbers of a standalone collective are cut into pieces, each of which travels in frames of
// its own along its owner's program. Pure; equal on all ranks. Piece u of an all-reduce is owned by position u mod N;
// of an all-gather and a reduce-scatter too, as pieces of all ranks' blocks alternate; of a broadcast by the root.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/frame.h"
#include "common/schedule/schedule.h"
#include "common/units.h"

namespace tally {

class CollectivePlan {
 public:
  static constexpr std::uint64_t kMaxPieceBytes = std::uint64_t{1} << 18;

  CollectivePlan() = default;
  // Of at most 2^40 elements over all blocks. `ranks`: of each position. `eager_bytes`: what may be sent to ranks that
  // have not begun the call.
  CollectivePlan(const CollectiveShape& shape, std::span<const Rank> ranks, std::uint64_t eager_bytes);

  const CollectiveShape& shape() const { return shape_; }
  std::uint32_t pieces() const { return pieces_; }  // one at least: who has nothing to send says so
  Position owner(std::uint32_t u) const { return rooted() ? root_ : Position(u % positions_); }
  std::size_t elements(std::uint32_t u) const;
  std::size_t bytes(std::uint32_t u) const { return elements(u) * DTypeBytes(shape_.dtype); }
  // Of the largest piece.
  std::uint64_t piece_bytes() const { return piece_elements_ * DTypeBytes(shape_.dtype); }

  // Which half of the program brings numbers: partials those that are added up, totals those that all get.
  bool adds() const { return shape_.kind == CollectiveKind::kAllReduce || shape_.kind == CollectiveKind::kReduceScatter; }
  bool spreads() const { return shape_.kind != CollectiveKind::kReduceScatter; }
  // What runs of the program. Beyond the eager bytes both halves do, the one without numbers in empty frames: nobody
  // sends what its receiver has not said it is there for. The first piece of a broadcast is never eager, as its root
  // must not end the call before all ranks have begun the same one.
  Half half(std::uint32_t u) const;

  // Bytes from the begin of the caller's memory. Input: at the owner of an all-gather or broadcast, else at everybody.
  // Output: of a reduce-scatter at the owner, else at everybody.
  std::uint64_t in_offset(std::uint32_t u) const;
  std::uint64_t out_offset(std::uint32_t u) const;

 private:
  bool rooted() const { return shape_.kind == CollectiveKind::kBroadcast; }
  bool in_blocks() const {
    return shape_.kind == CollectiveKind::kAllGather || shape_.kind == CollectiveKind::kReduceScatter;
  }
  std::uint64_t first(std::uint32_t u) const;        // element, within its block if there are blocks
  std::uint64_t block_offset(std::uint32_t u) const;  // bytes to the owner's block

  CollectiveShape shape_;
  std::vector<Rank> ranks_;
  std::uint32_t positions_ = 1, pieces_ = 0;
  Position root_;
  std::uint64_t piece_elements_ = 1, eager_bytes_ = 0;
};

}  // namespace tally
