// EventLoop::Impl: the Boost.Asio side of the loop, for transports that need sockets (see loop.h).
// Included by loop.cc and common/transport/*.cc only.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <unordered_map>

#include "common/loop.h"

namespace tally {

struct EventLoop::Impl {
  struct Timer {
    boost::asio::steady_timer timer;
    Task task;
  };

  // The hint 1 says that one thread runs it; posting from others stays safe.
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{io.get_executor()};
  std::unordered_map<TimerId, Timer> timers;
  TimerId next_timer = 1;
  std::atomic<std::thread::id> runner{};
};

}  // namespace tally
