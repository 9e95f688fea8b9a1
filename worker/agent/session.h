// Session: one training process that is attached to tally-worker, or asks to be. Knows whether the process is still
// there and whether it is in a call that others wait for. Threads: the seat's thread receives and calls; the agent's
// watches; the engine's sends ends of buckets.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "worker/agent/channel.h"
#include "worker/engine.h"

namespace tally::agent {

class Session {
 public:
  Session(UniqueFd socket, std::function<void()> wake);

  Channel& channel() { return channel_; }
  // Readable once the process has ended, also where a child of it still holds the socket; -1: it can't be told.
  int process_end() const { return process_end_.get(); }
  std::string name() const { return "training process " + std::to_string(process_); }

  // Brackets a call of the engine that other ranks take part in. False: the process has gone, so it is not to begin.
  // `what`: for the error by which the job ends if the process goes meanwhile.
  bool BeginCall(Engine* engine, std::string what);
  void EndCall();
  // The process has gone: a call ends with the job, Receive once it has given what was sent. Idempotent.
  void Gone();
  bool gone() const;

  // "training process 4711 died in the middle of …"
  Status Lost(const std::string& what) const;

 private:
  const std::int32_t process_;
  const UniqueFd process_end_;
  Channel channel_;
  mutable std::mutex mutex_;
  bool gone_ = false;
  Engine* calling_ = nullptr;
  std::string what_;
};

}  // namespace tally::agent
