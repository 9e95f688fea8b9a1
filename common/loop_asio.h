// EventLoop::Impl: the Boost.Asio side of the loop, for transports that need sockets (see loop.h).
// Included by loop.cc and common/transport/*.cc only.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/handler_memory.h"
#include "common/loop.h"

namespace tally {

struct EventLoop::Impl {
  struct Timer {
    TimePoint due;
    TimerId id;
    Task task;
  };

  void RunPosted();
  void WakeUp();
  void ArmTimer();
  void RunDue();

  const std::shared_ptr<HandlerMemory> wake_memory = std::make_shared<HandlerMemory>();
  const std::shared_ptr<HandlerMemory> timer_memory = std::make_shared<HandlerMemory>();
  // The hint 1 says that one thread runs it; posting from others stays safe.
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  boost::asio::steady_timer timer{io};  // for the earliest
  std::vector<Timer> timers;            // a heap
  TimerId next_timer = 1;
  bool running_due = false;             // RunDue arms the timer at its end
  // Posted tasks, and those of them that the loop has taken; both vectors keep their memory.
  std::mutex mutex;
  std::vector<Task> posted;  // under mutex
  bool woken = false;        // under mutex: RunPosted is under way
  std::vector<Task> taken;
  std::size_t next_taken = 0;
  std::atomic<std::thread::id> runner{};
};

}  // namespace tally
