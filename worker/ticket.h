// The shared state behind a Ticket and behind every other wait of a caller thread on the engine.
// Any thread. Completes once per Reset; the first completion counts.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>

#include "common/clock.h"
#include "common/frame.h"
#include "common/status.h"
#include "worker/client.h"
#include "worker/step_weight.h"

namespace tally {

class Completion {
 public:
  void Complete(const Status& status) {
    std::function<void(const Status&)> then;
    {
      std::lock_guard lock(mutex_);
      if (done_) return;
      done_ = true;
      status_ = status;
      then = std::move(then_);
      then_ = nullptr;
    }
    changed_.notify_all();
    if (then) then(status);
  }

  void Reset() {
    std::lock_guard lock(mutex_);
    done_ = false;
    status_ = Status::Ok();
    then_ = nullptr;
  }

  // Calls `then` once, from the thread that completes this, or here and now if that was before. It does not block.
  void Then(std::function<void(const Status&)> then) {
    Status status;
    {
      std::lock_guard lock(mutex_);
      if (!done_) {
        then_ = std::move(then);
        return;
      }
      status = status_;
    }
    then(status);
  }

  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }

  // Waits until complete, calling `speak_up` after every 5 s. False when `timeout` passed first.
  bool Wait(Nanos timeout, const std::function<void()>& speak_up, Status* status) {
    constexpr Nanos kSpeakUp = std::chrono::seconds(5);
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    std::unique_lock lock(mutex_);
    while (!done_) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= deadline) return false;
      const auto until = std::min(deadline, now + kSpeakUp);
      if (changed_.wait_until(lock, until) == std::cv_status::timeout && !done_ && until < deadline) {
        lock.unlock();
        speak_up();
        lock.lock();
      }
    }
    *status = status_;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status status_;
  std::function<void(const Status&)> then_;
};

class GroupRuntime;
struct TicketState;

// Who completes tickets, and says what is missing where one stays away.
class TicketHost {
 public:
  virtual Status WaitTicket(TicketState* ticket) = 0;

 protected:
  ~TicketHost() = default;
};

// What a Submit hands to the engine.
struct TicketState {
  Completion completion;
  TicketHost* host = nullptr;
  GroupRuntime* group = nullptr;
  std::uint32_t bucket = 0;
  StepId step;  // of an attached group
  StepWeight weight;
};

// What an EndStep or a standalone collective hands to the engine; one per group, as a caller waits for its end.
struct StepEnding {
  Completion completion;
  Vote vote = Vote::kCommit;
  StepWeight weight;
  float loss_scale = 1;
  StepResult result;            // filled in by the engine
  std::span<float> data;        // of a collective
  CollectiveShape collective;
};

}  // namespace tally
