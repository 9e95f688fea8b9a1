// EventLoop: the one thread that owns a process's links, owners and executor (Boost.Asio inside, loop.cc and
// loop_asio.h; nothing outside common/transport sees it).
// Threads: Post and Stop from anywhere; everything else on the thread that runs Run().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/clock.h"

namespace tally {

class EventLoop {
 public:
  using Task = std::function<void()>;
  using TimerId = std::uint64_t;

  EventLoop();
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Runs tasks, timers and I/O until Stop. Returns at once if Stop came before. May be run again after Restart().
  void Run();
  void Stop();
  void Restart();  // on no thread's Run: forgets an earlier Stop; tasks and timers are kept

  // Tasks of one thread run in the order of their Post. Those left when the loop is destroyed never run.
  void Post(Task task);
  // Runs `task` once, `delay` from now, unless cancelled. Never runs inside After itself.
  TimerId After(Nanos delay, Task task);
  void Cancel(TimerId timer);  // no effect on an unknown or finished one

  bool InLoopThread() const;
  TimePoint Now() const;

  struct Impl;  // loop_asio.h, for transports
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally
