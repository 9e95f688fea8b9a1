#include "worker/group_runtime.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "common/reduce/reduce.h"
#include "common/schedule/schedule.h"

namespace tally {
namespace {

std::vector<bool> FeedbackTensors(const GroupTables& tables, bool error_feedback) {
  std::vector<bool> wanted(tables.dense.tensors.size(), false);
  if (!error_feedback) return wanted;
  for (std::size_t t = 0; t < wanted.size(); ++t) wanted[t] = tables.tensor_codec[t]->traits().lossy;
  for (const LinearPart& part : tables.linear) wanted[part.tensor] = true;
  return wanted;
}

std::vector<bool> TensorsWith(const GroupTables& tables, bool CodecTraits::*trait) {
  std::vector<bool> wanted(tables.dense.tensors.size(), false);
  for (std::size_t t = 0; t < wanted.size(); ++t) wanted[t] = tables.tensor_codec[t]->traits().*trait;
  return wanted;
}

}  // namespace

GroupRuntime::GroupRuntime(const Options& options, std::shared_ptr<const GroupTables> tables, BufferPool* pool,
                           GroupEnvironment* environment)
    : options_(options),
      tables_(std::move(tables)),
      pool_(pool),
      environment_(environment),
      state_{.feedback = {tables_->dense, FeedbackTensors(*tables_, options.error_feedback)},
             .velocity = {tables_->dense, TensorsWith(*tables_, &CodecTraits::momentum)},
             .scales = {tables_->dense, TensorsWith(*tables_, &CodecTraits::integer_sum)}},
      factors_(tables_->layout.tensors.size(), 1.0F),
      zeros_(kMaxSlabElements, 0.0F),
      step_(tables_->message.first_step),
      buckets_(tables_->layout.buckets.size()) {
  places_.nodes = options.nodes;
  for (auto& stage : StagesOf(tables_)) MakeWire(std::move(stage));
  wire_ = wires_.front().get();
  MakeLinear();
}

// Exchanges point to their plans, so a wire is filled where it stays.
void GroupRuntime::MakeWire(std::shared_ptr<const GroupTables> tables) {
  const auto& wire = wires_.emplace_back(std::make_unique<Wire>());
  ExchangeOptions options = options_.exchange;
  LaneOf lane_of;
  const Nodes* nodes = options_.nodes;
  if (nodes != nullptr) {
    // Between nodes, where this position speaks for its own with what it carries.
    const std::uint32_t node = nodes->node_of(options.self);
    lane_of = [nodes, node, self = options.self](std::uint32_t u) -> std::optional<std::uint32_t> {
      if (nodes->carrier(u, node) != self) return std::nullopt;
      return nodes->lane(u);
    };
    options.self = Position(node);
    options.positions = nodes->count();
    options.speaker = [nodes, worker = options_.exchange.speaker](std::uint32_t u, Position p) {
      const Position carrier = nodes->carrier(u, p.value);
      return worker ? worker(u, carrier) : Rank(carrier.value);
    };
  }
  const std::uint32_t declared = tables->declared_buckets;
  const auto all = static_cast<std::uint32_t>(tables->layout.buckets.size());
  const auto first = [&](std::uint32_t phase) { return phase == 0 ? 0 : declared; };
  const auto end = [&](std::uint32_t phase) { return phase == 0 ? declared : all; };
  for (std::uint32_t phase = 0; phase < tables->phases(); ++phase) {
    wire->plans.push_back(MakeFramePlan(*tables, first(phase), end(phase), options.self, options.positions,
                                        options.limits.frame_bytes, lane_of));
  }
  for (std::uint32_t phase = 0; phase < tables->phases(); ++phase) {
    const FramePlan* plan = &wire->plans[phase];
    if (nodes == nullptr) {
      wire->exchanges.push_back(MakeExchange(tables, plan, options, this));
      continue;
    }
    auto stages = std::make_unique<NodeExchange>(options_.exchange, tables, first(phase), end(phase), &places_, pool_, this);
    if (nodes->count() > 1) stages->SetBetween(MakeExchange(tables, plan, options, stages->between_environment()));
    wire->exchanges.push_back(std::move(stages));
  }
  wire->tables = std::move(tables);
}

std::unique_ptr<Exchange> GroupRuntime::MakeExchange(const std::shared_ptr<const GroupTables>& tables,
                                                     const FramePlan* plan, const ExchangeOptions& options,
                                                     ExchangeEnvironment* environment) {
  if (tables->message.exchange == ExchangeKind::kSchedule) {
    return MakeScheduleExchange(options, tables, plan, pool_, environment);
  }
  return MakeOwnersExchange(options, tables, plan, &state_, pool_, environment);
}

void GroupRuntime::MakeLinear() {
  bucket_linear_.resize(tables_->declared_buckets);
  linear_of_vector_.resize(tables_->layout.tensors.size() - tables_->declared_tensors);
  for (const LinearPart& part : tables_->linear) {
    const auto index = static_cast<std::uint32_t>(linear_.size());
    const Slab& first = tables_->dense.slabs[tables_->dense.first_slab[part.tensor]];
    bucket_linear_[first.bucket].push_back(index);
    for (const std::uint32_t vector : {part.first, part.second}) {
      linear_of_vector_[vector - tables_->declared_tensors] = index;
    }
    linear_.push_back({part, part.codec->Make({.seed = options_.exchange.seed,
                                               .tensor = part.tensor,
                                               .spec = tables_->message.tensors[part.tensor],
                                               .slab_elements = first.elements})});
  }
}

std::uint32_t GroupRuntime::DeclaredBucket(std::uint32_t tensor) const {
  return tables_->dense.slabs[tables_->dense.first_slab[tensor]].bucket;
}

std::uint64_t GroupRuntime::elements(std::uint32_t tensor) const {
  const Layout& layout = tables_->is_vector(tensor) ? tables_->layout : tables_->dense;
  return layout.tensors[tensor].elements.value;
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
  const std::uint32_t declared = group->tables_->declared_tensors;
  for (std::uint32_t t = 0; t < declared; ++t) by_name[layout.tensors[t].name] = t;
  group->to_own_.resize(declared);
  for (std::uint32_t t = 0; t < own.size(); ++t) {
    const auto found = by_name.find(own[t].name);
    if (found == by_name.end()) return Internal("tensor " + own[t].name + " is not in the published layout");
    group->to_layout_.push_back(found->second);
    group->to_own_[found->second] = t;
  }
  group->inputs.resize(layout.tensors.size());
  group->outputs.resize(layout.tensors.size());
  group->kept.resize(layout.tensors.size());
  group->inputs16.resize(layout.tensors.size());
  group->own_input16_.resize(layout.tensors.size());
  group->output16_.resize(layout.tensors.size());
  if (!options.collective || options.nodes != nullptr) TALLY_RETURN_IF_ERROR(group->MakeMemory());
  if (options.collective) return group;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    group->inputs[t] = group->arena_input(t).data();
    if (layout.tensors[t].dtype == DType::kFloat32) continue;
    group->halves_.try_emplace(layout.tensors[t].dtype, layout.tensors[t].dtype);
    group->own_input16_[t].resize(group->elements(t));
    group->output16_[t].resize(group->elements(t));
    group->inputs16[t] = group->own_input16_[t].data();
  }
  return group;
}

