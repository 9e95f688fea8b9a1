#include "worker/frame_plan.h"

#include <map>
#include <tuple>
#include <utility>

namespace tally {

FramePlan MakeFramePlan(const GroupTables& tables, std::uint32_t first_bucket, std::uint32_t end_bucket, Position self,
                        std::uint32_t positions, std::uint64_t frame_bytes, const LaneOf& lane_of) {
  const bool dense = tables.message.exchange == ExchangeKind::kSchedule;
  FramePlan plan;
  plan.frame_of_slab.assign(tables.layout.slabs.size(), kNoFrame);
  for (std::uint32_t bucket = 0; bucket < tables.layout.buckets.size(); ++bucket) {
    plan.bucket_begin.push_back(static_cast<std::uint32_t>(plan.frames.size()));
    if (bucket < first_bucket || bucket >= end_bucket) continue;
    std::map<std::tuple<std::uint32_t, std::uint32_t, const Codec*>, PlannedFrame> open;
    std::map<std::uint32_t, PlannedFrame> packed;  // by first slab
    const auto close = [&](PlannedFrame& frame) {
      if (frame.slabs.empty()) return;
      const std::uint32_t first = frame.slabs.front();
      packed[first] = std::exchange(frame, {});
    };
    for (const std::uint32_t u : tables.layout.bucket_slabs[bucket]) {
      const std::optional<std::uint32_t> lane = lane_of ? lane_of(u) : 0;
      if (!lane.has_value()) continue;
      const Slab& slab = tables.layout.slabs[u];
      const Codec* codec = tables.tensor_codec[slab.tensor];
      const std::uint32_t owner = tables.owners[u];
      const std::uint64_t bytes = dense ? slab.elements * sizeof(float) : tables.encoded_bytes(u);
      PlannedFrame& frame = open[{owner, *lane, codec}];
      if (frame.payload_bytes + bytes > frame_bytes) close(frame);
      frame.bucket = bucket;
      frame.owner = owner;
      frame.codec = codec;
      frame.slabs.push_back(u);
      frame.elements += slab.elements;
      frame.payload_bytes += bytes;
    }
    for (auto& [key, frame] : open) close(frame);
    std::vector<std::uint32_t> firsts;
    for (const auto& [first, frame] : packed) firsts.push_back(first);
    for (const std::uint32_t first : SendOrder(firsts, self, positions)) {
      PlannedFrame& frame = packed[first];
      for (const std::uint32_t u : frame.slabs) plan.frame_of_slab[u] = static_cast<std::uint32_t>(plan.frames.size());
      plan.frames.push_back(std::move(frame));
    }
  }
  plan.bucket_begin.push_back(static_cast<std::uint32_t>(plan.frames.size()));
  return plan;
}

}  // namespace tally
