#include "worker/embedded.h"

#include <algorithm>
#include <utility>

#include "common/utf8.h"

namespace tally {
namespace {

constexpr std::size_t kMaxReason = 512;  // bytes of a text by the program

}  // namespace

EmbeddedGroup::EmbeddedGroup(Engine* engine, GroupRuntime* runtime) : engine_(engine), runtime_(runtime) {
  const LayoutMessage& layout = runtime->tables().message;
  shape_.id = layout.group;
  shape_.step = runtime->step();
  for (std::uint32_t own = 0; own < layout.tensors.size(); ++own) {
    const std::uint32_t t = runtime->to_layout(own);
    const TensorSpec& spec = shape_.tensors.emplace_back(layout.tensors[t]);
    TensorMemory& memory = memory_.emplace_back();
    if (spec.dtype == DType::kFloat32) memory.input = runtime->arena_input(t);
    memory.input16 = runtime->own_input16(t);
    memory.output = {runtime->outputs[t], spec.elements.value};
    memory.output16 = runtime->output16(t);
  }
  for (const auto& bucket : layout.buckets) {
    std::vector<std::uint32_t>& own = shape_.buckets.emplace_back();
    for (const std::uint32_t t : bucket) own.push_back(runtime->to_own(t));
  }
}

void EmbeddedGroup::SetInput(std::uint32_t tensor, const void* numbers) {
  const std::uint32_t t = runtime_->to_layout(tensor);
  if (shape_.tensors[tensor].dtype == DType::kFloat32) {
    runtime_->inputs[t] = static_cast<const float*>(numbers);
  } else {
    runtime_->inputs16[t] = static_cast<const std::uint16_t*>(numbers);
  }
}

void EmbeddedGroup::Keep(std::uint32_t tensor) { runtime_->kept[runtime_->to_layout(tensor)] = 1; }

void EmbeddedGroup::SetLearningRate(float rate) { runtime_->learning_rate = rate; }

void EmbeddedGroup::Reset() {
  runtime_->learning_rate = 0;
  std::ranges::fill(runtime_->kept, std::uint8_t{0});
}

Result<std::shared_ptr<TicketState>> EmbeddedGroup::Submit(std::uint32_t bucket, StepWeight weight) {
  return engine_->Submit(runtime_, bucket, weight);
}

Result<StepResult> EmbeddedGroup::EndStep(Vote vote, StepWeight weight, float loss_scale) {
  Result<StepResult> result = engine_->EndStep(runtime_, vote, weight, loss_scale);
  if (!result.ok()) return result;
  std::ranges::fill(runtime_->kept, std::uint8_t{0});
  ++shape_.step;
  return result;
}

std::span<const float> EmbeddedGroup::Residual(std::uint32_t tensor) {
  return runtime_->feedback().Residual(runtime_->to_layout(tensor));
}

Result<std::vector<std::byte>> EmbeddedGroup::ExportState() {
  TALLY_ASSIGN_OR_RETURN(const SavedState state, engine_->Save(runtime_));
  return EncodeState(state);
}

Status EmbeddedGroup::ImportState(std::span<const std::byte> state) {
  TALLY_ASSIGN_OR_RETURN(SavedState saved, DecodeState(state));
  return engine_->Restore(runtime_, std::move(saved)).WithContext("group " + name());
}

Result<std::unique_ptr<EmbeddedBackend>> EmbeddedBackend::Start(const LoadedConfig& config) {
  TALLY_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, Engine::Start(config));
  return std::unique_ptr<EmbeddedBackend>(new EmbeddedBackend(std::move(engine)));
}

Result<GroupBackend*> EmbeddedBackend::Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  TALLY_ASSIGN_OR_RETURN(GroupRuntime * runtime, engine_->Declare(tensors, options));
  groups_.push_back(std::make_unique<EmbeddedGroup>(engine_.get(), runtime));
  return groups_.back().get();
}

Status EmbeddedBackend::AllReduce(std::span<float> data, ReduceOp op) { return engine_->AllReduce(data, op); }

Result<Backend::BufferMemory> EmbeddedBackend::MakeBuffer(std::size_t elements) {
  TALLY_ASSIGN_OR_RETURN(GroupRuntime * group, engine_->MakeBuffer(elements));
  buffers_.push_back(group);
  return BufferMemory{
      static_cast<std::uint32_t>(buffers_.size() - 1), group->arena_input(0), {group->result(0), elements}};
}

Status EmbeddedBackend::AllReduce(std::uint32_t buffer, ReduceOp op) {
  return engine_->AllReduce(buffers_[buffer], op);
}

Status EmbeddedBackend::Collective(const CollectiveShape& shape, const std::byte* in, std::byte* out) {
  return engine_->Collective(shape, in, out);
}

void EmbeddedBackend::Abort(const std::string& reason) {
  engine_->Abort(Unavailable("aborted by its program: " + std::string(Utf8Prefix(reason, kMaxReason))));
}

Status EmbeddedBackend::Detach() {
  return Unsupported(
      "the engine is in this process and ends with it: with worker.attach = agent the node's tally-worker runs it");
}

}  // namespace tally