std::uint64_t GroupRuntime::ArenaBytes(std::uint32_t tensor) const {
  return (elements(tensor) * sizeof(float) + 63) / 64 * 64;
}

Status GroupRuntime::MakeMemory() {
  if (!arena_offset_.empty()) return Status::Ok();
  std::uint64_t bytes = 0;
  for (std::uint32_t t = 0; t < inputs.size(); ++t) {
    arena_offset_.push_back(bytes);
    bytes += ArenaBytes(t);
  }
  TALLY_ASSIGN_OR_RETURN(input_arena_, SharedArena::Make(pool_->shared(), "tally-input", bytes));
  if (options_.nodes == nullptr) return PlaceResults();
  // Otherwise the node's first position makes the results' memory, and the others map it.
  if (options_.nodes->local_rank(options_.exchange.self) != 0) return Status::Ok();
  TALLY_ASSIGN_OR_RETURN(output_arena_, SharedArena::Make(pool_->shared(), "tally-output", bytes));
  return Status::Ok();
}

void GroupRuntime::ShareWithNode(std::unique_ptr<NodeShare> share, Nanos deadline,
                                 std::function<void(Status, std::string)> done) {
  share_ = std::move(share);
  const bool first = !output_arena_.bytes().empty();
  share_->Begin(&input_arena_.arena(), first ? &output_arena_.arena() : nullptr, deadline, [this, done = std::move(done)] {
    const Status status = PlaceResults();
    done(status, share_->Faults());
  });
}

