// Agent: what tally-worker is: it listens on a local socket, lets training processes of its own user attach to seats,
// one per rank and job, and watches whether they live. Bounded: processes that ask, seats, memory of each. Threads:
// one of its own; the public functions from any.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/config/config.h"
#include "common/log.h"
#include "worker/agent/seat.h"

namespace tally::agent {

class Agent {
 public:
  // Listens as worker.agent says. `config` is tally-worker's own: of a training process's settings its log and bounds
  // are not taken. Errors: kUnavailable (another one listens there).
  static Result<std::unique_ptr<Agent>> Start(const Config& config, Logger* logger);
  ~Agent();

  const std::string& name() const { return name_; }  // of the socket
  // Runs about once per second on the agent's thread: that it does shows that the thread turns.
  void SetAlive(std::function<void()> alive);
  // Of the engines of all ranks, and of those that come. `level` is one that there is.
  void SetLogLevel(const std::string& level);
  // Ends all jobs here with an error that says so. True: everybody is out within `bound`.
  bool Stop(Nanos bound);

 private:
  // A training process that asks for a seat or has one.
  struct Guest {
    std::shared_ptr<Session> session;
    enum { kSilent, kWaiting, kSeated } state = kSilent;
    LoadedConfig config;
    TimePoint since;
  };
  using Guests = std::list<Guest>;

  Agent(const Config& config, Logger* logger, UniqueFd listener, std::string name);
  void Watch();
  void Accept();
  void TurnAway(const Status& why);
  Status Hear(Guest& guest);
  Status Place(Guest& guest);
  // What poll says of its socket, and that the process has ended. False: it is not watched any more.
  bool Look(Guest& guest, short events, bool ended);

  const Config config_;
  Logger* const logger_;
  const std::string name_;
  UniqueFd listener_;
  WakeUp wake_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::function<void()> alive_;
  std::string log_level_;                               // under the mutex
  std::map<std::string, std::unique_ptr<Seat>> seats_;  // by SeatKey; changed by the agent's thread only
  Guests guests_;
  TimePoint accept_after_{};       // a time without descriptors for more
  TimePoint strangers_told_{};
  std::uint64_t strangers_ = 0;    // turned away, not told of yet
  std::thread thread_;
};

}  // namespace tally::agent
