#include "common/loop.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "common/check.h"
#include "common/loop_asio.h"

namespace tally {
namespace {

// Heap order: the earliest first, of equal times the first made.
struct Later {
  bool operator()(const auto& a, const auto& b) const { return a.due > b.due || (a.due == b.due && a.id > b.id); }
};

}  // namespace

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

void EventLoop::Post(Task task) {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->posted.push_back(std::move(task));
    if (std::exchange(impl_->woken, true)) return;
  }
  impl_->WakeUp();
}

void EventLoop::Impl::WakeUp() {
  boost::asio::post(io, HandlerWithMemory(wake_memory, [this] { RunPosted(); }));
}

// One batch, then I/O has its turn. A Stop in between keeps the rest.
void EventLoop::Impl::RunPosted() {
  if (next_taken == taken.size()) {
    taken.clear();
    next_taken = 0;
    std::lock_guard lock(mutex);
    taken.swap(posted);
  }
  while (next_taken < taken.size() && !io.stopped()) {
    const Task run = std::move(taken[next_taken++]);
    run();
  }
  {
    std::lock_guard lock(mutex);
    if (next_taken == taken.size() && posted.empty()) {
      woken = false;
      return;
    }
  }
  WakeUp();
}

EventLoop::TimerId EventLoop::After(Nanos delay, Task task) {
  const TimerId id = impl_->next_timer++;
  impl_->timers.push_back({Now() + delay, id, std::move(task)});
  std::ranges::push_heap(impl_->timers, Later{});
  if (impl_->timers.front().id == id && !impl_->running_due) impl_->ArmTimer();
  return id;
}

void EventLoop::Cancel(TimerId timer) {
  const auto found = std::ranges::find(impl_->timers, timer, &Impl::Timer::id);
  if (found == impl_->timers.end()) return;
  const Task dropped = std::move(found->task);  // goes last: it may come back here
  std::swap(*found, impl_->timers.back());
  impl_->timers.pop_back();
  std::ranges::make_heap(impl_->timers, Later{});
}

// Ends an earlier wait. One whose handler was under way already, and one for a timer that was cancelled, finds nothing
// due and waits again.
void EventLoop::Impl::ArmTimer() {
  timer.expires_at(timers.front().due);
  timer.async_wait(HandlerWithMemory(timer_memory, [this](const boost::system::error_code& error) {
    if (!error) RunDue();
  }));
}

void EventLoop::Impl::RunDue() {
  const TimePoint now = std::chrono::steady_clock::now();
  running_due = true;
  while (!timers.empty() && timers.front().due <= now && !io.stopped()) {
    std::ranges::pop_heap(timers, Later{});
    const Task run = std::move(timers.back().task);
    timers.pop_back();
    run();
  }
  running_due = false;
  if (!timers.empty()) ArmTimer();
}

bool EventLoop::InLoopThread() const { return impl_->runner.load() == std::this_thread::get_id(); }

TimePoint EventLoop::Now() const { return std::chrono::steady_clock::now(); }

}  // namespace tally
