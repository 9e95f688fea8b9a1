#include "common/thread_pool.h"

#include "common/check.h"

namespace tally {

ThreadPool::ThreadPool(std::size_t threads) {
  for (std::size_t i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(std::size_t count, const std::function<void(std::size_t)>& item) {
  std::unique_lock lock(mutex_);
  TALLY_CHECK(item_ == nullptr, "one Run at a time");
  item_ = &item;
  next_ = 0;
  count_ = count;
  wake_.notify_all();
  TakeItems(lock);
  done_.wait(lock, [this] { return running_ == 0; });
  item_ = nullptr;
}

void ThreadPool::Work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || (item_ != nullptr && next_ < count_); });
    if (stop_) return;
    TakeItems(lock);
  }
}

// An item is tens of microseconds: the lock between two of them costs nothing.
void ThreadPool::TakeItems(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t index = next_++;
    ++running_;
    const auto* item = item_;
    lock.unlock();
    (*item)(index);
    lock.lock();
    if (--running_ == 0 && next_ >= count_) done_.notify_all();
  }
}

}  // namespace tally
