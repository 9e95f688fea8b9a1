#include "server/core/owner_host.h"

#include <algorithm>
#include <utility>

namespace tally {

OwnerHost::OwnerHost(Options options, BufferPool* pool) : options_(std::move(options)), pool_(pool) {}

OwnerHost::Stage OwnerHost::Gather(std::shared_ptr<const GroupTables> tables, bool error_feedback) const {
  Stage stage;
  for (std::uint32_t u = 0; u < tables->owners.size(); ++u) {
    if (tables->owner(u) != options_.self) continue;
    stage.slabs.push_back(u);
    const std::uint64_t dense = tables->layout.slabs[u].elements * sizeof(float);
    stage.dense_bytes += dense;
    const Codec& codec = *tables->tensor_codec[tables->layout.slabs[u].tensor];
    if (error_feedback && HasLossyReply(codec)) stage.residual_bytes += 2 * dense;
  }
  stage.tables = std::move(tables);
  return stage;
}

Status OwnerHost::AddGroup(std::shared_ptr<const GroupTables> tables, const Config& job) {
  const LayoutMessage& message = tables->message;
  if (message.exchange != ExchangeKind::kOwners) return Status::Ok();
  Stages stages;
  std::uint64_t bytes = 0, residual_bytes = 0;
  for (auto& stage_tables : StagesOf(tables)) {
    const Stage& stage = stages.emplace_back(Gather(std::move(stage_tables), job.compression.error_feedback));
    bytes = std::max(bytes, stage.dense_bytes);
    residual_bytes = std::max(residual_bytes, stage.residual_bytes);
  }
  if (bytes == 0) return Status::Ok();
  const FlowLimits limits = MakeFlowLimits(*tables, job, options_.workers);
  const std::uint64_t credit = options_.workers * limits.credit_bytes * tables->phases();
  const std::uint64_t needed = 2 * bytes + residual_bytes + credit;
  if (options_.memory_cap_bytes != 0 && owned_bytes_ + needed > options_.memory_cap_bytes) {
    return Unavailable("group " + message.name + " needs " + std::to_string(needed) + " bytes on this owner (two steps of " +
                       std::to_string(bytes) + " bytes, " + std::to_string(residual_bytes) +
                       " bytes of residuals and the credit of " + std::to_string(options_.workers) +
                       " workers) beside " + std::to_string(owned_bytes_) + " for other groups; allowed are " +
                       std::to_string(options_.memory_cap_bytes) +
                       ": add servers or raise server.memory_cap");
  }
  owned_bytes_ += needed;
  OwnerOptions owner;
  owner.job_hash = options_.job_hash;
  owner.epoch = message.epoch;
  owner.group = message.group;
  owner.role = options_.self.role;
  owner.index = options_.self.index;
  owner.workers = options_.workers;
  owner.deterministic = job.aggregation.deterministic;
  owner.error_feedback = job.compression.error_feedback;
  owner.seed = job.compression.seed;
  owner.stochastic = StochasticRounding(job.compression);
  owner.held_bytes_cap = credit;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    Stage& stage = stages[i];
    const bool over = i + 1 < stages.size() && message.first_step.value >= stages[i + 1].tables->first_step;
    if (stage.slabs.empty() || over) continue;
    owner.first_step = std::max(message.first_step, StepId(stage.tables->first_step));
    stage.owner = std::make_unique<Owner>(owner, stage.tables->layout, stage.slabs, stage.tables->tensor_codec, pool_);
  }
  groups_[message.group.value] = std::move(stages);
  return Status::Ok();
}

std::size_t OwnerHost::StageAt(const Stages& stages, StepId step) {
  std::size_t i = stages.size() - 1;
  while (i > 0 && step.value < stages[i].tables->first_step) --i;
  return i;
}

