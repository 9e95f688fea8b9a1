#include "worker/group_runtime.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/reduce/reduce.h"
#include "common/schedule/schedule.h"

namespace tally {
namespace {

std::vector<bool> FeedbackTensors(const GroupTables& tables, bool error_feedback) {
  std::vector<bool> wanted(tables.layout.tensors.size(), false);
  if (!error_feedback || tables.message.exchange == ExchangeKind::kSchedule) return wanted;
  for (std::size_t t = 0; t < wanted.size(); ++t) wanted[t] = tables.tensor_codec[t]->traits().lossy;
  return wanted;
}

}  // namespace

GroupRuntime::GroupRuntime(const Options& options, std::shared_ptr<const GroupTables> tables, BufferPool* pool,
                           GroupEnvironment* environment)
    : options_(options),
      tables_(std::move(tables)),
      pool_(pool),
      environment_(environment),
      plan_(MakeFramePlan(*tables_, options.exchange.self, options.exchange.positions,
                          options.exchange.limits.frame_bytes)),
      feedback_(tables_->layout, FeedbackTensors(*tables_, options.error_feedback)),
      zeros_(kMaxSlabElements, 0.0F),
      buckets_(tables_->layout.buckets.size()) {
  exchange_ = tables_->message.exchange == ExchangeKind::kSchedule
                  ? MakeScheduleExchange(options_.exchange, tables_, &plan_, pool_, this)
                  : MakeOwnersExchange(options_.exchange, tables_, &plan_, &feedback_, pool_, this);
}

Result<std::unique_ptr<GroupRuntime>> GroupRuntime::Make(const Options& options,
                                                         std::shared_ptr<const GroupTables> tables,
                                                         std::span<const TensorSpec> own, BufferPool* pool,
                                                         GroupEnvironment* environment) {
  if (tables->message.exchange == ExchangeKind::kSchedule) {
    if (const auto found = FindSchedule(tables->message.schedule); !found.ok()) return found.status();
  }
  std::unique_ptr<GroupRuntime> group(new GroupRuntime(options, std::move(tables), pool, environment));
  group->tickets.resize(group->buckets_.size());
  const Layout& layout = group->tables_->layout;
  std::map<std::string_view, std::uint32_t> by_name;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) by_name[layout.tensors[t].name] = t;
  group->to_own_.resize(layout.tensors.size());
  for (std::uint32_t t = 0; t < own.size(); ++t) {
    const auto found = by_name.find(own[t].name);
    if (found == by_name.end()) return Internal("tensor " + own[t].name + " is not in the published layout");
    group->to_layout_.push_back(found->second);
    group->to_own_[found->second] = t;
  }
  group->inputs.resize(layout.tensors.size());
  group->outputs.resize(layout.tensors.size());
  if (options.collective) return group;
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : layout.tensors) {
    group->arena_offset_.push_back(bytes);
    bytes += (tensor.elements.value * sizeof(float) + 63) / 64 * 64;
  }
  TALLY_ASSIGN_OR_RETURN(group->input_arena_, Arena::Make("tally-input", bytes));
  TALLY_ASSIGN_OR_RETURN(group->output_arena_, Arena::Make("tally-output", bytes));
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    group->inputs[t] = group->arena_input(t).data();
    group->outputs[t] = reinterpret_cast<float*>(group->output_arena_.bytes().data() + group->arena_offset_[t]);
  }
  return group;
}

std::span<float> GroupRuntime::arena_input(std::uint32_t layout_tensor) {
  return {reinterpret_cast<float*>(input_arena_.bytes().data() + arena_offset_[layout_tensor]),
          tables_->layout.tensors[layout_tensor].elements.value};
}

