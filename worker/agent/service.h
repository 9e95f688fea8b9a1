// Service: what a training process asks of its rank's engine, done one after the other. Groups and buffers stay when
// the process goes; the next one finds them by declaring the same. Thread: the seat's. Messages are hostile: what does
// not fit is refused, and the job goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/arena.h"
#include "worker/agent/session.h"
#include "worker/embedded.h"

namespace tally::agent {

class Service {
 public:
  struct End {
    bool left = false;  // the job
    Status how;         // not ok: it went in the middle of a step, which the job can't survive
  };

  // `memory_cap`: most bytes for groups, buffers and what a process sends.
  Service(EmbeddedBackend* backend, std::uint64_t memory_cap);

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
  Status Charge(std::uint64_t bytes);
  Status OpenStep(const Session& session) const;
  Engine& engine() { return backend_->engine(); }

  EmbeddedBackend* backend_;
  const std::uint64_t memory_cap_;
  std::uint64_t charged_ = 0;
  std::vector<DeclareMessage> declarations_;    // per group of the backend
  std::vector<std::uint64_t> buffer_elements_;  // per buffer of the backend

  // Of the attached process.
  std::vector<Attached> groups_;
  std::uint32_t buffers_ = 0;
  Mapping memory_;        // that it sent last
  Status memory_status_;  // why that is not there
  bool left_ = false;
};

}  // namespace tally::agent
