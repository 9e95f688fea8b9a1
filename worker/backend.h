// Backend, GroupBackend: what runs a Client and its groups: the engine in this process (embedded.h) or the node's
// tally-worker (agent/attached.h). Client and Group check what callers give; behind here it is taken as it comes.
// Threads: as Client's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/frame.h"
#include "common/status.h"
#include "common/units.h"
#include "worker/client.h"
#include "worker/step_weight.h"

namespace tally {

struct TicketState;

// What a group is, in this rank's own order of declaration.
struct GroupShape {
  GroupId id;
  StepId step;  // that comes next
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<std::uint32_t>> buckets;  // of tensors, in each bucket's order
};

// Where a tensor's numbers lie, as long as its group. Of the inputs there is the one of the type that was declared.
struct TensorMemory {
  std::span<float> input;
  std::span<std::uint16_t> input16;
  std::span<const float> output;
  std::span<const std::uint16_t> output16;  // of tensors of 16 bits
};

// Errors: kInvalidArgument (name, types, shapes).
Status CheckDeclaration(std::span<const TensorSpec> tensors, const GroupOptions& options);

// Errors where none are said: the job's failure.
class GroupBackend {
 public:
  virtual ~GroupBackend() = default;

  const GroupShape& shape() const { return shape_; }
  const TensorMemory& memory(std::uint32_t tensor) const { return memory_[tensor]; }

  // Before the tensor's bucket is submitted. The memory has the tensor's elements, of its type.
  virtual void SetInput(std::uint32_t tensor, const void* numbers) = 0;
  virtual void Keep(std::uint32_t tensor) = 0;  // for the open step
  virtual void SetLearningRate(float rate) = 0;
  virtual Result<std::shared_ptr<TicketState>> Submit(std::uint32_t bucket, StepWeight weight) = 0;
  virtual Result<StepResult> EndStep(Vote vote, StepWeight weight, float loss_scale) = 0;

  // Between steps. Errors of ImportState: as Group's.
  virtual std::span<const float> Residual(std::uint32_t tensor) = 0;
  virtual Result<std::vector<std::byte>> ExportState() = 0;
  virtual Status ImportState(std::span<const std::byte> state) = 0;

 protected:
  GroupShape shape_;
  std::vector<TensorMemory> memory_;  // per tensor
};

class Backend {
 public:
  // Memory of standalone all-reduces that need no copy.
  struct BufferMemory {
    std::uint32_t number = 0;  // from 0, in the order of MakeBuffer
    std::span<float> input;
    std::span<const float> output;
  };

  // Joins as the configuration says (worker.attach). Errors: as Client::Join.
  static Result<std::unique_ptr<Backend>> Start(const LoadedConfig& config);
  virtual ~Backend() = default;

  virtual Rank rank() const = 0;
  virtual std::uint32_t workers() const = 0;
  virtual std::uint32_t local_rank() const = 0;
  virtual std::uint32_t servers() const = 0;
  virtual EpochId epoch() const = 0;
  virtual std::string Describe() = 0;

  // The group lives as long as the backend.
  virtual Result<GroupBackend*> Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) = 0;

  virtual Status AllReduce(std::span<float> data, ReduceOp op) = 0;
  virtual Result<BufferMemory> MakeBuffer(std::size_t elements) = 0;
  virtual Status AllReduce(std::uint32_t buffer, ReduceOp op) = 0;
  // Of any kind (collective_runtime.h); `shape` without a number.
  virtual Status Collective(const CollectiveShape& shape, const std::byte* in, std::byte* out) = 0;

  // A collective was refused for its arguments, and not passed on: the other ranks may be in it.
  virtual void NoteRefusal(const Status& why) = 0;
  virtual void Abort(const std::string& reason) = 0;  // as Client's

  virtual ClientStats Stats() = 0;
  virtual Status Detach() = 0;  // as Client's
  virtual Status Leave() = 0;   // idempotent
};

}  // namespace tally