void GroupRuntime::Open(StepWeight weight) {
  if (open_) return;
  open_ = true;
  next_bucket_ = 0;
  unfinished_ = static_cast<std::uint32_t>(buckets_.size());
  non_finite_ = false;
  note_.clear();
  ending_ = prepared_ = false;
  for (std::uint32_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].submitted = buckets_[b].missing = false;
    buckets_[b].remaining = static_cast<std::uint32_t>(tables_->layout.bucket_slabs[b].size());
  }
  exchange_->BeginStep(step_, last_verdict_, weight, collective_);
  std::swap(opening_, early_);
  early_bytes_ = 0;
  for (Frame& frame : opening_) {
    if (!broken_) Check(exchange_->OnFrame(frame));
    frame.hold.Reset();
  }
  opening_.Clear();
}

void GroupRuntime::Submit(std::uint32_t bucket) {
  const std::shared_ptr<TicketState>& ticket = tickets[bucket];
  Open(ticket->weight);
  StartBucketOf(bucket, ticket);
}

void GroupRuntime::StartBucketOf(std::uint32_t bucket, std::shared_ptr<TicketState> ticket) {
  buckets_[bucket].submitted = true;
  buckets_[bucket].ticket = std::move(ticket);
  StartReady();
  FinishIfComplete();
}

// One order per group: a bucket starts when all lower ones have.
void GroupRuntime::StartReady() {
  while (!broken_ && next_bucket_ < buckets_.size() &&
         (buckets_[next_bucket_].submitted || buckets_[next_bucket_].missing)) {
    const std::uint32_t b = next_bucket_++;
    if (buckets_[b].remaining == 0) {  // nothing but empty tensors
      --unfinished_;
      if (buckets_[b].ticket != nullptr) buckets_[b].ticket->completion.Complete(Status::Ok());
      continue;
    }
    Check(exchange_->StartBucket(b));
  }
}

void GroupRuntime::EndStep() {
  Open(ending.weight);
  ending_ = awaited_ = true;
  for (Bucket& bucket : buckets_) bucket.missing = !bucket.submitted;
  StartReady();
  FinishIfComplete();
}

void GroupRuntime::RunCollective() {
  inputs[0] = outputs[0] = ending.data.data();
  collective_ = ending.collective;
  awaited_ = true;
  Open(ending.weight);
  StartBucketOf(0, nullptr);
}

void GroupRuntime::CompleteEnding(const Status& status) {
  if (std::exchange(awaited_, false)) ending.completion.Complete(status);
}

void GroupRuntime::OnFrame(Frame& frame) {
  if (broken_) return;
  ++progress_;
  const StepId step = frame.header.step;
  if (step == step_ && open_) {
    Check(exchange_->OnFrame(frame));
    FinishIfComplete();
    return;
  }
  // Neighbours in a schedule may be a step ahead; an owner's reply cannot be.
  if (step.value == step_.value + (open_ ? 1 : 0) && frame.header.kind != FrameKind::kReply) {
    constexpr std::uint64_t kFrameCost = 256;  // so that empty frames count, too
    early_bytes_ += frame.payload.size() + frame.header.slabs.size() * sizeof(std::uint32_t) + kFrameCost;
    if (early_bytes_ > 2 * options_.exchange.limits.credit_bytes * options_.exchange.positions) {
      Check(Corrupt("early frames of step " + std::to_string(step.value) + " exceed the credit of all positions"));
      return;
    }
    std::swap(early_.Add(), frame);
  }
  // Older: a repeat of something already finished.
}

void GroupRuntime::Continue() {
  if (!open_ || broken_) return;
  Check(exchange_->Continue());
  FinishIfComplete();
}

void GroupRuntime::FinishIfComplete() {
  if (!open_ || broken_ || unfinished_ != 0) return;
  if (options_.collective) {
    if (exchange_->draining()) {
      environment_->PostContinue(this, true);
      return;
    }
    CloseStep(true);
    return;
  }
  if (!ending_ || prepared_) return;
  prepared_ = true;
  PreparedMessage message;
  message.group = tables_->message.group;
  message.step = step_;
  message.epoch = tables_->message.epoch;
  message.non_finite = non_finite_;
  message.skip_vote = ending.vote == Vote::kSkip;
  message.note = note_;
  message.loss_scale = ending.loss_scale;
  environment_->Prepared(message);
}

