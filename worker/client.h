// Client: what a training process embeds. Join a job, declare named gradients, submit them bucket by bucket as backward
// produces them, take the (weighted) mean over all workers, end the step.
// Threads: one caller at a time per Client and one per Group, Ticket::Wait from any; an engine thread, here or in the
// node's tally-worker (worker.attach; there calls are served in the order in which they are made), does the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/status.h"
#include "common/units.h"
#include "worker/number_view.h"

namespace tally {

class Backend;
class Group;
class GroupBackend;
struct StepWeight;
struct TicketState;

enum class Vote : std::uint8_t { kCommit, kSkip };
enum class Outcome : std::uint8_t { kCommitted, kSkipped };

struct StepResult {
  StepId step;
  Outcome outcome = Outcome::kCommitted;
  std::string reason;  // of a skip: "rank 1: non-finite value in fc1.weight", "rank 2 voted skip"
};

// Counters since Join. Bytes are counted at the sockets, headers included; time is the engine thread's.
struct ClientStats {
  std::uint64_t bytes_sent = 0, bytes_received = 0;      // data links
  std::uint64_t frames_sent = 0, frames_received = 0;
  std::uint64_t steps_committed = 0, steps_skipped = 0;
  std::uint64_t pool_allocations = 0;                    // blocks the engine took from the system
  std::uint32_t connections = 0;                         // to each neighbour on another host
  double measured_bytes_per_s = 0;                       // to one of them as the job began; 0: not by this worker
  double engine_cpu_s = 0;                               // CPU time of the engine thread
  std::uint64_t saturated = 0;                           // numbers pushed that were beyond their codec's 16 bits
  double residual_l1 = 0;
  std::uint64_t residual_bytes = 0;
  bool operator==(const ClientStats&) const = default;
};

// The completion of one bucket. Copies share it.
class Ticket {
 public:
  // Waits until the bucket's results are in Group::Output, at most step.timeout. Results are tentative until EndStep.
  // Errors: kPeerLost, kTimeout, kMismatch, … with job, epoch, step, bucket, rank, peer.
  Status Wait();
  bool done() const;

 private:
  friend class Group;
  std::shared_ptr<TicketState> state_;
};

struct GroupOptions {
  std::string name = "default";
  // The caller's own buckets as tensor names, equal on all ranks; empty = by bucket.cap, reverse declaration order.
  std::vector<std::vector<std::string>> buckets;
  // The number of the first step, equal on all ranks: where a job goes on that was saved between steps (ExportState).
  StepId first_step{};
};

// A set of tensors that steps together. Lives as long as its Client.
class Group {
 public:
  ~Group();
  GroupId id() const;
  std::size_t bucket_count() const;
  // Tensor indices (into this rank's own declaration order) of a bucket, in the bucket's order.
  std::span<const std::uint32_t> bucket(BucketId bucket) const;
  BucketId bucket_of(std::uint32_t tensor) const;

  // The engine's own memory for a tensor's gradient (`elements` floats, zero at first). Writing here and submitting
  // costs no copy. Not to be written between Submit of its bucket and the end of EndStep.
  std::span<float> Input(std::uint32_t tensor);
  // Use the caller's memory instead, same rules, until changed. `memory.size()` must be the tensor's element count.
  Status SetInput(std::uint32_t tensor, std::span<const float> memory);
  // The same for a tensor that was declared as fp16 or bf16, whose numbers are these bits; for such a tensor Input is
  // empty, for one of fp32 Input16. They are widened when the bucket's turn comes; unless a codec is configured they travel
  // to their owners in their own type, what that rounds off stays in the residual, and in a ring as fp32.
  std::span<std::uint16_t> Input16(std::uint32_t tensor);
  Status SetInput16(std::uint32_t tensor, std::span<const std::uint16_t> memory);

  // The weight of this rank's contribution in the step (default 1; for example its number of samples). Before the
  // step's first Submit. Errors: kInvalidArgument if not finite, negative, or too late.
  Status SetWeight(float weight);

  // The scale that the loss, and so every gradient, of this step was multiplied by (default 1): gradients count divided
  // by it, so that residuals keep their unit when a loss scaler changes it. Means come without the scale, too: those of
  // fp16 tensors are then best read by Output, as Output16 rounds what is below 2^-24 to zero (a warning says so).
  // Before the step's first Submit; equal on all ranks, or the step ends with kMismatch naming both. Errors:
  // kInvalidArgument if not finite, not positive, or too late.
  Status SetLossScale(float scale);

