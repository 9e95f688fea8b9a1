#include "worker/client.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "worker/engine.h"

namespace tally {

Status Ticket::Wait() {
  if (state_ == nullptr) return InvalidArgument("an empty ticket was waited for");
  return state_->engine->WaitTicket(state_.get());
}

bool Ticket::done() const { return state_ != nullptr && state_->completion.done(); }

Group::Group(Engine* engine, GroupRuntime* runtime, std::vector<std::vector<std::uint32_t>> buckets)
    : engine_(engine),
      runtime_(runtime),
      buckets_(std::move(buckets)),
      submitted_(buckets_.size(), false),
      step_(runtime->step()) {
  for (std::uint32_t b = 0; b < buckets_.size(); ++b) {
    for (const std::uint32_t tensor : buckets_[b]) {
      if (bucket_of_.size() <= tensor) bucket_of_.resize(tensor + 1);
      bucket_of_[tensor] = b;
    }
  }
}

Group::~Group() = default;

GroupId Group::id() const { return runtime_->tables().message.group; }
std::size_t Group::bucket_count() const { return buckets_.size(); }
std::span<const std::uint32_t> Group::bucket(BucketId bucket) const { return buckets_[bucket.value]; }
BucketId Group::bucket_of(std::uint32_t tensor) const { return BucketId(bucket_of_[tensor]); }

std::span<float> Group::Input(std::uint32_t tensor) {
  const std::uint32_t t = runtime_->to_layout(tensor);
  return runtime_->inputs16[t] == nullptr ? runtime_->arena_input(t) : std::span<float>();
}

std::span<std::uint16_t> Group::Input16(std::uint32_t tensor) {
  return runtime_->own_input16(runtime_->to_layout(tensor));
}

Status Group::CheckInput(std::uint32_t tensor, std::size_t elements, bool of_16_bits) const {
  const TensorSpec& spec = runtime_->tables().message.tensors[runtime_->to_layout(tensor)];
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
  runtime_->inputs[runtime_->to_layout(tensor)] = memory.data();
  return Status::Ok();
}

Status Group::SetInput16(std::uint32_t tensor, std::span<const std::uint16_t> memory) {
  TALLY_RETURN_IF_ERROR(CheckInput(tensor, memory.size(), true));
  runtime_->inputs16[runtime_->to_layout(tensor)] = memory.data();
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
  runtime_->learning_rate = rate;
  return Status::Ok();
}

Status Group::Keep(std::uint32_t tensor) {
  const std::uint32_t t = runtime_->to_layout(tensor);
  if (submitted_[bucket_of_[tensor]]) {
    return InvalidArgument("tensor " + runtime_->tables().message.tensors[t].name +
                           " is kept after its bucket was submitted");
  }
  runtime_->kept[t] = 1;
  return Status::Ok();
}

// One factor, so that a gradient is rounded once; exact for scales that are powers of two.
StepWeight Group::CurrentWeight() const { return {weight_ / loss_scale_, static_cast<double>(weight_)}; }

tally::Result<Ticket> Group::Submit(BucketId bucket) {
  if (bucket.value >= buckets_.size()) {
    return InvalidArgument("bucket " + std::to_string(bucket.value) + " of " + std::to_string(buckets_.size()));
  }
  if (submitted_[bucket.value]) {
    return InvalidArgument("bucket " + std::to_string(bucket.value) + " was submitted twice in step " +
                           std::to_string(step_.value));
  }
  submitted_[bucket.value] = true;
  step_open_ = true;
  return engine_->Submit(runtime_, bucket.value, CurrentWeight());
}

std::span<const float> Group::Output(std::uint32_t tensor) const {
  const std::uint32_t t = runtime_->to_layout(tensor);
  return {runtime_->outputs[t], runtime_->tables().message.tensors[t].elements.value};
}

std::span<const std::uint16_t> Group::Output16(std::uint32_t tensor) const {
  return runtime_->output16(runtime_->to_layout(tensor));
}

tally::Result<StepResult> Group::EndStep(Vote vote) {
  tally::Result<StepResult> result = engine_->EndStep(runtime_, vote, CurrentWeight(), loss_scale_);
  if (!result.ok()) return result;
  std::fill(submitted_.begin(), submitted_.end(), false);
  std::ranges::fill(runtime_->kept, std::uint8_t{0});
  step_open_ = false;
  weight_ = loss_scale_ = 1;
  ++step_;
  return result;
}

StepId Group::step() const { return step_; }

std::span<const float> Group::Residual(std::uint32_t tensor) const {
  return runtime_->feedback().Residual(runtime_->to_layout(tensor));
}

tally::Result<std::vector<std::byte>> Group::ExportState() const {
  if (step_open_) return InvalidArgument("a group's state is exported between steps");
  TALLY_ASSIGN_OR_RETURN(const SavedState state, engine_->Save(runtime_));
  return EncodeState(state);
}

Status Group::ImportState(std::span<const std::byte> state) {
  if (step_open_) return InvalidArgument("a group's state is imported between steps");
  TALLY_ASSIGN_OR_RETURN(SavedState saved, DecodeState(state));
  return engine_->Restore(runtime_, std::move(saved)).WithContext("group " + runtime_->tables().message.name);
}

Client::Client() = default;
Client::~Client() = default;

tally::Result<std::unique_ptr<Client>> Client::Join(const LoadedConfig& config) {
  std::unique_ptr<Client> client(new Client);
  TALLY_ASSIGN_OR_RETURN(client->engine_, Engine::Start(config));
  return client;
}

Rank Client::rank() const { return engine_->rank(); }
std::uint32_t Client::workers() const { return engine_->workers(); }
std::uint32_t Client::local_rank() const { return engine_->local_rank(); }
std::uint32_t Client::servers() const { return engine_->servers(); }
EpochId Client::epoch() const { return engine_->epoch(); }
std::string Client::Describe() const { return engine_->description(); }

tally::Result<Group*> Client::DeclareGroup(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  if (options.name.empty() || options.name.starts_with(kCollectivePrefix)) {
    return InvalidArgument("group name \"" + options.name + "\": expected a name that does not begin with collective.");
  }
  for (const TensorSpec& tensor : tensors) {
    if (!IsGradientType(tensor.dtype)) {
      return InvalidArgument("tensor " + tensor.name + ": expected a gradient of fp32, fp16 or bf16, got " +
                             DTypeName(tensor.dtype) + "; other types go by standalone collectives");
    }
    if (!ShapeFits(tensor)) {
      return InvalidArgument("tensor " + tensor.name + ": expected a shape of up to " + std::to_string(kMaxDimensions) +
                             " dimensions whose product is " + std::to_string(tensor.elements.value));
    }
  }
  TALLY_ASSIGN_OR_RETURN(GroupRuntime * runtime, engine_->Declare(tensors, options));
  std::vector<std::vector<std::uint32_t>> buckets;
  for (const auto& bucket : runtime->tables().message.buckets) {
    std::vector<std::uint32_t>& own = buckets.emplace_back();
    for (const std::uint32_t t : bucket) own.push_back(runtime->to_own(t));
  }
  groups_.push_back(std::unique_ptr<Group>(new Group(engine_.get(), runtime, std::move(buckets))));
  return groups_.back().get();
}

Status Client::AllReduce(std::span<float> data, ReduceOp op) { return engine_->AllReduce(data, op); }

Status Client::AllReduce(Buffer& buffer, ReduceOp op) { return engine_->AllReduce(buffer.group_, op); }

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
  TALLY_RETURN_IF_ERROR(CheckCount(data));
  TALLY_RETURN_IF_ERROR(CheckOp(data.dtype, op));
  const bool aligned = reinterpret_cast<std::uintptr_t>(data.data) % alignof(float) == 0;
  if (data.dtype == DType::kFloat32 && (op == ReduceOp::kSum || op == ReduceOp::kMean)) {
    if (aligned) return AllReduce(std::span(static_cast<float*>(data.data), data.elements), op);
    return InvalidArgument("the memory of fp32 numbers to be added up has to begin at a multiple of 4");
  }
  return engine_->Collective(Shape(CollectiveKind::kAllReduce, data, op, {}), Bytes(data), Bytes(data));
}