// Where means are made: in this process's memory, or in that of the node's first position.
Status GroupRuntime::PlaceResults() {
  const std::uint64_t bytes = input_arena_.bytes().size();
  std::span<std::byte> results = share_ == nullptr ? std::span<std::byte>() : share_->results().bytes();
  if (results.empty()) {
    if (output_arena_.bytes().empty()) {
      TALLY_ASSIGN_OR_RETURN(output_arena_, SharedArena::Make(pool_->shared(), "tally-output", bytes));
    }
    results = output_arena_.bytes();
  }
  places_.share = share_.get();
  places_.tensor_offset = arena_offset_;
  places_.inputs = input_arena_.bytes().data();
  places_.results = results.data();
  if (options_.collective) return Status::Ok();
  for (std::uint32_t t = 0; t < outputs.size(); ++t) {
    outputs[t] = reinterpret_cast<float*>(results.data() + arena_offset_[t]);
  }
  if (share_ == nullptr) return Status::Ok();
  // A linear codec makes its tensor's mean in several passes, which other processes must not see.
  std::uint64_t own = 0;
  for (const LinearPart& part : tables_->linear) own += ArenaBytes(part.tensor);
  TALLY_ASSIGN_OR_RETURN(private_arena_, SharedArena::Make(pool_->shared(), "tally-output", own));
  std::byte* place = private_arena_.bytes().data();
  for (const LinearPart& part : tables_->linear) {
    outputs[part.tensor] = reinterpret_cast<float*>(place);
    place += ArenaBytes(part.tensor);
  }
  return Status::Ok();
}

float* GroupRuntime::result(std::uint32_t layout_tensor) const {
  return reinterpret_cast<float*>(places_.results + arena_offset_[layout_tensor]);
}

std::span<float> GroupRuntime::arena_input(std::uint32_t layout_tensor) {
  return {reinterpret_cast<float*>(input_arena_.bytes().data() + arena_offset_[layout_tensor]),
          elements(layout_tensor)};
}

GroupRuntime::Wire* GroupRuntime::StageOf(StepId step) const {
  Wire* stage = wires_.front().get();
  for (const auto& wire : wires_) {
    if (step.value >= wire->tables->first_step) stage = wire.get();
  }
  return stage;
}

void GroupRuntime::Open(StepWeight weight) {
  if (open_) return;
  open_ = true;
  wire_ = StageOf(step_);
  next_bucket_ = next_second_ = 0;
  unfinished_ = tables_->declared_buckets;
  non_finite_ = false;
  note_.clear();
  ending_ = prepared_ = false;
  for (std::uint32_t b = 0; b < buckets_.size(); ++b) {
    buckets_[b].submitted = buckets_[b].missing = false;
    const bool on_wire = b < layout().bucket_slabs.size();
    buckets_[b].remaining = on_wire ? static_cast<std::uint32_t>(layout().bucket_slabs[b].size()) : 0;
  }
  weight_ = weight;
  rate_ = options_.follow_learning_rate && std::isfinite(learning_rate) ? learning_rate : 0;
  if (rate_ != 0 && last_rate_ != 0) state_.feedback.Scale(std::min(last_rate_ / rate_, 2.0F));
  for (Linear& linear : linear_) linear.delivered = Delivered::kMean;
  if (wire_ == wires_.back().get()) state_.scales.Expect();
  for (const auto& exchange : wire_->exchanges) exchange->BeginStep(step_, last_verdict_, weight.declared, collective_);
  std::swap(opening_, early_);
  early_bytes_ = 0;
  for (Frame& frame : opening_) {
    if (!broken_) Check(Receive(frame));
    frame.hold.Reset();
  }
  opening_.Clear();
}

