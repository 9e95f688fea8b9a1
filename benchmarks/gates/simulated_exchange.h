// SimulatedExchange: the exchange of N workers' gradients in one process and without sockets: every worker's encode
// with its residual, the owner's sum and its reply with the owner's residual, one decode (all workers' would be equal).
// The codec library and the Owner are the product's own; vectors of linear codecs, which travel as they are, are summed
// in worker order. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "common/status.h"
#include "compress/codec.h"
#include "compress/codec_state.h"
#include "compress/owner_sum.h"
#include "server/core/owner.h"
#include "server/core/wire_layout.h"

namespace tally::gates {

class SimulatedExchange {
 public:
  // Errors: kInvalidArgument of the codec or the tensors.
  static Result<std::unique_ptr<SimulatedExchange>> Make(std::span<const TensorSpec> tensors, std::uint32_t workers,
                                                         const Config::Compression& compression);

  // Where the next worker's gradient is written; read by Push.
  std::span<float> Input(std::uint32_t tensor) { return inputs_[tensor]; }
  // The contribution of `worker`, once a step for each, in rising order. Errors: kInvalidArgument (not finite), or the
  // owner's.
  Status Push(std::uint32_t worker);
  // After everybody's Push: delivers the mean and commits.
  Status EndStep();
  std::span<const float> Output(std::uint32_t tensor) const { return outputs_[tensor]; }

  // Payloads of one worker in the last step.
  std::uint64_t push_bytes() const { return push_bytes_; }
  std::uint64_t reply_bytes() const { return reply_bytes_; }

 private:
  // A tensor with a linear codec.
  struct Linear {
    LinearPart part;
    std::vector<std::unique_ptr<LinearTensor>> of_worker;
    std::vector<float> vector, first, second;  // what a worker sends; the sums, then the means
  };

  // What holds from a step on.
  struct Stage {
    WireLayout wire;
    std::vector<std::unique_ptr<Codec>> codecs;  // per tensor of the wire; none where a linear one encodes
    std::vector<std::uint32_t> owned;            // slabs that go through the owner
    std::vector<const Codec*> tensor_codec;      // the same
    std::unique_ptr<OwnerSums> sums;
  };

  SimulatedExchange(std::uint32_t workers, const Config::Compression& compression);
  Status AddStage(WireLayout wire);
  void MakeOwner();
  void MakeResiduals();
  bool last_stage() const { return stage_ + 1 == stages_.size(); }  // in which linear codecs encode
  Status PushTensor(std::uint32_t worker, std::uint32_t tensor);
  Status PushLinear(std::uint32_t worker, Linear* linear);
  Status Deliver(const ReplyFrame& reply);
  void DeliverLinear(Linear* linear);
  Status NotFinite(std::uint32_t worker) const;

  const std::uint32_t workers_;
  const bool error_feedback_, stochastic_;
  const std::uint64_t seed_;
  std::vector<Stage> stages_;  // by first step
  std::size_t stage_ = 0;
  std::unique_ptr<Owner> owner_;  // of the stage
  BufferPool pool_;
  std::vector<CodecState> state_;  // per worker
  RecycledList<ReplyFrame> replies_;
  std::vector<Linear> linear_;
  std::vector<std::vector<float>> inputs_, outputs_;
  std::uint64_t step_ = 0, push_bytes_ = 0, reply_bytes_ = 0;
  std::size_t delivered_slabs_ = 0;
};

}  // namespace tally::gates
