// ThreadPool: threads that wait for work and share the items of one Run at a time with its caller. For work whose
// items do not depend on each other, such as the slabs of a tensor: results do not depend on the number of threads.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tally {

class ThreadPool {
 public:
  // The caller of Run is one of `threads`; the others start here.
  explicit ThreadPool(std::size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  std::size_t threads() const { return workers_.size() + 1; }

  // Calls item(0), …, item(count - 1), each once, on any thread, and returns when all have returned. `item` does not
  // throw and does not call Run. One Run at a time.
  void Run(std::size_t count, const std::function<void(std::size_t)>& item);

 private:
  void Work();
  void TakeItems(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(std::size_t)>* item_ = nullptr;
  std::size_t next_ = 0, count_ = 0, running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tally