Status GroupRuntime::Receive(Frame& frame) {
  const std::vector<std::uint32_t>& slabs = frame.header.slabs;
  if (slabs.empty() || slabs.front() >= layout().slabs.size()) return Corrupt("frame without slabs of this group");
  const bool second = layout().slabs[slabs.front()].bucket >= tables_->declared_buckets;
  return wire_->exchanges[second ? 1 : 0]->OnFrame(frame);
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
  while (!broken_ && next_bucket_ < tables_->declared_buckets &&
         (buckets_[next_bucket_].submitted || buckets_[next_bucket_].missing)) {
    const std::uint32_t b = next_bucket_++;
    if (buckets_[b].remaining == 0) {  // nothing but empty tensors
      FinishBucket(b);
      continue;
    }
    WidenInputs(b);
    SetFactors(b);
    EncodeLinear(b);
    Check(wire_->exchanges[0]->StartBucket(b));
  }
}

void GroupRuntime::WidenInputs(std::uint32_t bucket) {
  if (buckets_[bucket].missing) return;  // zeros
  for (const std::uint32_t t : tables_->message.buckets[bucket]) {
    if (inputs16[t] == nullptr || kept[t] != 0) continue;
    halves_.at(tables_->message.tensors[t].dtype).Widen(inputs16[t], elements(t), arena_input(t).data());
  }
}

void GroupRuntime::NarrowOutputs(std::uint32_t bucket) {
  for (const std::uint32_t t : tables_->message.buckets[bucket]) {
    if (inputs16[t] == nullptr) continue;
    halves_.at(tables_->message.tensors[t].dtype).Narrow(outputs[t], elements(t), output16_[t].data());
  }
}

void GroupRuntime::SetFactors(std::uint32_t bucket) {
  if (buckets_[bucket].missing) return;  // zeros
  const bool counts = weight_.factor != 0;
  const double scale = counts ? weight_.declared / static_cast<double>(weight_.factor) : 1.0;  // of the loss
  for (const std::uint32_t t : tables_->message.buckets[bucket]) {
    const Codec& codec = *wire_->tables->tensor_codec[t];
    factors_[t] = weight_.factor * codec.ClipFactor(inputs[t], elements(t), scale, options_.exchange.positions);
  }
}

// A part that is not finite is sent as NaNs, so that its sum is none either.
void GroupRuntime::EncodeLinear(std::uint32_t bucket) {
  if (wire_ != wires_.back().get()) return;
  for (const std::uint32_t index : bucket_linear_[bucket]) {
    const auto& [part, tensor, delivered] = linear_[index];
    const std::span<float> vector = arena_input(part.first);
    if (kept[part.tensor] != 0) {
      tensor->Keep(step_.value);
      std::ranges::fill(vector, 0.0F);
      continue;
    }
    const float* g = buckets_[bucket].missing ? nullptr : inputs[part.tensor];
    const bool finite = tensor->Encode(step_.value, g, factors_[part.tensor], state_.feedback.OldTensor(part.tensor),
                                       state_.feedback.NextTensor(part.tensor), vector.data());
    if (!finite) std::ranges::fill(vector, std::numeric_limits<float>::quiet_NaN());
  }
}