Status OwnerHost::OnPush(Frame& frame) {
  const StepId step = frame.header.step;
  const auto found = groups_.find(frame.header.group.value);
  Stages* stages = found == groups_.end() ? nullptr : &found->second;
  const std::size_t i = stages == nullptr ? 0 : StageAt(*stages, step);
  Owner* owner = stages == nullptr ? nullptr : (*stages)[i].owner.get();
  if (owner == nullptr) {
    return Corrupt("push for group " + std::to_string(frame.header.group.value) + ", of which nothing is owned here in step " +
                   std::to_string(step.value));
  }
  Status status = Status::Ok();
  if (i > 0 && step.value == (*stages)[i].tables->first_step) {
    // The first frame of a stage tells that the last step of the one before is over.
    status = owner->Check(frame);
    Owner* former = (*stages)[i - 1].owner.get();
    if (status.ok() && former != nullptr && former->Missing(1).empty()) {
      EndStep(stages, StepId(step.value - 1), (frame.header.flags & kFlagPreviousCommitted) != 0);
    }
  }
  if (status.ok()) status = owner->OnPush(frame, &replies_);
  for (ReplyFrame& reply : replies_) {
    SendReply(reply);
    reply.hold.Reset();
  }
  replies_.Clear();
  // A step outside the window is an old frame that was under way: dropped, counted by the owner.
  return status.kind() == StatusKind::kInvalidArgument ? Status::Ok() : status;
}

// The step that ends a stage leaves its residual to the next one.
void OwnerHost::EndStep(Stages* stages, StepId step, bool commit) {
  const std::size_t i = StageAt(*stages, step);
  Owner* owner = (*stages)[i].owner.get();
  if (owner == nullptr || !owner->OnVerdict(step, commit)) return;
  if (i + 1 == stages->size() || step.value + 1 != (*stages)[i + 1].tables->first_step) return;
  const Stage& next = (*stages)[i + 1];
  if (!next.tables->renumbered) next.owner->TakeResidual(owner);
}

void OwnerHost::SendReply(ReplyFrame& reply) {
  reply.header.incarnation = options_.incarnation;
  const std::uint32_t slab = reply.header.slabs.front();
  for (std::uint32_t i = 0; i < options_.workers; ++i) {
    // Owners begin with different workers, so that they do not all send to the same one at once.
    const std::uint32_t p = (slab + i) % options_.workers;
    if (reply.only_one && reply.only.value != p) continue;
    if (options_.has_local && options_.local.value == p) continue;
    options_.send(Position(p), slab, reply.header, reply.payload, reply.hold);
  }
  if (options_.has_local && (!reply.only_one || reply.only == options_.local)) {
    options_.deliver_local(reply.header, reply.payload, reply.hold);
  }
}

void OwnerHost::OnVerdict(const VerdictMessage& verdict) {
  const auto found = groups_.find(verdict.group.value);
  if (found != groups_.end()) EndStep(&found->second, verdict.step, verdict.commit);
}

std::string OwnerHost::Missing() const {
  std::string text;
  for (const auto& [id, stages] : groups_) {
    for (const Stage& stage : stages) {
      const std::string missing = stage.owner == nullptr ? "" : stage.owner->Missing(3);
      if (missing.empty()) continue;
      if (!text.empty()) text += "; ";
      text += "group " + stage.tables->message.name + ": " + missing;
    }
  }
  return text;
}

Owner::Stats OwnerHost::stats() const {
  Owner::Stats total;
  for (const auto& [id, stages] : groups_) {
    for (const Stage& stage : stages) {
      if (stage.owner == nullptr) continue;
      const Owner::Stats& s = stage.owner->stats();
      total.pushes += s.pushes;
      total.duplicates += s.duplicates;
      total.stale += s.stale;
      total.slabs_done += s.slabs_done;
      total.non_finite_slabs += s.non_finite_slabs;
      total.held_bytes += s.held_bytes;
      total.held_bytes_max += s.held_bytes_max;
      total.accumulator_bytes += s.accumulator_bytes;
    }
  }
  return total;
}

double OwnerHost::ResidualL1() const {
  double sum = 0;
  for (const auto& [id, stages] : groups_) {
    for (const Stage& stage : stages) sum += stage.owner == nullptr ? 0 : stage.owner->ResidualL1();
  }
  return sum;
}

const Owner* OwnerHost::owner(GroupId group, StepId step) const {
  const auto found = groups_.find(group.value);
  return found == groups_.end() ? nullptr : found->second[StageAt(found->second, step)].owner.get();
}

Owner* OwnerHost::owner(GroupId group, StepId step) {
  return const_cast<Owner*>(std::as_const(*this).owner(group, step));
}

}  // namespace tally