void GroupRuntime::OnVerdict(const VerdictMessage& verdict) {
  if (!open_ || !prepared_ || verdict.step != step_) return;
  environment_->Verdict(verdict);
  ending.result.step = step_;
  ending.result.outcome = verdict.commit ? Outcome::kCommitted : Outcome::kSkipped;
  ending.result.reason = verdict.reason;
  CloseStep(verdict.commit);
}

void GroupRuntime::CloseStep(bool committed) {
  if (committed) {
    feedback_.Commit();
  } else {
    feedback_.Drop();
  }
  last_verdict_ = committed ? kFlagPreviousCommitted : kFlagPreviousSkipped;
  ++step_;
  open_ = false;
  for (Bucket& bucket : buckets_) bucket.ticket.reset();
  CompleteEnding(Status::Ok());
}

void GroupRuntime::FailAll(const Status& why) {
  broken_ = true;
  for (Bucket& bucket : buckets_) {
    if (bucket.ticket != nullptr) bucket.ticket->completion.Complete(why);
  }
  CompleteEnding(why);
}

void GroupRuntime::Check(const Status& status) {
  if (!status.ok()) {
    broken_ = true;
    environment_->Fail(status.WithContext("group " + tables_->message.name + ", step " + std::to_string(step_.value)));
  }
}

std::string GroupRuntime::Describe() const {
  std::string text = "group " + tables_->message.name + ", step " + std::to_string(step_.value);
  if (!open_) return text + ": nothing handed over";
  if (prepared_) return text + ": all results are here, waiting for the verdict of the other ranks";
  if (next_bucket_ < buckets_.size()) {
    text += ", bucket " + std::to_string(next_bucket_) + " of " + std::to_string(buckets_.size()) +
            " not submitted by this rank";
  }
  const std::string missing = exchange_->Missing(3);
  return missing.empty() ? text : text + ": " + missing;
}

const float* GroupRuntime::Input(std::uint32_t slab) {
  const Slab& s = tables_->layout.slabs[slab];
  return buckets_[s.bucket].missing ? zeros_.data() : inputs[s.tensor] + s.offset;
}

float* GroupRuntime::Output(std::uint32_t slab) {
  const Slab& s = tables_->layout.slabs[slab];
  return outputs[s.tensor] + s.offset;
}

void GroupRuntime::SlabDone(std::uint32_t slab, bool non_finite) {
  if (non_finite) NoteNonFinite(slab);
  Bucket& bucket = buckets_[tables_->layout.slabs[slab].bucket];
  if (--bucket.remaining != 0) return;
  --unfinished_;
  // A collective's caller may write to its memory once told, so it waits for draining sends (FinishIfComplete).
  if (bucket.ticket != nullptr && !options_.collective) bucket.ticket->completion.Complete(Status::Ok());
}

// Says where the value is and whether this rank put it in, so that the verdict's reason can name the culprit.
void GroupRuntime::NoteNonFinite(std::uint32_t slab) {
  const bool first = !non_finite_;
  non_finite_ = true;
  const Slab& s = tables_->layout.slabs[slab];
  const bool mine = !AllFinite(Input(slab), s.elements);
  if (first || mine) {
    note_ = (mine ? "non-finite gradient from " + options_.rank_name : std::string("non-finite sum")) + " in " +
            tables_->layout.tensors[s.tensor].name;
  }
}

Status GroupRuntime::Send(OwnerRef to, std::uint32_t key, const FrameHeader& header,
                          std::span<const std::byte> payload, BufferRef hold) {
  return environment_->Send(to, key, header, payload, std::move(hold));
}

void GroupRuntime::ContinueSoon() { environment_->PostContinue(this, false); }

}  // namespace tally