  // The learning rate that this and the following steps' means are applied with. Read where compression.ef_lr_correction
  // is ratio: this rank's residuals then count times the last committed step's rate over this one's, at most 2 times; not
  // where either is 0 (also: not set) or not finite. A skipped step leaves the residuals and the rate to compare with as
  // they were. Before the step's first Submit; equal on all ranks, or the step ends with kMismatch naming both. Errors:
  // kInvalidArgument if negative or too late.
  Status SetLearningRate(float rate);

  // This rank has no gradient for the tensor in this step and its residual is to stay as it is (a layer that was not
  // used): zeros count as its gradient, with this rank's weight. Without it a tensor whose bucket is not submitted counts
  // as zeros, too, but its residual is sent. Before the Submit of its bucket, or before EndStep if that is not submitted;
  // for this step only. Errors: kInvalidArgument if too late.
  Status Keep(std::uint32_t tensor);

  // Hands a bucket over; never blocks. Any order; the engine keeps the published order. Errors: kInvalidArgument
  // (number, or submitted twice in this step), or the job's failure.
  tally::Result<Ticket> Submit(BucketId bucket);

  // The mean over ranks, weighted. Valid after the bucket's Wait, until the next step's first Submit.
  std::span<const float> Output(std::uint32_t tensor) const;
  // The same rounded to the type of a tensor that was declared as fp16 or bf16; empty for one of fp32. What Output holds
  // beyond that type's precision is in nobody's residual where the mean travelled as fp32 or compressed.
  std::span<const std::uint16_t> Output16(std::uint32_t tensor) const;

  // Submits nothing more in this step (a bucket not submitted contributes zero and its residual), waits for every
  // result and for the verdict. After it inputs may be written again. Errors as Ticket::Wait: the step did not end.
  // With worker.attach = agent what one process asks is served in that order: while a step ends, other groups' Submits and
  // EndSteps wait, so all ranks end and hand over their groups in the same order.
  tally::Result<StepResult> EndStep(Vote vote = Vote::kCommit);

  StepId step() const;  // the number of the step that is open
  // This rank's committed residual of a tensor (empty if it has none), for tests. Between steps only.
  std::span<const float> Residual(std::uint32_t tensor) const;

  // What this rank's codecs carry from step to step, for a checkpoint: residuals, dgc's velocities, PowerSGD's Q, and
  // the residuals of the slabs that this rank owns (modes direct and hybrid). What servers keep as owners is not in it
  // and is lost with their job. Between steps only; takes the memory of two copies. Errors: kInvalidArgument within a
  // step.
  tally::Result<std::vector<std::byte>> ExportState() const;
  // Puts back what the same rank exported, in a job with as many workers, the same tensors (in any order and buckets)
  // and the same codecs, whose next step is the one that came next then. All ranks read back the same checkpoint or
  // none does, else the next step ends with kMismatch. A slab that this rank owned and another member owns now leaves
  // its owner's residual with this rank's own. Errors, with nothing changed: kMismatch (both values), kCorrupt,
  // kUnsupported (another version), kInvalidArgument within a step.
  Status ImportState(std::span<const std::byte> state);

 private:
  friend class Client;
  explicit Group(GroupBackend* backend);

  GroupBackend* backend_;
  std::vector<std::uint32_t> bucket_of_;             // per own tensor
  std::vector<bool> submitted_;                      // in the open step
  bool step_open_ = false;
  StepWeight CurrentWeight() const;
  Status CheckInput(std::uint32_t tensor, std::size_t elements, bool of_16_bits) const;

  float weight_ = 1;
  float loss_scale_ = 1;
  StepId step_;
};

// Memory for standalone all-reduces that need no copy, made by Client::MakeBuffer; lives as long as its Client.
class Buffer {
 public:
  // Written by the caller between calls (zero at first); a call leaves it as it is.
  std::span<float> input() const { return input_; }
  // What the last call gave, until the next one.
  std::span<const float> output() const { return output_; }

