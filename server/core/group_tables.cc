#include "server/core/group_tables.h"

#include <algorithm>
#include <string>

namespace tally {

std::uint64_t GroupTables::encoded_bytes(std::uint32_t slab) const {
  const Slab& s = layout.slabs[slab];
  return tensor_codec[s.tensor]->EncodedBytes(s.elements);
}

Result<std::shared_ptr<const GroupTables>> MakeGroupTables(LayoutMessage message, const Config& job,
                                                           std::uint32_t workers) {
  auto tables = std::make_shared<GroupTables>();
  const std::string where = "layout of group " + message.name;
  if (message.codecs.size() != message.tensors.size()) {
    return Corrupt(where + ": expected a codec for each of " + std::to_string(message.tensors.size()) +
                   " tensors, got " + std::to_string(message.codecs.size()));
  }
  if (message.name.starts_with(kCollectivePrefix)) std::ranges::fill(message.codecs, kCodecNone);
  TALLY_ASSIGN_OR_RETURN(static_cast<WireLayout&>(*tables), MakeWireLayout(message.tensors, message.buckets,
                                                                           message.codecs, job.compression, workers));
  if (tables->start_step > 0) {
    // Before a codec begins everything travels as it is declared.
    LayoutMessage before = message;
    std::ranges::fill(before.codecs, kCodecNone);
    const std::size_t count = std::min(message.owners.size(), tables->dense.slabs.size());
    before.owners.resize(count);
    message.owners.erase(message.owners.begin(), message.owners.begin() + static_cast<std::ptrdiff_t>(count));
    TALLY_ASSIGN_OR_RETURN(tables->warmup, MakeGroupTables(std::move(before), job, workers));
  }
  if (message.owners.size() != tables->layout.slabs.size()) {
    return Corrupt(where + ": expected an owner for each of " + std::to_string(tables->layout.slabs.size()) +
                   " slabs, got " + std::to_string(message.owners.size()));
  }
  for (const OwnerRef owner : message.owner_list) {
    if (owner.role == Role::kWorker ? owner.index >= workers : message.exchange == ExchangeKind::kSchedule) {
      return Corrupt(where + ": an owner that is no member, " + (owner.role == Role::kWorker ? "position " : "server ") +
                     std::to_string(owner.index));
    }
  }
  for (const std::uint16_t owner : message.owners) {
    if (owner >= message.owner_list.size()) {
      return Corrupt(where + ": owner " + std::to_string(owner) + " of " + std::to_string(message.owner_list.size()));
    }
  }
  // Vectors travel as they are; so does nothing of the tensors that they stand for.
  std::vector<std::uint8_t> wire_codecs = message.codecs;
  for (const LinearPart& part : tables->linear) wire_codecs[part.tensor] = kCodecNone;
  wire_codecs.resize(tables->layout.tensors.size(), kCodecNone);
  for (const std::uint8_t id : wire_codecs) {
    const auto known = std::find_if(tables->codecs.begin(), tables->codecs.end(),
                                    [&](const auto& codec) { return codec->id() == id; });
    if (known != tables->codecs.end()) {
      tables->tensor_codec.push_back(known->get());
      continue;
    }
    TALLY_ASSIGN_OR_RETURN(auto codec, MakeCodec(id, job.compression));
    tables->tensor_codec.push_back(codec.get());
    tables->codecs.push_back(std::move(codec));
  }
  tables->message = std::move(message);
  return std::shared_ptr<const GroupTables>(std::move(tables));
}

FlowLimits MakeFlowLimits(const GroupTables& tables, const Config& job, std::uint32_t workers) {
  std::uint64_t largest = 1;
  for (const GroupTables* part : {&tables, tables.warmup.get()}) {
    for (std::uint32_t u = 0; part != nullptr && u < part->layout.slabs.size(); ++u) {
      const std::uint64_t dense = part->layout.slabs[u].elements * sizeof(float);
      largest = std::max(largest, part->message.exchange == ExchangeKind::kSchedule ? dense : part->encoded_bytes(u));
    }
  }
  FlowLimits limits;
  limits.credit_bytes = std::max<std::uint64_t>(job.link.credit_bytes, workers * largest);
  limits.frame_bytes = std::min({std::max(job.link.frame_bytes, largest), limits.credit_bytes / workers,
                                 kMaxPayloadBytes});
  return limits;
}

}  // namespace tally
