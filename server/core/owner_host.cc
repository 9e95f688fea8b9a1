#include "server/core/owner_host.h"

#include <algorithm>
#include <utility>

namespace tally {

OwnerHost::OwnerHost(Options options, BufferPool* pool) : options_(std::move(options)), pool_(pool) {}

OwnerHost::Hosted OwnerHost::Gather(std::shared_ptr<const GroupTables> tables, bool error_feedback) const {
  Hosted hosted;
  for (std::uint32_t u = 0; u < tables->message.owners.size(); ++u) {
    if (tables->owner(u) != options_.self) continue;
    hosted.slabs.push_back(u);
    const std::uint64_t dense = tables->layout.slabs[u].elements * sizeof(float);
    hosted.dense_bytes += dense;
    const bool lossy = tables->tensor_codec[tables->layout.slabs[u].tensor]->traits().lossy;
    if (lossy && error_feedback) hosted.residual_bytes += 2 * dense;
  }
  hosted.tables = std::move(tables);
  return hosted;
}

Status OwnerHost::AddGroup(std::shared_ptr<const GroupTables> tables, const Config& job) {
  const LayoutMessage& message = tables->message;
  if (message.exchange != ExchangeKind::kOwners) return Status::Ok();
  Hosted hosted = Gather(tables, job.compression.error_feedback), warmup;
  if (tables->warmup != nullptr) warmup = Gather(tables->warmup, job.compression.error_feedback);
  if (hosted.slabs.empty() && warmup.slabs.empty()) return Status::Ok();
  const FlowLimits limits = MakeFlowLimits(*tables, job, options_.workers);
  const std::uint64_t bytes = std::max(hosted.dense_bytes, warmup.dense_bytes);
  const std::uint64_t credit = options_.workers * limits.credit_bytes * tables->phases();
  const std::uint64_t needed = 2 * bytes + hosted.residual_bytes + credit;
  if (options_.memory_cap_bytes != 0 && owned_bytes_ + needed > options_.memory_cap_bytes) {
    return Unavailable("group " + message.name + " needs " + std::to_string(needed) + " bytes on this owner (two steps of " +
                       std::to_string(bytes) + " bytes, " + std::to_string(hosted.residual_bytes) +
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
  const auto place = [&](Hosted&& from, StepId first_step, Groups* groups) {
    if (from.slabs.empty()) return;
    Hosted& placed = (*groups)[message.group.value] = std::move(from);
    placed.start_step = tables->start_step;
    owner.first_step = first_step;
    placed.owner =
        std::make_unique<Owner>(owner, placed.tables->layout, placed.slabs, placed.tables->tensor_codec, pool_);
  };
  place(std::move(hosted), std::max(message.first_step, StepId(tables->start_step)), &groups_);
  if (message.first_step.value < tables->start_step) place(std::move(warmup), message.first_step, &warmups_);
  return Status::Ok();
}

Status OwnerHost::OnPush(Frame& frame) {
  const std::uint32_t group = frame.header.group.value;
  const StepId step = frame.header.step;
  const auto warmup = warmups_.find(group);
  const bool warming_up = warmup != warmups_.end() && step.value < warmup->second.start_step;
  Groups& groups = warming_up ? warmups_ : groups_;
  const auto found = groups.find(group);
  if (found == groups.end()) {
    return Corrupt("push for group " + std::to_string(group) + ", of which nothing is owned here in step " +
                   std::to_string(step.value));
  }
  const bool committed = (frame.header.flags & kFlagPreviousCommitted) != 0;
  const Status status = found->second.owner->OnPush(frame, &replies_);
  for (ReplyFrame& reply : replies_) {
    SendReply(reply);
    reply.hold.Reset();
  }
  replies_.Clear();
  // The first frame after the warm-up tells that its last step is over.
  if (status.ok() && !warming_up && warmup != warmups_.end() && warmup->second.owner->Missing(1).empty()) {
    warmup->second.owner->OnVerdict(StepId(warmup->second.start_step - 1), committed);
  }
  // A step outside the window is an old frame that was under way: dropped, counted by the owner.
  return status.kind() == StatusKind::kInvalidArgument ? Status::Ok() : status;
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
  for (const Groups* groups : {&groups_, &warmups_}) {
    const auto found = groups->find(verdict.group.value);
    if (found != groups->end()) found->second.owner->OnVerdict(verdict.step, verdict.commit);
  }
}

std::string OwnerHost::Missing() const {
  std::string text;
  for (const Groups* groups : {&warmups_, &groups_}) {
    for (const auto& [id, hosted] : *groups) {
      const std::string missing = hosted.owner->Missing(3);
      if (missing.empty()) continue;
      if (!text.empty()) text += "; ";
      text += "group " + hosted.tables->message.name + ": " + missing;
    }
  }
  return text;
}

Owner::Stats OwnerHost::stats() const {
  Owner::Stats total;
  for (const Groups* groups : {&warmups_, &groups_}) {
    for (const auto& [id, hosted] : *groups) {
      const Owner::Stats& s = hosted.owner->stats();
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
  for (const auto& [id, hosted] : groups_) sum += hosted.owner->ResidualL1();
  return sum;
}

const Owner* OwnerHost::owner(GroupId group) const {
  const auto found = groups_.find(group.value);
  return found == groups_.end() ? nullptr : found->second.owner.get();
}

Owner* OwnerHost::owner(GroupId group) { return const_cast<Owner*>(std::as_const(*this).owner(group)); }

}  // namespace tally