// In the order of the buckets, which is the same on all ranks; that of the first phases' arrival is not.
void GroupRuntime::StartSecondPhases() {
  while (!broken_ && next_second_ < tables_->declared_buckets) {
    const std::uint32_t b = next_second_;
    if (const std::uint32_t second = tables_->second_bucket[b]; second != 0) {
      if (buckets_[b].remaining != 0) return;
      ++next_second_;
      EncodeSecond(b);
      Check(wire_->exchanges[1]->StartBucket(second));
    } else {
      ++next_second_;
    }
  }
}

void GroupRuntime::EncodeSecond(std::uint32_t bucket) {
  for (const std::uint32_t index : bucket_linear_[bucket]) {
    const auto& [part, tensor, delivered] = linear_[index];
    if (!part.two_phases()) continue;
    const std::span<float> vector = arena_input(part.second);
    if (delivered == Delivered::kMean) {
      float* e_out = kept[part.tensor] != 0 ? nullptr : state_.feedback.NextTensor(part.tensor);
      tensor->EncodeSecond(outputs[part.first], e_out, vector.data());
    } else {
      std::ranges::fill(vector, delivered == Delivered::kNothing ? 0.0F : std::numeric_limits<float>::quiet_NaN());
    }
  }
}

void GroupRuntime::DecodeLinear(std::uint32_t bucket) {
  if (wire_ != wires_.back().get()) return;
  for (const std::uint32_t index : bucket_linear_[bucket]) {
    const auto& [part, tensor, delivered] = linear_[index];
    float* out = outputs[part.tensor];
    if (delivered == Delivered::kMean) {
      tensor->Decode(outputs[part.second], out);
    } else {
      const bool nothing = delivered == Delivered::kNothing;
      std::fill_n(out, elements(part.tensor), nothing ? 0.0F : std::numeric_limits<float>::quiet_NaN());
      // What was sent reached nobody.
      if (nothing) state_.feedback.Keep(part.tensor);
    }
  }
}

void GroupRuntime::FinishBucket(std::uint32_t bucket) {
  DecodeLinear(bucket);
  NarrowOutputs(bucket);
  --unfinished_;
  // A collective's caller may write to its memory once told, so it waits for draining sends (FinishIfComplete).
  const std::shared_ptr<TicketState>& ticket = buckets_[bucket].ticket;
  if (ticket != nullptr && !options_.collective) ticket->completion.Complete(Status::Ok());
}

void GroupRuntime::EndStep() {
  Open(ending.weight);
  ending_ = awaited_ = true;
  for (Bucket& bucket : buckets_) bucket.missing = !bucket.submitted;
  StartReady();
  FinishIfComplete();
}

void GroupRuntime::RunCollective() {
  if (ending.data.empty() && places_.results != nullptr) {
    inputs[0] = arena_input(0).data();
    outputs[0] = reinterpret_cast<float*>(places_.results);
  } else {
    inputs[0] = outputs[0] = ending.data.data();
  }
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
    Check(Receive(frame));
    FinishIfComplete();
    return;
  }
  // Neighbours in a schedule may be a step ahead; an owner's reply cannot be.
  if (step.value == step_.value + (open_ ? 1 : 0) && frame.header.kind != FrameKind::kReply) {
    constexpr std::uint64_t kFrameCost = 256;  // so that empty frames count, too
    early_bytes_ += frame.payload.size() + frame.header.slabs.size() * sizeof(std::uint32_t) + kFrameCost;
    // Inside a node there is no credit, but everybody pushes each number once.
    const std::uint64_t inside = options_.nodes == nullptr ? 0 : 2 * input_arena_.bytes().size();
    const std::uint64_t credit = 2 * options_.exchange.limits.credit_bytes * options_.exchange.senders * tables_->phases();
    if (early_bytes_ > credit + inside) {
      Check(Corrupt("early frames of step " + std::to_string(step.value) + " exceed the credit of all positions"));
      return;
    }
    std::swap(early_.Add(), frame);
  }
  // Older: a repeat of something already finished.
}

void GroupRuntime::Continue() {
  if (!open_ || broken_) return;
  for (const auto& exchange : wire_->exchanges) Check(exchange->Continue());
  FinishIfComplete();
}

