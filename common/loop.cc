#include "common/loop.h"

#include <boost/asio/post.hpp>

#include "common/check.h"
#include "common/loop_asio.h"

namespace tally {

EventLoop::EventLoop() : impl_(std::make_unique<Impl>()) {}
EventLoop::~EventLoop() = default;

void EventLoop::Run() {
  std::thread::id nobody;
  TALLY_CHECK(impl_->runner.compare_exchange_strong(nobody, std::this_thread::get_id()), "two threads run one loop");
  struct Leave {
    Impl* impl;
    ~Leave() { impl->runner.store(std::thread::id{}); }
  } leave{impl_.get()};
  impl_->io.run();
}

void EventLoop::Stop() { impl_->io.stop(); }

void EventLoop::Restart() { impl_->io.restart(); }

void EventLoop::Post(Task task) { boost::asio::post(impl_->io, std::move(task)); }

EventLoop::TimerId EventLoop::After(Nanos delay, Task task) {
  const TimerId id = impl_->next_timer++;
  auto [entry, inserted] =
      impl_->timers.emplace(id, Impl::Timer{boost::asio::steady_timer(impl_->io, delay), std::move(task)});
  entry->second.timer.async_wait([impl = impl_.get(), id](const boost::system::error_code& error) {
    // A timer that expired and was cancelled before this ran still comes here without an error: the table decides.
    const auto found = impl->timers.find(id);
    if (error || found == impl->timers.end()) return;
    const Task run = std::move(found->second.task);
    impl->timers.erase(found);
    run();
  });
  return id;
}

void EventLoop::Cancel(TimerId timer) { impl_->timers.erase(timer); }

bool EventLoop::InLoopThread() const { return impl_->runner.load() == std::this_thread::get_id(); }

TimePoint EventLoop::Now() const { return std::chrono::steady_clock::now(); }

}  // namespace tally
