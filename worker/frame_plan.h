// FramePlan: which slabs of a bucket travel together, and in which order this position sends them. Slabs of one frame
// have one bucket, one owner and one codec and are rising; the packing is equal on all positions, the order is not.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "server/core/group_tables.h"

namespace tally {

struct PlannedFrame {
  std::uint32_t bucket = 0;
  std::uint32_t owner = 0;  // index into LayoutMessage::owner_list
  const Codec* codec = nullptr;
  std::vector<std::uint32_t> slabs;
  std::uint64_t elements = 0;
  std::uint64_t payload_bytes = 0;  // encoded; in a schedule 4 * elements
};

struct FramePlan {
  std::vector<PlannedFrame> frames;         // by bucket, in this position's send order
  std::vector<std::uint32_t> bucket_begin;  // first frame of each bucket; size buckets + 1
  std::vector<std::uint32_t> frame_of_slab;  // kNoFrame for those of other buckets
};
inline constexpr std::uint32_t kNoFrame = std::numeric_limits<std::uint32_t>::max();

// Frames hold slabs of one lane only; a slab without one is left out. The lane of a slab is equal on all positions that
// plan it.
using LaneOf = std::function<std::optional<std::uint32_t>(std::uint32_t slab)>;

// Of buckets first_bucket, ..., end_bucket - 1. Without `lane_of` all slabs are of one lane.
FramePlan MakeFramePlan(const GroupTables& tables, std::uint32_t first_bucket, std::uint32_t end_bucket, Position self,
                        std::uint32_t positions, std::uint64_t frame_bytes, const LaneOf& lane_of = {});

}  // namespace tally
