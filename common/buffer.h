// Buffer: a reference-counted block of bytes; BufferPool: keeps freed blocks, so that a warm step allocates nothing.
// Threads: references may be dropped on any thread; a pool's blocks outlive the pool if still referenced.
// A Buffer may also wrap memory that something else owns (a ZeroMQ message, a caller's gradient).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace tally {

// Called exactly once, by whichever thread lets go of the memory last.
struct Release {
  void (*call)(void* context, std::uint64_t tag) = nullptr;
  void* context = nullptr;
  std::uint64_t tag = 0;

  void operator()() const {
    if (call != nullptr) call(context, tag);
  }
};

class Buffer;
class SharedMemory;  // shared_memory.h

// An owning reference. Copying shares, the last one returns the memory.
class BufferRef {
 public:
  BufferRef() = default;
  BufferRef(const BufferRef& other);
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() { Reset(); }

  void Reset();
  explicit operator bool() const { return buffer_ != nullptr; }
  std::byte* data() const;
  std::size_t size() const;
  std::span<std::byte> bytes() const { return {data(), size()}; }
  bool unique() const;  // no one else holds it and it was not wrapped as const: its bytes may be changed in place

  // The pool's block is not used again: a process that cannot be asked may still read it.
  void Lose();

  // Gives this reference up as a Release, for Link::Send.
  Release IntoRelease() &&;

  // Takes the reference back out of a Release that IntoRelease made of a pool's own block; the Release must then not be
  // called. Any other Release is left alone and the answer is empty.
  static BufferRef FromRelease(const Release& release);

 private:
  friend class BufferPool;
  explicit BufferRef(Buffer* adopted) : buffer_(adopted) {}
  static void Drop(void* buffer, std::uint64_t);
  Buffer* buffer_ = nullptr;
};

// Blocks in power-of-two classes from 4 KiB, 64-byte aligned. Bounded: beyond `keep_bytes` of idle memory a freed block
// goes back to the system. With `shared`, blocks from kSharedBlockBytes on lie in memory that processes of this node
// can map; they are cut from arenas that stay as long as the pool does, so of such a block only the pages go back.
class BufferPool {
 public:
  static constexpr std::size_t kSharedBlockBytes = 16384;

  explicit BufferPool(std::uint64_t keep_bytes = std::uint64_t{1} << 30,
                      std::shared_ptr<SharedMemory> shared = nullptr);
  ~BufferPool();
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // At least `bytes` long in memory; size() is exactly `bytes`. Contents are whatever was there.
  BufferRef Get(std::size_t bytes);

  // Wraps `bytes`, owned elsewhere; `on_release` runs when the last reference goes.
  BufferRef Wrap(std::span<std::byte> bytes, Release on_release);
  // The same for bytes that nobody may change: such a buffer is never unique().
  BufferRef WrapConst(std::span<const std::byte> bytes, Release on_release);

  struct Stats {
    std::uint64_t allocations = 0;  // blocks taken from the system so far
    std::uint64_t in_use_bytes = 0;
    std::uint64_t idle_bytes = 0;
  };
  Stats stats() const;
  const std::shared_ptr<SharedMemory>& shared() const;  // null: no block is

 private:
  friend class Buffer;
  friend class BufferRef;
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace tally
