// HandlerMemory: where Boost.Asio keeps an operation that waits for its handler; used again for the next, so that a warm
// loop allocates nothing. One operation at a time has it, a second one beside it comes from the heap.
// Included by loop.cc and common/transport/*.cc only. Thread: whoever starts the operation; the loop ends it.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace tally {

class HandlerMemory {
 public:
  void* Allocate(std::size_t bytes) {
    if (bytes <= sizeof bytes_ && !used_.exchange(true, std::memory_order_acquire)) return bytes_;
    return ::operator new(bytes);
  }
  void Free(void* memory) {
    if (memory == bytes_) {
      used_.store(false, std::memory_order_release);
    } else {
      ::operator delete(memory);
    }
  }

 private:
  alignas(std::max_align_t) std::byte bytes_[256];
  std::atomic<bool> used_{false};
};

// What Asio finds by a handler's get_allocator(). Shares the memory: an operation that never runs is freed after its
// handler, and with the handler whoever else held the memory may go.
template <typename T>
class HandlerAllocator {
 public:
  using value_type = T;
  explicit HandlerAllocator(std::shared_ptr<HandlerMemory> memory) : memory_(std::move(memory)) {}
  template <typename U>
  HandlerAllocator(const HandlerAllocator<U>& other) : memory_(other.memory()) {}

  T* allocate(std::size_t n) { return static_cast<T*>(memory_->Allocate(n * sizeof(T))); }
  void deallocate(T* p, std::size_t) { memory_->Free(p); }
  const std::shared_ptr<HandlerMemory>& memory() const { return memory_; }
  bool operator==(const HandlerAllocator& other) const { return memory_ == other.memory_; }

 private:
  std::shared_ptr<HandlerMemory> memory_;
};

template <typename Handler>
class HandlerWithMemory {
 public:
  using allocator_type = HandlerAllocator<void>;
  HandlerWithMemory(std::shared_ptr<HandlerMemory> memory, Handler handler)
      : memory_(std::move(memory)), handler_(std::move(handler)) {}
  allocator_type get_allocator() const noexcept { return allocator_type(memory_); }
  template <typename... Args>
  void operator()(Args&&... args) {
    handler_(std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<HandlerMemory> memory_;
  Handler handler_;
};

}  // namespace tally
