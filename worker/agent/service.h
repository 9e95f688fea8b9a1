// Service: what a training process asks of its rank's engine, done one after the other. Groups and buffers stay when it
// goes after the end of a step; the next one finds them by declaring the same. Thread: the seat's. Messages are hostile:
// what does not fit is refused, and the job goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/arena.h"
#include "worker/agent/session.h"
#include "worker/embedded.h"

namespace tally::agent {

class Service {
 public:
  struct End {
    bool left = false;   // the job
    Status turned_out;   // not ok: why it was
    Status lost;         // not ok: nobody can take its place, and the job ends
  };

  Service(EmbeddedBackend* backend, const Config& config);

  // Until the process has left or is gone.
  End Serve(const std::shared_ptr<Session>& session);

 private:
  // A group as the attached process numbers it.
  struct Attached {
    EmbeddedGroup* group = nullptr;
    std::vector<bool> submitted;  // per bucket, in the open step
    bool open = false;
  };

  // Not ok: the message makes no sense, the process is not served any more.
  Status Handle(const std::shared_ptr<Session>& session, Channel::Received received);
  Status Handle(const std::shared_ptr<Session>& session, const Submit& message);
  Status Handle(const Keep& message);
  Status Handle(const GiveUp& message);
  Status Handle(const Refused& message);
  Status Handle(const Abort& message);
  // The answer.
  Result<Message> Answer(Session& session, const DeclareMessage& message);
  Result<Message> Answer(Session& session, const EndStep& message);
  Result<Message> Answer(Session& session, const Collective& message);
  Result<Message> Answer(Session& session, const MakeBuffer& message);
  Result<Message> Answer(Session& session, const ReduceBuffer& message);
  Result<Message> Answer(Session& session, const ExportState& message);
  Result<Message> Answer(Session& session, const ImportState& message);
  Result<Message> Answer(Session& session, const Residual& message);
  Result<Message> Answer(Session& session, const AskStats& message);
  Result<Message> Answer(Session& session, const Leave& message);

  void TakeMemory(Channel::Received received);
  Result<EmbeddedGroup*> FindDeclared(const DeclareMessage& message);
  Result<Attached*> Find(std::uint32_t group, bool closed);
  std::uint64_t MemoryOf(const DeclareMessage& message) const;
  static void Open(Attached& attached, float learning_rate);
  Status Charge(std::uint64_t bytes);
  Status CheckMayCall() const;
  Status Lost(const Session& session, const Status& turned_out) const;
  Engine& engine() { return backend_->engine(); }

  EmbeddedBackend* backend_;
  const std::uint64_t memory_cap_;  // most bytes for groups, residuals, buffers and what a process sends
  const bool lossy_;                // gradients leave residuals
  std::uint64_t charged_ = 0;
  std::vector<DeclareMessage> declarations_;    // per group of the backend
  std::vector<std::uint64_t> buffer_elements_;  // per buffer of the backend
  std::set<std::pair<std::uint64_t, ReduceOp>> sums_;  // sizes of standalone all-reduces, each a group of the engine
  bool stepped_ = false;                        // a step has ended
  bool called_ = false;                         // a standalone call was made, and no step has ended since

  // Of the attached process.
  std::vector<Attached> groups_;
  std::uint32_t buffers_ = 0;
  Mapping memory_;        // that it sent last
  Status memory_status_;  // why that is not there
  bool came_back_ = false;  // after the end of a step, and has ended none itself
  bool left_ = false;
};

}  // namespace tally::agent
