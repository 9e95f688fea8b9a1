// GroupTables: a published layout with everything derived from it that workers and owners both need: slabs, owner of
// each slab, codec of each tensor. Built from the LayoutMessage and the job's configuration alone; immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/schedule/layout.h"
#include "common/status.h"
#include "compress/codec.h"
#include "server/core/wire_layout.h"

namespace tally {

// Groups with this prefix are standalone collectives: exact, without residuals and verdicts.
inline constexpr std::string_view kCollectivePrefix = "collective.";

struct GroupTables : WireLayout {
  LayoutMessage message;
  std::vector<std::unique_ptr<Codec>> codecs;  // one instance per codec id in use
  std::vector<const Codec*> tensor_codec;      // per tensor of `layout`, never null

  std::vector<std::uint16_t> owners;           // per slab of `layout`, indices into message.owner_list
  std::shared_ptr<const GroupTables> before;   // the stage that holds before first_step; null if that is 0

  // Streams of frames that each have an order and a credit of their own.
  std::uint32_t phases() const { return layout.buckets.size() > declared_buckets ? 2 : 1; }
  const OwnerRef& owner(std::uint32_t slab) const { return message.owner_list[owners[slab]]; }
  // Encoded bytes of a slab with its tensor's codec.
  std::uint64_t encoded_bytes(std::uint32_t slab) const;
};

// `positions`: of the exchange, which with node stages are nodes; its owners are among them. Errors: kCorrupt /
// kInvalidArgument naming the field that does not fit.
Result<std::shared_ptr<const GroupTables>> MakeGroupTables(LayoutMessage message, const Config& job,
                                                           std::uint32_t workers, std::uint32_t positions);

// All stages, by first step; `tables` is the last one.
std::vector<std::shared_ptr<const GroupTables>> StagesOf(const std::shared_ptr<const GroupTables>& tables);

// Credit per (worker, owner, group) and the largest frame payload, from the job's settings (DESIGN §4: at least N slabs
// of the largest encoded size; a frame is at most credit / N).
struct FlowLimits {
  std::uint64_t credit_bytes = 0;
  std::uint64_t frame_bytes = 0;
};
FlowLimits MakeFlowLimits(const GroupTables& tables, const Config& job, std::uint32_t workers);

}  // namespace tally