 private:
  friend class Client;
  std::uint32_t number_ = 0;
  std::span<float> input_;
  std::span<const float> output_;
};

class Client {
 public:
  // Joins the job that `config` describes and waits until every member is there (at most membership.join_timeout;
  // speaks up on the log after 5 s). Errors: kInvalidArgument, kUnavailable (each address with its errno), kMismatch
  // (both values), kTimeout (who is missing).
  static tally::Result<std::unique_ptr<Client>> Join(const LoadedConfig& config);
  ~Client();  // leaves

  Rank rank() const;
  std::uint32_t workers() const;
  // This rank's number among the workers of its node, by which it would pick a device.
  std::uint32_t local_rank() const;
  std::uint32_t servers() const;
  EpochId epoch() const;
  // "owners on 2 servers over zmq", "schedule ring over tcp": what the mode expands to; where the coordinator chooses, what
  // it took for the latest group.
  std::string Describe() const;

  // Declares a group; returns once the layout is published. All ranks declare the same groups in the same order;
  // tensors may come in any order but must agree in name, size and dtype (the error names each misfit).
  tally::Result<Group*> DeclareGroup(std::span<const TensorSpec> tensors, const GroupOptions& options = {});

  // A standalone all-reduce of n fp32 numbers, in place, without step, feedback or compression. All ranks call it in
  // the same order with equal n and op (else kMismatch on every rank, naming both). On failure `data` is undefined.
  Status AllReduce(std::span<float> data, ReduceOp op = ReduceOp::kSum);
  // The same from a buffer's input to its output. With node stages (mode hierarchical) the processes of a node read the
  // inputs and write the output where they lie.
  Status AllReduce(Buffer& buffer, ReduceOp op = ReduceOp::kSum);
  // All ranks in the same order, between the same calls, equal n. Errors: kUnavailable (memory), kMismatch.
  tally::Result<Buffer*> MakeBuffer(std::size_t elements);
  // Collectives of numbers of any type (worker/number_view.h), straight between workers in every mode: not through servers,
  // without compression. All ranks call them in the same order with equal kind, count, type, op and root, else kMismatch on
  // every rank, naming both; a rank that dies ends them everywhere with kPeerLost. On failure what was to be written is
  // undefined. fp16 and bf16 are added, multiplied and divided in fp32, each result rounded once; integers wrap; NaN wins
  // in min and max; a mean is the sum and one division. All ranks get the same bits. Errors, nothing having been sent:
  // kInvalidArgument (a mean of integers, a bitwise op of floating numbers, sizes, root).
  //
  // In place. The sum and mean of fp32 are those above, with their speed and bits.
  Status AllReduce(NumberView data, ReduceOp op);
  // Everybody's `data` becomes the root's.
  Status Broadcast(NumberView data, Rank root);
  // `out` becomes the ranks' inputs one after the other. `in` may be this rank's own place in it, else they do not overlap.
  Status AllGather(ConstNumberView in, NumberView out);
  // Rank r's `out` becomes what `op` makes of place r of all ranks' inputs. `out` may be this rank's own place in `in`.
  Status ReduceScatter(ConstNumberView in, NumberView out, ReduceOp op);

  // Returns when every rank has called it.
  Status Barrier();

  ClientStats stats() const;

  // Gives the rank back to the node's tally-worker, which keeps its groups, residuals and place in the job for the
  // training process that joins next as the same rank and declares the same groups and buffers, within
  // worker.return_within. Its inputs are zero, its outputs those of the last step. After the end of a step (or before
  // anything) and before further standalone calls; the client is of no use afterwards, and no thread or child may write its
  // inputs. A process that dies at such a point is taken to have called it; one that dies after standalone calls
  // ends the job, as another could not tell which of them were made. For the same reason the process that comes back to a
  // group whose step is not 0 makes none before its first EndStep (kInvalidArgument, nothing lost): it leaves out the
  // barriers and broadcasts that prepare the first step.
  // Errors: kUnsupported unless worker.attach is agent, kInvalidArgument within a step or after standalone calls.
  Status Detach();

  // Ends the job on all members with kUnavailable, naming this rank and the reason; returns at once, and calls that follow
  // fail. For a training process that cannot go on.
  void Abort(const std::string& reason);

  // Leaves in good order: peers and servers are told, links are flushed. Idempotent.
  Status Leave();

 private:
  Client();
  Status CheckBlocks(const char* what, const ConstNumberView& block, const ConstNumberView& all) const;
  // Hands on what was found out about a collective's arguments.
  Status Refused(const Status& found);

  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

}  // namespace tally
