// EmbeddedBackend: the engine in this process, as a Client or a tally-worker runs it.
// Threads: as Client's.
#pragma once

#include <memory>
#include <vector>

#include "worker/backend.h"
#include "worker/engine.h"

namespace tally {

class EmbeddedGroup final : public GroupBackend {
 public:
  EmbeddedGroup(Engine* engine, GroupRuntime* runtime);

  void SetInput(std::uint32_t tensor, const void* numbers) override;
  void Keep(std::uint32_t tensor) override;
  void SetLearningRate(float rate) override;
  Result<std::shared_ptr<TicketState>> Submit(std::uint32_t bucket, StepWeight weight) override;
  Result<StepResult> EndStep(Vote vote, StepWeight weight, float loss_scale) override;
  std::span<const float> Residual(std::uint32_t tensor) override;
  Result<std::vector<std::byte>> ExportState() override;
  Status ImportState(std::span<const std::byte> state) override;

  GroupRuntime& runtime() { return *runtime_; }
  const std::string& name() const { return runtime_->tables().message.name; }
  // What was set for a step that was not begun is forgotten. Between steps.
  void Reset();

 private:
  Engine* engine_;
  GroupRuntime* runtime_;
};

class EmbeddedBackend final : public Backend {
 public:
  static Result<std::unique_ptr<EmbeddedBackend>> Start(const LoadedConfig& config);

  Rank rank() const override { return engine_->rank(); }
  std::uint32_t workers() const override { return engine_->workers(); }
  std::uint32_t local_rank() const override { return engine_->local_rank(); }
  std::uint32_t servers() const override { return engine_->servers(); }
  EpochId epoch() const override { return engine_->epoch(); }
  std::string Describe() override { return engine_->description(); }
  Result<GroupBackend*> Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) override;
  Status AllReduce(std::span<float> data, ReduceOp op) override;
  Result<BufferMemory> MakeBuffer(std::size_t elements) override;
  Status AllReduce(std::uint32_t buffer, ReduceOp op) override;
  Status Collective(const CollectiveShape& shape, const std::byte* in, std::byte* out) override;
  void NoteRefusal(const Status& why) override { engine_->NoteRefusal(why); }
  void Abort(const std::string& reason) override;
  ClientStats Stats() override { return engine_->Stats(); }
  Status Detach() override;
  Status Leave() override { return engine_->Leave(); }

  Engine& engine() { return *engine_; }
  std::span<const std::unique_ptr<EmbeddedGroup>> groups() const { return groups_; }
  GroupRuntime& buffer(std::uint32_t number) { return *buffers_[number]; }

 private:
  explicit EmbeddedBackend(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}

  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<EmbeddedGroup>> groups_;
  std::vector<GroupRuntime*> buffers_;
};

}  // namespace tally
