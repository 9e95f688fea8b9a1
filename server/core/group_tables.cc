#include "server/core/group_tables.h"

#include <algorithm>
#include <string>

namespace tally {

std::uint64_t GroupTables::encoded_bytes(std::uint32_t slab) const {
  const Slab& s = layout.slabs[slab];
  return tensor_codec[s.tensor]->EncodedBytes(s.elements);
}

namespace {

// The parts of the message that do not depend on the stage. `positions`: of the exchange, which may own.
Status CheckMessage(const LayoutMessage& message, const std::string& where, std::uint32_t positions) {
  for (const OwnerRef owner : message.owner_list) {
    if (owner.role == Role::kWorker ? owner.index >= positions : message.exchange == ExchangeKind::kSchedule) {
      return Corrupt(where + ": an owner that is no member, " + (owner.role == Role::kWorker ? "position " : "server ") +
                     std::to_string(owner.index));
    }
  }
  for (const std::uint16_t owner : message.owners) {
    if (owner >= message.owner_list.size()) {
      return Corrupt(where + ": owner " + std::to_string(owner) + " of " + std::to_string(message.owner_list.size()));
    }
  }
  return Status::Ok();
}

Status MakeCodecs(GroupTables* tables) {
  for (const std::uint8_t id : tables->codec_ids) {
    const auto known = std::ranges::find(tables->codecs, id, [](const auto& codec) { return codec->id(); });
    if (known != tables->codecs.end()) {
      tables->tensor_codec.push_back(known->get());
      continue;
    }
    TALLY_ASSIGN_OR_RETURN(auto codec, MakeCodec(id, tables->options));
    tables->tensor_codec.push_back(codec.get());
    tables->codecs.push_back(std::move(codec));
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<const GroupTables>> MakeGroupTables(LayoutMessage message, const Config& job,
                                                           std::uint32_t workers, std::uint32_t positions) {
  const std::string where = "layout of group " + message.name;
  if (message.codecs.size() != message.tensors.size()) {
    return Corrupt(where + ": expected a codec for each of " + std::to_string(message.tensors.size()) +
                   " tensors, got " + std::to_string(message.codecs.size()));
  }
  if (message.name.starts_with(kCollectivePrefix)) std::ranges::fill(message.codecs, kCodecNone);
  TALLY_RETURN_IF_ERROR(CheckMessage(message, where, positions));
  TALLY_ASSIGN_OR_RETURN(
      std::vector<WireLayout> stages,
      MakeWireStages(message.tensors, message.buckets, message.codecs, message.exchange, job.compression, workers));
  std::span<const std::uint16_t> owners = message.owners;  // of the stages in turn, where they number slabs anew
  std::shared_ptr<const GroupTables> last;
  for (WireLayout& stage : stages) {
    auto tables = std::make_shared<GroupTables>();
    static_cast<WireLayout&>(*tables) = std::move(stage);
    if (tables->renumbered) {
      const std::size_t count = std::min(owners.size(), tables->layout.slabs.size());
      tables->owners.assign(owners.begin(), owners.begin() + static_cast<std::ptrdiff_t>(count));
      owners = owners.subspan(count);
    } else {
      tables->owners = last->owners;
    }
    if (tables->owners.size() != tables->layout.slabs.size()) {
      return Corrupt(where + ": expected an owner for each of " + std::to_string(tables->layout.slabs.size()) +
                     " slabs, got " + std::to_string(tables->owners.size()));
    }
    TALLY_RETURN_IF_ERROR(MakeCodecs(tables.get()));
    tables->message = message;
    tables->before = std::move(last);
    last = std::move(tables);
  }
  if (!owners.empty()) return Corrupt(where + ": " + std::to_string(owners.size()) + " owners of slabs that do not exist");
  return last;
}

std::vector<std::shared_ptr<const GroupTables>> StagesOf(const std::shared_ptr<const GroupTables>& tables) {
  std::vector<std::shared_ptr<const GroupTables>> stages;
  for (auto stage = tables; stage != nullptr; stage = stage->before) stages.push_back(stage);
  std::ranges::reverse(stages);
  return stages;
}

FlowLimits MakeFlowLimits(const GroupTables& tables, const Config& job, std::uint32_t workers) {
  std::uint64_t largest = 1;
  for (const GroupTables* part = &tables; part != nullptr; part = part->before.get()) {
    for (std::uint32_t u = 0; u < part->layout.slabs.size(); ++u) {
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
