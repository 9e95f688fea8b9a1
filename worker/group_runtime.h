// GroupRuntime: one group on the engine thread: which buckets are handed over, the exchange under way, the step's end.
// Thread: the loop's, except for the input and output pointers, which the caller sets before it submits.
// A collective (a standalone all-reduce) is a group without residuals and without a verdict: it ends when its results
// are in and nothing is being sent from the caller's memory any more.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/recycled_list.h"
#include "common/shared_memory.h"
#include "compress/codec_state.h"
#include "compress/half_numbers.h"
#include "compress/linear.h"
#include "compress/saved_state.h"
#include "server/core/group_tables.h"
#include "worker/exchange.h"
#include "worker/frame_plan.h"
#include "worker/node_exchange.h"
#include "worker/ticket.h"

namespace tally {

class Owner;

// The engine, as its groups see it.
class GroupEnvironment {
 public:
  virtual ~GroupEnvironment() = default;
  virtual Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                      BufferRef hold) = 0;
  virtual void Prepared(const PreparedMessage& message) = 0;
  virtual void Verdict(const VerdictMessage& verdict) = 0;  // to owners in this process
  // Calls group->Continue() from the loop, in its next turn. Any thread.
  virtual void PostContinue(GroupRuntime* group) = 0;
  virtual void Fail(const Status& why) = 0;
};

class GroupRuntime final : public ExchangeEnvironment {
 public:
  struct Options {
    ExchangeOptions exchange;
    bool error_feedback = true;
    bool collective = false;
    bool follow_learning_rate = false;  // residuals do
    const Nodes* nodes = nullptr;       // there are node stages; outlives the group
  };
  // `own` is this rank's declaration order: tensor names, mapped to the layout by name. Memory for inputs and outputs is
  // made here unless the group is a collective. Errors: kUnavailable (memory), kInternal.
  static Result<std::unique_ptr<GroupRuntime>> Make(const Options& options, std::shared_ptr<const GroupTables> tables,
                                                    std::span<const TensorSpec> own, BufferPool* pool,
                                                    GroupEnvironment* environment);

  // With node stages, before the first step: maps what the node's processes share. `done` runs later; `faults` says what
  // is not shared, if anything. Errors: kUnavailable (memory).
  void ShareWithNode(std::unique_ptr<NodeShare> share, Nanos deadline,
                     std::function<void(Status, std::string faults)> done);

  const GroupTables& tables() const { return *tables_; }
  const ErrorFeedback& feedback() const { return state_.feedback; }
  const ErrorFeedback& velocity() const { return state_.velocity; }
  std::uint64_t saturated() const { return state_.saturated; }
  // group_state.cc: what codecs carry from step to step, between steps. `owner`: this process's of the group, or null.
  SavedState Save(const ResidualOrigin& origin, const Owner* owner) const;
  // Errors, with nothing changed: kMismatch (both values), kCorrupt, kInvalidArgument (a step is open).
  Status Restore(const SavedState& saved, const ResidualOrigin& origin, Owner* owner);
  std::uint32_t to_layout(std::uint32_t own_tensor) const { return to_layout_[own_tensor]; }
  std::uint32_t to_own(std::uint32_t layout_tensor) const { return to_own_[layout_tensor]; }

  // Caller side, before submitting.
  std::vector<const float*> inputs;  // per tensor of the layout
  std::vector<float*> outputs;
  std::vector<const std::uint16_t*> inputs16;  // of tensors of 16 bits, else null
  std::vector<std::uint8_t> kept;   // per tensor of the layout: zeros in this step, and its residual stays
  float learning_rate = 0;          // of the step; 0: unknown
  std::span<float> arena_input(std::uint32_t layout_tensor);
  float* result(std::uint32_t layout_tensor) const;  // where means are made
  // With node stages: what is shared; null without.
  NodeShare* share() { return share_.get(); }
  bool all_share = false;  // every rank maps everybody's inputs and the results: caller side, agreed on by all
  std::vector<const float*> node_inputs;  // then: of all ranks of the node
  // Of a collective that is to run from arena_input to result. No effect if they are there. Errors: kUnavailable.
  Status MakeMemory();
  // Of tensors of 16 bits, else empty.
  std::span<std::uint16_t> own_input16(std::uint32_t layout_tensor) { return own_input16_[layout_tensor]; }
  std::span<const std::uint16_t> output16(std::uint32_t layout_tensor) const { return output16_[layout_tensor]; }
  bool has_fp16() const { return halves_.contains(DType::kFloat16); }
  // Handed over by reference; kept, so that a step allocates nothing. A ticket that its holder kept is replaced.
  std::vector<std::shared_ptr<TicketState>> tickets;  // per bucket
  StepEnding ending;

  // Loop side.
  void Submit(std::uint32_t bucket);
  // Nothing more comes in this step: `ending` completes with its end and then holds the result.
  void EndStep();
  // A standalone all-reduce of `ending.data`, in place, or from arena_input to result if that is empty. `ending` completes
  // when the results are in and the memory is the caller's again.
  void RunCollective();
  void OnFrame(Frame& frame);
  void OnVerdict(const VerdictMessage& verdict);
  void Continue();
  void FailAll(const Status& why);
  bool in_flight() const { return open_; }
  // Rises with everything that happens in the group's steps.
  std::uint64_t progress() const { return progress_; }
  StepId step() const { return step_; }
  // "step 7: bucket 2 not submitted here; 3 replies missing: …" or "waiting for the verdict …".
  std::string Describe() const;