void GroupRuntime::FinishIfComplete() {
  if (!open_ || broken_ || unfinished_ != 0) return;
  if (options_.collective) {
    if (wire_->exchanges[0]->Draining()) return;
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
  message.shared_state = SharedState();
  message.learning_rate = rate_;
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
    state_.Commit();
    last_rate_ = rate_;
  } else {
    state_.Drop();
  }
  for (Linear& linear : linear_) {
    if (wire_ == wires_.back().get() && committed && linear.delivered == Delivered::kMean) {
      linear.tensor->Commit();
    } else {
      linear.tensor->Drop();
    }
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
  if (next_bucket_ < tables_->declared_buckets) {
    text += ", bucket " + std::to_string(next_bucket_) + " of " + std::to_string(tables_->declared_buckets) +
            " not submitted by this rank";
  }
  for (const auto& exchange : wire_->exchanges) {
    const std::string missing = exchange->Missing(3);
    if (!missing.empty()) return text + ": " + missing;
  }
  return text;
}

const float* GroupRuntime::Input(std::uint32_t slab) {
  const Slab& s = layout().slabs[slab];
  const bool zeros = (buckets_[s.bucket].missing || kept[s.tensor] != 0) && !tables_->is_vector(s.tensor);
  return zeros ? zeros_.data() : inputs[s.tensor] + s.offset;
}

float GroupRuntime::Factor(std::uint32_t slab) {
  return factors_[layout().slabs[slab].tensor];  // a vector's stays 1
}

bool GroupRuntime::Kept(std::uint32_t slab) {
  const std::uint32_t tensor = layout().slabs[slab].tensor;
  return kept[tables_->is_vector(tensor) ? LinearOf(tensor).part.tensor : tensor] != 0;
}

bool GroupRuntime::Absent(std::uint32_t slab) {
  const Slab& s = layout().slabs[slab];
  return buckets_[s.bucket].missing && !tables_->is_vector(s.tensor);
}

float* GroupRuntime::Output(std::uint32_t slab) {
  const Slab& s = layout().slabs[slab];
  return outputs[s.tensor] + s.offset;
}

void GroupRuntime::SlabDone(std::uint32_t slab, Delivered delivered) {
  const Slab& s = layout().slabs[slab];
  if (delivered == Delivered::kNonFinite) NoteNonFinite(slab);
  if (delivered != Delivered::kMean && tables_->is_vector(s.tensor)) {
    LinearOf(s.tensor).delivered = delivered;
  }
  if (--buckets_[s.bucket].remaining != 0) return;
  if (s.bucket >= tables_->declared_buckets) {
    FinishBucket(DeclaredBucket(LinearOf(s.tensor).part.tensor));
  } else if (wire_->tables->second_bucket[s.bucket] != 0) {
    StartSecondPhases();
  } else {
    FinishBucket(s.bucket);
  }
}

// Says where the value is and whether this rank put it in, so that the verdict's reason can name the culprit.
void GroupRuntime::NoteNonFinite(std::uint32_t slab) {
  const bool first = !non_finite_;
  non_finite_ = true;
  const Slab& s = layout().slabs[slab];
  // A second phase that is sent as NaNs because the first one came to that is nobody's fault.
  const bool second = s.bucket >= tables_->declared_buckets;
  if (second && LinearOf(s.tensor).delivered == Delivered::kNonFinite) return;
  const bool mine = !AllFinite(Input(slab), s.elements);
  const std::uint32_t source = tables_->is_vector(s.tensor) ? LinearOf(s.tensor).part.tensor : s.tensor;
  if (first || mine) {
    note_ = std::string(mine ? "the gradient of tensor " : "the sum of tensor ") + layout().tensors[source].name;
  }
}

Status GroupRuntime::Send(OwnerRef to, std::uint32_t key, const FrameHeader& header,
                          std::span<const std::byte> payload, BufferRef hold) {
  return environment_->Send(to, key, header, payload, std::move(hold));
}

void GroupRuntime::ContinueSoon() { environment_->PostContinue(this); }

}  // namespace tally