Status Client::Broadcast(NumberView data, Rank root) {
  TALLY_RETURN_IF_ERROR(CheckCount(data));
  if (root.value >= workers()) {
    return InvalidArgument("a broadcast from rank " + std::to_string(root.value) + " of " + std::to_string(workers()) +
                           " workers");
  }
  return engine_->Collective(Shape(CollectiveKind::kBroadcast, data, {}, root), Bytes(data), Bytes(data));
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
  TALLY_RETURN_IF_ERROR(CheckBlocks("all-gather", in, out));
  return engine_->Collective(Shape(CollectiveKind::kAllGather, in, {}, {}), Bytes(in), Bytes(out));
}

Status Client::ReduceScatter(ConstNumberView in, NumberView out, ReduceOp op) {
  TALLY_RETURN_IF_ERROR(CheckBlocks("reduce-scatter", out, in));
  TALLY_RETURN_IF_ERROR(CheckOp(in.dtype, op));
  return engine_->Collective(Shape(CollectiveKind::kReduceScatter, out, op, {}), Bytes(in), Bytes(out));
}

tally::Result<Buffer*> Client::MakeBuffer(std::size_t elements) {
  auto buffer = std::make_unique<Buffer>();
  TALLY_ASSIGN_OR_RETURN(buffer->group_, engine_->MakeBuffer(elements));
  buffer->input_ = buffer->group_->arena_input(0);
  buffer->output_ = {buffer->group_->result(0), elements};
  buffers_.push_back(std::move(buffer));
  return buffers_.back().get();
}

Status Client::Barrier() {
  float one = 1;
  return AllReduce(std::span(&one, 1), ReduceOp::kSum);
}

ClientStats Client::stats() const { return engine_->Stats(); }

void Client::Abort(const std::string& reason) { engine_->Abort(reason); }

Status Client::Leave() { return engine_->Leave(); }

}  // namespace tally
