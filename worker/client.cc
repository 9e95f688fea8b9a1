#include "worker/client.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/backend.h"
#include "worker/ticket.h"

namespace tally {

Status Ticket::Wait() {
  if (state_ == nullptr) return InvalidArgument("an empty ticket was waited for");
  return state_->host->WaitTicket(state_.get());
}

bool Ticket::done() const { return state_ != nullptr && state_->completion.done(); }

Group::Group(GroupBackend* backend)
    : backend_(backend),
      bucket_of_(backend->shape().tensors.size()),
      submitted_(backend->shape().buckets.size(), false),
      step_(backend->shape().step) {
  const auto& buckets = backend->shape().buckets;
  for (std::uint32_t b = 0; b < buckets.size(); ++b) {
    for (const std::uint32_t tensor : buckets[b]) bucket_of_[tensor] = b;
  }
}

Group::~Group() = default;

GroupId Group::id() const { return backend_->shape().id; }
std::size_t Group::bucket_count() const { return submitted_.size(); }
std::span<const std::uint32_t> Group::bucket(BucketId bucket) const { return backend_->shape().buckets[bucket.value]; }
BucketId Group::bucket_of(std::uint32_t tensor) const { return BucketId(bucket_of_[tensor]); }

std::span<float> Group::Input(std::uint32_t tensor) { return backend_->memory(tensor).input; }
std::span<std::uint16_t> Group::Input16(std::uint32_t tensor) { return backend_->memory(tensor).input16; }

Status Group::CheckInput(std::uint32_t tensor, std::size_t elements, bool of_16_bits) const {
  const TensorSpec& spec = backend_->shape().tensors[tensor];
  if (of_16_bits != (spec.dtype != DType::kFloat32)) {
    return InvalidArgument("input of " + spec.name + ": the tensor was declared as " + DTypeName(spec.dtype));
  }
  if (elements != spec.elements.value) {
    return InvalidArgument("input of " + spec.name + ": expected " + std::to_string(spec.elements.value) +
                           " elements, got " + std::to_string(elements));
  }
  if (submitted_[bucket_of_[tensor]]) {
    return InvalidArgument("input of " + spec.name + " changed after its bucket was submitted");
  }
  return Status::Ok();
}

Status Group::SetInput(std::uint32_t tensor, std::span<const float> memory) {
  TALLY_RETURN_IF_ERROR(CheckInput(tensor, memory.size(), false));
  backend_->SetInput(tensor, memory.data());
  return Status::Ok();
}

Status Group::SetInput16(std::uint32_t tensor, std::span<const std::uint16_t> memory) {
  TALLY_RETURN_IF_ERROR(CheckInput(tensor, memory.size(), true));
  backend_->SetInput(tensor, memory.data());
  return Status::Ok();
}

Status Group::SetWeight(float weight) {
  if (!std::isfinite(weight) || weight < 0) {
    return InvalidArgument("weight " + std::to_string(weight) + ": expected a finite number >= 0");
  }
  if (step_open_) return InvalidArgument("the weight of a step is set before its first Submit");
  weight_ = weight;
  return Status::Ok();
}

Status Group::SetLossScale(float scale) {
  if (!std::isfinite(scale) || scale <= 0) {
    return InvalidArgument("loss scale " + std::to_string(scale) + ": expected a finite number > 0");
  }
  if (step_open_) return InvalidArgument("the loss scale of a step is set before its first Submit");
  loss_scale_ = scale;
  return Status::Ok();
}

Status Group::SetLearningRate(float rate) {
  if (rate < 0) return InvalidArgument("learning rate " + std::to_string(rate) + ": expected a number >= 0");
  if (step_open_) return InvalidArgument("the learning rate of a step is set before its first Submit");
  backend_->SetLearningRate(rate);
  return Status::Ok();
}

Status Group::Keep(std::uint32_t tensor) {
  if (submitted_[bucket_of_[tensor]]) {
    return InvalidArgument("tensor " + backend_->shape().tensors[tensor].name +
                           " is kept after its bucket was submitted");
  }
  backend_->Keep(tensor);
  return Status::Ok();
}

// One factor, so that a gradient is rounded once; exact for scales that are powers of two.
StepWeight Group::CurrentWeight() const { return {weight_ / loss_scale_, static_cast<double>(weight_)}; }

tally::Result<Ticket> Group::Submit(BucketId bucket) {
  if (bucket.value >= submitted_.size()) {
    return InvalidArgument("bucket " + std::to_string(bucket.value) + " of " + std::to_string(submitted_.size()));
  }
  if (submitted_[bucket.value]) {
    return InvalidArgument("bucket " + std::to_string(bucket.value) + " was submitted twice in step " +
                           std::to_string(step_.value));
  }
  submitted_[bucket.value] = true;
  step_open_ = true;
  Ticket ticket;
  TALLY_ASSIGN_OR_RETURN(ticket.state_, backend_->Submit(bucket.value, CurrentWeight()));
  return ticket;
}

std::span<const float> Group::Output(std::uint32_t tensor) const { return backend_->memory(tensor).output; }
std::span<const std::uint16_t> Group::Output16(std::uint32_t tensor) const { return backend_->memory(tensor).output16; }

tally::Result<StepResult> Group::EndStep(Vote vote) {
  tally::Result<StepResult> result = backend_->EndStep(vote, CurrentWeight(), loss_scale_);
  if (!result.ok()) return result;
  std::fill(submitted_.begin(), submitted_.end(), false);
  step_open_ = false;
  weight_ = loss_scale_ = 1;
  ++step_;
  return result;
}

StepId Group::step() const { return step_; }

std::span<const float> Group::Residual(std::uint32_t tensor) const { return backend_->Residual(tensor); }

tally::Result<std::vector<std::byte>> Group::ExportState() const {
  if (step_open_) return InvalidArgument("a group's state is exported between steps");
  return backend_->ExportState();
}

Status Group::ImportState(std::span<const std::byte> state) {
  if (step_open_) return InvalidArgument("a group's state is imported between steps");
  return backend_->ImportState(state);
}

Client::Client() = default;
Client::~Client() = default;

tally::Result<std::unique_ptr<Client>> Client::Join(const LoadedConfig& config) {
  std::unique_ptr<Client> client(new Client);
  TALLY_ASSIGN_OR_RETURN(client->backend_, Backend::Start(config));
  return client;
}

Rank Client::rank() const { return backend_->rank(); }
std::uint32_t Client::workers() const { return backend_->workers(); }
std::uint32_t Client::local_rank() const { return backend_->local_rank(); }
std::uint32_t Client::servers() const { return backend_->servers(); }
EpochId Client::epoch() const { return backend_->epoch(); }
std::string Client::Describe() const { return backend_->Describe(); }

tally::Result<Group*> Client::DeclareGroup(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  TALLY_RETURN_IF_ERROR(CheckDeclaration(tensors, options));
  TALLY_ASSIGN_OR_RETURN(GroupBackend * group, backend_->Declare(tensors, options));
  groups_.push_back(std::unique_ptr<Group>(new Group(group)));
  return groups_.back().get();
}

Status Client::AllReduce(std::span<float> data, ReduceOp op) { return backend_->AllReduce(data, op); }

Status Client::AllReduce(Buffer& buffer, ReduceOp op) { return backend_->AllReduce(buffer.number_, op); }

namespace {

constexpr std::uint64_t kMaxCollectiveElements = std::uint64_t{1} << 40;  // as a frame's header says it

Status CheckCount(const ConstNumberView& view) {
  if (view.elements > kMaxCollectiveElements) {
    return InvalidArgument("a collective of " + std::to_string(view.elements) + " elements: at most 2^40 go");
  }
  if (view.data != nullptr || view.elements == 0) return Status::Ok();
  return InvalidArgument("a collective of " + std::to_string(view.elements) + " elements without memory");
}

Status CheckOp(DType dtype, ReduceOp op) {
  if (Reducible(dtype, op)) return Status::Ok();
  return InvalidArgument(std::string(ReduceOpName(op)) + " of " + DTypeName(dtype) + " numbers: " +
                         (op == ReduceOp::kMean ? "avg is of floating types, take sum and divide"
                                                : "bitwise operations are of integers"));
}

CollectiveShape Shape(CollectiveKind kind, const ConstNumberView& view, ReduceOp op, Rank root) {
  return {.elements = view.elements, .dtype = view.dtype, .op = op, .call = 0, .kind = kind, .root = root.value};
}

const std::byte* Bytes(const ConstNumberView& view) { return static_cast<const std::byte*>(view.data); }
std::byte* Bytes(const NumberView& view) { return static_cast<std::byte*>(view.data); }

}  // namespace

Status Client::AllReduce(NumberView data, ReduceOp op) {
  TALLY_RETURN_IF_ERROR(Refused(CheckCount(data)));
  TALLY_RETURN_IF_ERROR(Refused(CheckOp(data.dtype, op)));
  const bool aligned = reinterpret_cast<std::uintptr_t>(data.data) % alignof(float) == 0;
  if (data.dtype == DType::kFloat32 && (op == ReduceOp::kSum || op == ReduceOp::kMean)) {
    if (aligned) return AllReduce(std::span(static_cast<float*>(data.data), data.elements), op);
    return Refused(InvalidArgument("the memory of fp32 numbers to be added up has to begin at a multiple of 4"));
  }
  return backend_->Collective(Shape(CollectiveKind::kAllReduce, data, op, {}), Bytes(data), Bytes(data));
}

Status Client::Broadcast(NumberView data, Rank root) {
  TALLY_RETURN_IF_ERROR(Refused(CheckCount(data)));
  if (root.value >= workers()) {
    return Refused(InvalidArgument("a broadcast from rank " + std::to_string(root.value) + " of " +
                                   std::to_string(workers()) + " workers"));
  }
  return backend_->Collective(Shape(CollectiveKind::kBroadcast, data, {}, root), Bytes(data), Bytes(data));
}

Status Client::Refused(const Status& found) {
  if (!found.ok()) backend_->NoteRefusal(found);
  return found;
}

Status Client::CheckBlocks(const char* what, const ConstNumberView& block, const ConstNumberView& all) const {
  TALLY_RETURN_IF_ERROR(CheckCount(block));
  TALLY_RETURN_IF_ERROR(CheckCount(all));
  if (block.dtype == all.dtype && block.elements * workers() == all.elements) return Status::Ok();
  return InvalidArgument(std::string(what) + " of " + std::to_string(workers()) + " workers with " +
                         std::to_string(block.elements) + " " + DTypeName(block.dtype) + " elements per rank: expected " +
                         std::to_string(block.elements * workers()) + " in all, got " + std::to_string(all.elements) +
                         " of " + DTypeName(all.dtype));
}

Status Client::AllGather(ConstNumberView in, NumberView out) {
  TALLY_RETURN_IF_ERROR(Refused(CheckBlocks("all-gather", in, out)));
  return backend_->Collective(Shape(CollectiveKind::kAllGather, in, {}, {}), Bytes(in), Bytes(out));
}

Status Client::ReduceScatter(ConstNumberView in, NumberView out, ReduceOp op) {
  TALLY_RETURN_IF_ERROR(Refused(CheckBlocks("reduce-scatter", out, in)));
  TALLY_RETURN_IF_ERROR(Refused(CheckOp(in.dtype, op)));
  return backend_->Collective(Shape(CollectiveKind::kReduceScatter, out, op, {}), Bytes(in), Bytes(out));
}

tally::Result<Buffer*> Client::MakeBuffer(std::size_t elements) {
  auto buffer = std::make_unique<Buffer>();
  TALLY_ASSIGN_OR_RETURN(const Backend::BufferMemory memory, backend_->MakeBuffer(elements));
  buffer->number_ = memory.number;
  buffer->input_ = memory.input;
  buffer->output_ = memory.output;
  buffers_.push_back(std::move(buffer));
  return buffers_.back().get();
}

Status Client::Barrier() {
  float one = 1;
  return AllReduce(std::span(&one, 1), ReduceOp::kSum);
}

ClientStats Client::stats() const { return backend_->Stats(); }

Status Client::Detach() {
  for (const auto& group : groups_) {
    if (group->step_open_) return InvalidArgument("a rank is given back between steps");
  }
  return backend_->Detach();
}

void Client::Abort(const std::string& reason) { backend_->Abort(reason); }

Status Client::Leave() { return backend_->Leave(); }

}  // namespace tally
