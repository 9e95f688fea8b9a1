// AttachedBackend: a Client whose engine runs in the node's tally-worker. Inputs and outputs of groups and buffers lie
// in that process's memory, mapped here; other memory of the caller is copied once on its way. Threads: as Client's,
// whose questions wait for each other, and one of its own that hears what tally-worker says.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/arena.h"
#include "common/log.h"
#include "worker/agent/channel.h"
#include "worker/backend.h"
#include "worker/ticket.h"

namespace tally::agent {

class AttachedBackend;

class AttachedGroup final : public GroupBackend, public TicketHost {
 public:
  // `number`: the how many-th of this process. Errors: kCorrupt (places that are outside of `memory`).
  static Result<std::unique_ptr<AttachedGroup>> Make(AttachedBackend* backend, std::uint32_t number,
                                                     std::span<const TensorSpec> tensors, const Declared& declared,
                                                     std::vector<Mapping> memory);

  void SetInput(std::uint32_t tensor, const void* numbers) override;
  void Keep(std::uint32_t tensor) override;
  void SetLearningRate(float rate) override { learning_rate_ = rate; }
  Result<std::shared_ptr<TicketState>> Submit(std::uint32_t bucket, StepWeight weight) override;
  Result<StepResult> EndStep(Vote vote, StepWeight weight, float loss_scale) override;
  std::span<const float> Residual(std::uint32_t tensor) override;
  Result<std::vector<std::byte>> ExportState() override;
  Status ImportState(std::span<const std::byte> state) override;

  Status WaitTicket(TicketState* ticket) override;
  // From the hearing thread.
  void OnBucketEnd(std::uint32_t bucket, const Status& status);
  void FailAll(const Status& why);

 private:
  AttachedGroup(AttachedBackend* backend, std::uint32_t number) : backend_(backend), number_(number) {}

  AttachedBackend* backend_;
  const std::uint32_t number_;
  std::vector<Mapping> regions_;
  std::vector<const void*> external_;  // per tensor: the caller's own memory; null: ours
  std::vector<bool> kept_;             // per tensor, in the open step
  float learning_rate_ = 0;
  std::mutex mutex_;
  std::vector<std::shared_ptr<TicketState>> tickets_;  // per bucket
  std::vector<std::vector<float>> residuals_;          // per tensor, as last asked for
};

class AttachedBackend final : public Backend {
 public:
  struct Answer {
    Message message;
    std::vector<Mapping> memory;
  };

  static Result<std::unique_ptr<Backend>> Start(const LoadedConfig& config);
  ~AttachedBackend() override;

  Rank rank() const override { return Rank(config_.worker.rank); }
  std::uint32_t workers() const override { return about_.workers; }
  std::uint32_t local_rank() const override { return about_.local_rank; }
  std::uint32_t servers() const override { return about_.servers; }
  EpochId epoch() const override { return about_.epoch; }
  std::string Describe() override { return about_.description; }
  Result<GroupBackend*> Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) override;
  Status AllReduce(std::span<float> data, ReduceOp op) override;
  Result<BufferMemory> MakeBuffer(std::size_t elements) override;
  Status AllReduce(std::uint32_t buffer, ReduceOp op) override;
  Status Collective(const CollectiveShape& shape, const std::byte* in, std::byte* out) override;
  void NoteRefusal(const Status& why) override;
  void Abort(const std::string& reason) override { (void)Tell(agent::Abort{reason}); }
  ClientStats Stats() override;
  Status Detach() override;
  Status Leave() override;

  // For groups.
  const Config& config() const { return config_; }
  Logger& logger() { return *logger_; }
  Status Tell(const Message& message, int descriptor = -1);
  // Waits for the answer, within `bound`. Errors: what tally-worker answers, its end, kCorrupt (an answer to something
  // else).
  template <typename Expected>
  Result<Answer> Ask(const Message& question, Nanos bound);
  template <typename Expected>
  Result<Answer> Ask(const Message& question) {
    return Ask<Expected>(question, AnswerBound());
  }
  // With memory of this process for tally-worker to read. What was lent before is taken back.
  Status AskWith(const Arena& memory, const Message& question);
  Nanos AnswerBound() const;
  void NoteStepEnd() { called_ = false; }

 private:
  AttachedBackend(const Config& config, std::unique_ptr<Logger> logger);
  Status Connect();
  void Hear();
  Status HearOne();
  Status Gone() const;
  void Fail(const Status& why);
  Result<Answer> AskAny(const Message& question, Nanos bound);
  void Disconnect();

  const Config config_;
  std::unique_ptr<Logger> logger_;
  agent::Attached about_;
  WakeUp wake_;
  std::unique_ptr<Channel> channel_;
  std::string peer_;  // "tally-worker (process 99, socket tally-worker-1000)"
  Arena staging_;     // of collectives' numbers, lent
  std::vector<std::vector<Mapping>> buffers_;

  // A standalone call was made, and no step has ended since: nobody can take this process's place.
  std::atomic<bool> called_{false};
  std::mutex ask_mutex_;  // one question at a time

  std::mutex mutex_;
  std::vector<std::unique_ptr<AttachedGroup>> groups_;
  Status failure_;
  bool stopping_ = false, asking_ = false;
  Completion answered_, ended_;
  Answer answer_;
  std::vector<Mapping> memory_;  // the hearing thread's: that came before its answer
  std::thread thread_;
};

}  // namespace tally::agent
