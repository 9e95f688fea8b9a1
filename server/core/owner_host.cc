#include "server/core/owner_host.h"

#include <algorithm>
#include <utility>

namespace tally {
namespace {

void AddTo(Owner::Stats* total, const Owner::Stats& s) {
  total->pushes += s.pushes;
  total->duplicates += s.duplicates;
  total->stale += s.stale;
  total->slabs_done += s.slabs_done;
  total->non_finite_slabs += s.non_finite_slabs;
  total->saturated += s.saturated;
  total->held_bytes += s.held_bytes;
  total->held_bytes_max += s.held_bytes_max;
  total->accumulator_bytes += s.accumulator_bytes;
}

}  // namespace

OwnerHost::OwnerHost(Options options, BufferPool* pool) : options_(std::move(options)), pool_(pool) {}

OwnerHost::Stage OwnerHost::Gather(std::shared_ptr<const GroupTables> tables, bool error_feedback) const {
  Stage stage;
  for (std::uint32_t u = 0; u < tables->owners.size(); ++u) {
    if (tables->owner(u) != options_.self || (options_.carries && !options_.carries(u))) continue;
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
  Hosted hosted;
  std::uint64_t bytes = 0, residual_bytes = 0;
  for (auto& stage_tables : StagesOf(tables)) {
    const Stage& stage = hosted.stages.emplace_back(Gather(std::move(stage_tables), job.compression.error_feedback));
    bytes = std::max(bytes, stage.dense_bytes);
    residual_bytes = std::max(residual_bytes, stage.residual_bytes);
  }
  if (bytes == 0) return Status::Ok();
  const FlowLimits limits = MakeFlowLimits(*tables, job, options_.workers);
  const std::uint64_t senders = options_.senders == 0 ? options_.workers : options_.senders;
  const std::uint64_t credit = senders * limits.credit_bytes * tables->phases();
  const std::uint64_t needed = 2 * bytes + residual_bytes + credit;
  if (options_.memory_cap_bytes != 0 && owned_bytes_ + needed > options_.memory_cap_bytes) {
    return Unavailable("group " + message.name + " needs " + std::to_string(needed) + " bytes on this owner (two steps of " +
                       std::to_string(bytes) + " bytes, " + std::to_string(residual_bytes) +
                       " bytes of residuals and the credit of " + std::to_string(senders) +
                       " workers) beside " + std::to_string(owned_bytes_) + " for other groups; allowed are " +
                       std::to_string(options_.memory_cap_bytes) +
                       ": add servers or raise server.memory_cap");
  }
  owned_bytes_ += needed;
  OwnerOptions& owner = hosted.options;
  owner.speaker = options_.speaker;
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
  while (!hosted.last() && message.first_step >= hosted.next_first_step()) ++hosted.stage;
  MakeOwner(&hosted, message.first_step, std::nullopt);
  groups_[message.group.value] = std::move(hosted);
  return Status::Ok();
}

// The one before it, if there is one, hands over its residual and is gone.
void OwnerHost::MakeOwner(Hosted* hosted, StepId first_step, std::optional<bool> previous_committed) const {
  const Stage& stage = hosted->stages[hosted->stage];
  const std::unique_ptr<Owner> former = std::move(hosted->owner);
  if (former != nullptr) AddTo(&hosted->ended, former->stats());
  if (stage.slabs.empty()) return;
  hosted->options.first_step = first_step;
  hosted->options.previous_committed = previous_committed;
  hosted->owner = std::make_unique<Owner>(hosted->options, stage.tables->layout, stage.slabs, stage.tables->tensor_codec,
                                          pool_, stage.tables->renumbered ? nullptr : former.get());
}

void OwnerHost::BeginNextStage(Hosted* hosted, std::optional<bool> previous_committed) const {
  const StepId first_step = hosted->next_first_step();
  ++hosted->stage;
  MakeOwner(hosted, first_step, previous_committed);
}

// The first frame of a stage tells, as that of any step, that the step before it is over, and how it ended.
Status OwnerHost::BeginStageOf(const FrameHeader& header, Hosted* hosted) const {
  if (hosted->last() || header.step < hosted->next_first_step()) return Status::Ok();
  const std::uint16_t verdict = header.flags & (kFlagPreviousCommitted | kFlagPreviousSkipped);
  const bool one_verdict = verdict == kFlagPreviousCommitted || verdict == kFlagPreviousSkipped;
  if (header.step != hosted->next_first_step() || !one_verdict) {
    return Corrupt("push of step " + std::to_string(header.step.value) + ": expected one of step " +
                   std::to_string(hosted->next_first_step().value) + " with the verdict of the step before");
  }
  const bool committed = verdict == kFlagPreviousCommitted;
  if (const Owner* owner = hosted->owner.get(); owner != nullptr) {
    TALLY_RETURN_IF_ERROR(owner->CheckHeader(header));
    if (owner->step().value + 1 != header.step.value || !owner->all_done()) {
      return Corrupt("push of step " + std::to_string(header.step.value) + ", while step " +
                     std::to_string(owner->step().value) + " is unfinished");
    }
    hosted->owner->OnVerdict(owner->step(), committed);
  }
  BeginNextStage(hosted, committed);
  return Status::Ok();
}

Status OwnerHost::OnPush(Frame& frame) {
  const auto found = groups_.find(frame.header.group.value);
  const auto stray = [&frame](const std::string& when) {
    return Corrupt("push for group " + std::to_string(frame.header.group.value) + ", of which nothing is owned here" +
                   when);
  };
  if (found == groups_.end()) return stray("");
  Hosted& hosted = found->second;
  TALLY_RETURN_IF_ERROR(BeginStageOf(frame.header, &hosted));
  if (hosted.owner == nullptr) {
    return stray(" in step " + std::to_string(frame.header.step.value));
  }
  const Status status = hosted.owner->OnPush(frame, &replies_);
  for (ReplyFrame& reply : replies_) {
    SendReply(reply);
    reply.hold.Reset();
  }
  replies_.Clear();
  // A step outside the window is an old frame that was under way: dropped, counted by the owner.
  return status.kind() == StatusKind::kInvalidArgument ? Status::Ok() : status;
}

void OwnerHost::EndStep(Hosted* hosted, StepId step, bool commit) const {
  if (hosted->owner == nullptr || !hosted->owner->OnVerdict(step, commit)) return;
  if (!hosted->last() && step.value + 1 == hosted->next_first_step().value) BeginNextStage(hosted, commit);
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
  for (const auto& [id, hosted] : groups_) {
    const std::string missing = hosted.owner == nullptr ? "" : hosted.owner->Missing(3);
    if (missing.empty()) continue;
    if (!text.empty()) text += "; ";
    text += "group " + hosted.stages.back().tables->message.name + ": " + missing;
  }
  return text;
}

Owner::Stats OwnerHost::stats() const {
  Owner::Stats total;
  for (const auto& [id, hosted] : groups_) {
    AddTo(&total, hosted.ended);
    if (hosted.owner != nullptr) AddTo(&total, hosted.owner->stats());
  }
  return total;
}

double OwnerHost::ResidualL1() const {
  double sum = 0;
  for (const auto& [id, hosted] : groups_) sum += hosted.owner == nullptr ? 0 : hosted.owner->ResidualL1();
  return sum;
}

Owner* OwnerHost::owner(GroupId group) const {
  const auto found = groups_.find(group.value);
  return found == groups_.end() ? nullptr : found->second.owner.get();
}

}  // namespace tally