  // ExchangeEnvironment.
  const float* Input(std::uint32_t slab) override;
  float Factor(std::uint32_t slab) override;
  bool Kept(std::uint32_t slab) override;
  bool Absent(std::uint32_t slab) override;
  float* Output(std::uint32_t slab) override;
  void SlabDone(std::uint32_t slab, Delivered delivered) override;
  Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
              BufferRef hold) override;
  void ContinueSoon() override;

 private:
  struct Bucket {
    bool submitted = false;  // handed over in this step
    bool missing = false;    // the step ended without it: zeros
    std::uint32_t remaining = 0;
    std::shared_ptr<TicketState> ticket;
  };

  // How the tensors travel. Per phase: its frames (of the declared buckets, of those behind them) and its exchange.
  struct Wire {
    std::shared_ptr<const GroupTables> tables;
    std::vector<FramePlan> plans;
    std::vector<std::unique_ptr<Exchange>> exchanges;
  };
  // A tensor that a linear codec encodes, in the open step.
  struct Linear {
    LinearPart part;
    std::unique_ptr<LinearTensor> tensor;
    Delivered delivered = Delivered::kMean;
  };

  GroupRuntime(const Options& options, std::shared_ptr<const GroupTables> tables, BufferPool* pool,
               GroupEnvironment* environment);
  void MakeWire(std::shared_ptr<const GroupTables> tables);
  std::unique_ptr<Exchange> MakeExchange(const std::shared_ptr<const GroupTables>& tables, const FramePlan* plan,
                                         const ExchangeOptions& options, ExchangeEnvironment* environment);
  Status PlaceResults();
  void MakeLinear();
  const Layout& layout() const { return wire_->tables->layout; }
  std::uint64_t elements(std::uint32_t tensor) const;
  std::uint64_t ArenaBytes(std::uint32_t tensor) const;  // of its numbers, up to the next cache line
  Linear& LinearOf(std::uint32_t vector) { return linear_[linear_of_vector_[vector - tables_->declared_tensors]]; }
  std::uint32_t DeclaredBucket(std::uint32_t tensor) const;
  void Open(StepWeight weight);
  void StartBucketOf(std::uint32_t bucket, std::shared_ptr<TicketState> ticket);
  void CompleteEnding(const Status& status);
  void StartReady();
  void WidenInputs(std::uint32_t bucket);
  void NarrowOutputs(std::uint32_t bucket);
  void SetFactors(std::uint32_t bucket);
  Status Receive(Frame& frame);
  void EncodeLinear(std::uint32_t bucket);
  void StartSecondPhases();
  void EncodeSecond(std::uint32_t bucket);
  void DecodeLinear(std::uint32_t bucket);
  void FinishBucket(std::uint32_t bucket);
  void FinishIfComplete();
  void CloseStep(bool committed);
  void NoteNonFinite(std::uint32_t slab);
  void Check(const Status& status);
  // Of Save and Restore.
  using Numbers = std::map<std::string_view, std::uint32_t>;  // of tensors, by name
  Status CheckCodecs(std::span<const SavedTensor> saved, const Numbers& numbers) const;
  Result<std::vector<std::span<float>>> MatchCarried(std::span<const SavedTensor> saved) const;
  Result<std::vector<std::uint32_t>> MatchOwned(std::span<const SavedTensor> saved, const Numbers& numbers) const;
  Result<std::vector<std::uint32_t>> MatchScales(std::span<const SavedTensor> saved) const;
  std::uint64_t SharedState() const;
  Wire* StageOf(StepId step) const;

  Options options_;
  std::shared_ptr<const GroupTables> tables_;
  BufferPool* pool_;
  GroupEnvironment* environment_;
  CodecState state_;
  std::vector<float> factors_;        // per tensor: this step's weight, clipped
  std::vector<std::unique_ptr<Wire>> wires_;               // of the codec's stages; linear codecs encode in the last
  Wire* wire_ = nullptr;                                   // that of the open step
  std::vector<Linear> linear_;                             // by number of their vectors
  std::vector<std::vector<std::uint32_t>> bucket_linear_;  // per declared bucket: indices into linear_
  std::vector<std::uint32_t> linear_of_vector_;            // per vector: index into linear_
  SharedArena input_arena_, output_arena_;
  SharedArena private_arena_;                      // outputs that are not made where the node's processes share them
  std::unique_ptr<NodeShare> share_;
  NodePlaces places_;                        // with node stages
  std::vector<std::uint64_t> arena_offset_;  // per tensor of the layout, bytes
  std::vector<std::vector<std::uint16_t>> own_input16_, output16_;  // per tensor of the layout
  std::map<DType, HalfNumbers> halves_;                             // of the types that tensors have
  std::vector<std::uint32_t> to_layout_, to_own_;
  std::vector<float> zeros_;

  std::uint64_t shared_state_ = 0;  // digest of where it was read back from; 0: from nowhere

  std::uint64_t progress_ = 0;
  bool broken_ = false;           // the job failed here: nothing more is started or read
  StepId step_;
  StepWeight weight_;
  float rate_ = 0, last_rate_ = 0;  // that residuals follow: this step's, the last committed one's; 0: unknown
  bool open_ = false;             // a bucket of the step was handed over, or its end asked for
  std::uint16_t last_verdict_ = 0;
  std::vector<Bucket> buckets_;
  std::uint32_t next_bucket_ = 0;   // first one not started
  std::uint32_t next_second_ = 0;   // first one whose second phase, if any, is not started
  std::uint32_t unfinished_ = 0;    // buckets with results missing
  bool non_finite_ = false;
  std::string note_;
  bool ending_ = false, prepared_ = false;
  bool awaited_ = false;          // `ending` is the loop's until it completes
  CollectiveShape collective_;    // of the call that is open, for its frames
  RecycledList<Frame> early_;      // frames of the next step
  RecycledList<Frame> opening_;    // those of the step that opens, being handed over
  std::uint64_t early_bytes_ = 0;
};

}  // namespace tally
