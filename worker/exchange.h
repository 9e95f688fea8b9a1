// Exchange: how the buckets of one group are summed: through owners, or by a peer-to-peer schedule. Event driven: a
// bucket starts, frames arrive, slabs get done. Thread: the loop's. One step at a time; the group calls BeginStep when
// nothing of the step before is outstanding.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/buffer.h"
#include "common/config/config.h"
#include "common/frame.h"
#include "common/transport/link.h"
#include "compress/codec_state.h"
#include "server/core/group_tables.h"
#include "server/core/positions.h"
#include "worker/frame_plan.h"
#include "worker/step_weight.h"

namespace tally {

// What has come into a slab's output. Nothing: all weights were 0, so it is zeros, whatever was sent.
enum class Delivered : std::uint8_t { kMean, kNothing, kNonFinite };

// What an exchange needs from the group and engine around it.
class ExchangeEnvironment {
 public:
  virtual ~ExchangeEnvironment() = default;
  // g of a slab: fp32, readable until the step's end. Zeros for a bucket that was not submitted.
  virtual const float* Input(std::uint32_t slab) = 0;
  // What Input is to be multiplied by: this rank's weight, or 1 if Input is weighted already (a linear codec's vector).
  virtual float Factor(std::uint32_t slab) = 0;
  // The slab is zeros and its residual stays: Input is zeros, Factor anything.
  virtual bool Kept(std::uint32_t slab) = 0;
  // The slab's bucket was not submitted in this step: Input is zeros, and its residual is sent.
  virtual bool Absent(std::uint32_t slab) = 0;
  // Where the slab's mean goes. May be the same memory as Input (in place).
  virtual float* Output(std::uint32_t slab) = 0;
  virtual void SlabDone(std::uint32_t slab, Delivered delivered) = 0;
  // Sends to a server or a position; to this process itself only pushes are sent (to its own owner). Errors: no link.
  virtual Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                      BufferRef hold) = 0;
  // Runs `Exchange::Continue` soon, after other events had their turn. Any thread.
  virtual void ContinueSoon() = 0;
};

struct ExchangeOptions {
  FrameHeader header;  // job, incarnation, group, epoch, own position: copied into every frame
  Position self;
  std::uint32_t positions = 1;
  SpeakerOf speaker{};        // whom errors name
  std::uint32_t senders = 1;  // processes, each of which has a credit of its own: with node stages more than positions
  FlowLimits limits;
  std::uint64_t seed = 1;
  bool stochastic = false;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // `verdict_flags`: kFlagPreviousCommitted or kFlagPreviousSkipped, or 0 before the first step.
  // `declared_weight` is what this rank adds to W. `collective`: stamped on every frame of a standalone collective.
  virtual void BeginStep(StepId step, std::uint16_t verdict_flags, double declared_weight,
                         const CollectiveShape& collective) = 0;
  // The bucket's inputs are final; all lower buckets have been started.
  virtual Status StartBucket(std::uint32_t bucket) = 0;
  // A reply, partial or total of the current step (group, epoch, step and sender are checked already). May keep the
  // frame. Errors: kCorrupt: the sender broke the protocol.
  virtual Status OnFrame(Frame& frame) = 0;
  virtual Status Continue() = 0;
  // True while sends may still read Output memory (a caller's own, which it may write after the call returns); ContinueSoon
  // follows when they no longer do.
  virtual bool Draining() = 0;
  // "reply of slab 17 from server 1", at most `max_items`.
  virtual std::string Missing(std::size_t max_items) const = 0;
};

std::unique_ptr<Exchange> MakeOwnersExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables,
                                             const FramePlan* plan, CodecState* state, BufferPool* pool,
                                             ExchangeEnvironment* environment);
std::unique_ptr<Exchange> MakeScheduleExchange(const ExchangeOptions& options,
                                               std::shared_ptr<const GroupTables> tables, const FramePlan* plan,
                                               BufferPool* pool, ExchangeEnvironment* environment);

// Helpers of all.
inline std::span<const std::byte> AsBytes(const float* data, std::size_t elements) {
  return std::as_bytes(std::span(data, elements));
}

}  // namespace tally
