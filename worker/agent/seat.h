// Seat: one rank of one job inside tally-worker: its engine, which lives on when the training process goes between two
// steps, and whoever is attached to it. A thread of its own makes the calls of the training process, one after the
// other. Threads: the agent's.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/config/config.h"
#include "common/log.h"
#include "worker/agent/service.h"
#include "worker/agent/session.h"
#include "worker/embedded.h"

namespace tally::agent {

// "rank 1 of job resnet"
std::string SeatName(const Config& config);
// What tells jobs of one name apart: who leads them, and their servers.
std::string SeatKey(const Config& config);

class Seat {
 public:
  // Joins the job as `config` says, for `first`. `on_ended` runs once, at the end, on the seat's thread.
  Seat(const LoadedConfig& config, std::shared_ptr<Session> first, Logger* logger, std::function<void()> on_ended);
  ~Seat();  // stops it and waits for its end

  // A training process comes back, or another in its place. False: there is one, the last one's end is not dealt with
  // yet, or the job fails and this seat ends. Errors: kMismatch (other settings of the job).
  Result<bool> Offer(const LoadedConfig& config, const std::shared_ptr<Session>& next);
  std::shared_ptr<Session> occupant() const;  // the last one; null once the seat has ended
  bool ended() const;
  // Ends the job for this rank, and the seat soon after.
  void Stop(const Status& why);
  void SetLogLevel(const std::string& level);

 private:
  void Run();
  void ServeAll();
  std::shared_ptr<Session> Next();
  void AbortAndWait(const Status& why);

  const LoadedConfig config_;
  const std::string name_;
  Logger* const logger_;
  const std::function<void()> on_ended_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<Session> session_;
  bool vacant_ = false, stopping_ = false, ended_ = false;
  Status stop_reason_;
  std::string log_level_;  // that was set last; empty: none
  Engine* engine_ = nullptr;  // null: not there yet, or not any more

  std::unique_ptr<EmbeddedBackend> backend_;  // the seat's thread's
  std::unique_ptr<Service> service_;
  std::thread thread_;
};

}  // namespace tally::agent
