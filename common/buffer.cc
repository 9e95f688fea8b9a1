#include "common/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/shared_memory.h"

namespace tally {

// One record per block; a wrapper's record has no block of its own and is recycled through the pool as well.
class Buffer {
 public:
  std::atomic<std::uint32_t> references{0};
  std::byte* data = nullptr;
  std::size_t size = 0;
  unsigned size_class = 0;
  bool wrapper = false;
  bool shared = false;  // cut from an arena
  bool lost = false;    // somebody may still read it
  bool read_only = false;
  std::shared_ptr<BufferPool::Core> home;
  Release on_release;
};

namespace {

constexpr std::size_t kAlignment = 64;
constexpr unsigned kMinClass = 12;  // 4 KiB
constexpr unsigned kClasses = 64;
constexpr std::size_t kMaxIdleWrappers = 4096;
// Arenas of shared blocks grow with what a class has already, as each takes a descriptor.
constexpr std::uint64_t kLeastArenaBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kMostArenaBytes = std::uint64_t{1} << 30;
constexpr std::uint64_t kArenaGrowth = 4;  // a quarter of it

}  // namespace

struct BufferPool::Core {
  std::mutex mutex;
  std::array<std::vector<Buffer*>, kClasses> idle;
  std::array<std::vector<Buffer*>, kClasses> cold;  // shared ones whose pages went back to the system
  std::vector<Buffer*> idle_wrappers;
  std::uint64_t keep_bytes = 0;
  bool closed = false;
  Stats stats;
  std::shared_ptr<SharedMemory> shared;
  std::vector<SharedArena> arenas;
  std::array<std::span<std::byte>, kClasses> uncut;  // per class, what is left of its last arena
  std::array<std::uint64_t, kClasses> arena_bytes{};

  // A new block's memory. False: there is none to share, and the block comes from the heap.
  bool Cut(Buffer* buffer) {
    const std::uint64_t block = std::uint64_t{1} << buffer->size_class;
    if (shared == nullptr || block < kSharedBlockBytes) return false;
    const std::lock_guard lock(mutex);
    std::span<std::byte>& left = uncut[buffer->size_class];
    if (left.empty()) {
      std::uint64_t& total = arena_bytes[buffer->size_class];
      const std::uint64_t wanted = std::clamp(total / kArenaGrowth / block * block, kLeastArenaBytes, kMostArenaBytes);
      Result<SharedArena> arena = SharedArena::Make(shared, "tally-frames", std::max(block, wanted));
      if (!arena.ok()) return false;
      total += arena->bytes().size();
      left = arena->bytes();
      arenas.push_back(std::move(arena).value());
    }
    buffer->data = left.data();
    buffer->shared = true;
    left = left.subspan(block);
    return true;
  }

  void Destroy(Buffer* buffer) {
    if (!buffer->shared) std::free(buffer->data);
    delete buffer;
  }

  void GiveWrapper(Buffer* buffer) {
    const Release release = std::exchange(buffer->on_release, {});
    buffer->data = nullptr;
    {
      std::lock_guard lock(mutex);
      if (!closed && idle_wrappers.size() < kMaxIdleWrappers) {
        idle_wrappers.push_back(buffer);
        buffer = nullptr;
      }
    }
    delete buffer;
    release();
  }

  // Takes back a block whose last reference went. The caller's shared_ptr keeps this alive.
  void Give(Buffer* buffer) {
    const std::uint64_t bytes = std::uint64_t{1} << buffer->size_class;
    std::unique_lock lock(mutex);
    stats.in_use_bytes -= bytes;
    const bool beyond = stats.idle_bytes + bytes > keep_bytes;
    if (closed || buffer->lost || (beyond && !buffer->shared)) {
      lock.unlock();
      Destroy(buffer);
      return;
    }
    if (beyond) {
      // Its place in the arena stays. Nobody reads it any more: what was lent has come back.
      lock.unlock();
      const bool gone = madvise(buffer->data, bytes, MADV_REMOVE) == 0;
      lock.lock();
      if (closed) {
        lock.unlock();
        Destroy(buffer);
        return;
      }
      if (gone) return cold[buffer->size_class].push_back(buffer);
    }
    stats.idle_bytes += bytes;
    idle[buffer->size_class].push_back(buffer);
  }
};

BufferPool::BufferPool(std::uint64_t keep_bytes, std::shared_ptr<SharedMemory> shared)
    : core_(std::make_shared<Core>()) {
  core_->keep_bytes = keep_bytes;
  core_->shared = std::move(shared);
}

const std::shared_ptr<SharedMemory>& BufferPool::shared() const { return core_->shared; }

BufferPool::~BufferPool() {
  std::array<std::vector<Buffer*>, kClasses> idle, cold;
  std::vector<Buffer*> idle_wrappers;
  {
    std::lock_guard lock(core_->mutex);
    core_->closed = true;
    idle.swap(core_->idle);
    cold.swap(core_->cold);
    idle_wrappers.swap(core_->idle_wrappers);
    core_->stats.idle_bytes = 0;
  }
  for (auto* lists : {&idle, &cold}) {
    for (auto& list : *lists) {
      for (Buffer* buffer : list) core_->Destroy(buffer);
    }
  }
  for (Buffer* buffer : idle_wrappers) delete buffer;
}

BufferRef BufferPool::Get(std::size_t bytes) {
  const unsigned size_class =
      std::max(kMinClass, static_cast<unsigned>(std::bit_width(bytes == 0 ? 0 : bytes - 1)));
  TALLY_CHECK(size_class < kClasses - 1, "a buffer of this size cannot exist");
  const std::uint64_t block = std::uint64_t{1} << size_class;
  Buffer* buffer = nullptr;
  {
    std::lock_guard lock(core_->mutex);
    auto& list = core_->idle[size_class];
    if (!list.empty()) {
      buffer = list.back();
      list.pop_back();
      core_->stats.idle_bytes -= block;
    } else if (auto& cold = core_->cold[size_class]; !cold.empty()) {
      buffer = cold.back();
      cold.pop_back();
    } else {
      ++core_->stats.allocations;
    }
    core_->stats.in_use_bytes += block;
  }
  if (buffer == nullptr) {
    auto made = std::make_unique<Buffer>();
    made->size_class = size_class;
    if (!core_->Cut(made.get())) made->data = static_cast<std::byte*>(std::aligned_alloc(kAlignment, block));
    if (made->data == nullptr) throw std::bad_alloc();
    buffer = made.release();
  }
  buffer->home = core_;
  buffer->size = bytes;
  buffer->references.store(1, std::memory_order_relaxed);
  return BufferRef(buffer);
}

BufferPool::Stats BufferPool::stats() const {
  std::lock_guard lock(core_->mutex);
  return core_->stats;
}

BufferRef::BufferRef(const BufferRef& other) : buffer_(other.buffer_) {
  if (buffer_ != nullptr) buffer_->references.fetch_add(1, std::memory_order_relaxed);
}

BufferRef BufferPool::Wrap(std::span<std::byte> bytes, Release on_release) {
  Buffer* buffer = nullptr;
  {
    std::lock_guard lock(core_->mutex);
    if (!core_->idle_wrappers.empty()) {
      buffer = core_->idle_wrappers.back();
      core_->idle_wrappers.pop_back();
    } else {
      ++core_->stats.allocations;
    }
  }
  if (buffer == nullptr) buffer = new Buffer;
  buffer->wrapper = true;
  buffer->read_only = false;
  buffer->home = core_;
  buffer->data = bytes.data();
  buffer->size = bytes.size();
  buffer->on_release = on_release;
  buffer->references.store(1, std::memory_order_relaxed);
  return BufferRef(buffer);
}

BufferRef BufferPool::WrapConst(std::span<const std::byte> bytes, Release on_release) {
  // const_cast: read_only keeps unique() false, so no holder writes.
  BufferRef ref = Wrap({const_cast<std::byte*>(bytes.data()), bytes.size()}, on_release);
  ref.buffer_->read_only = true;
  return ref;
}

void BufferRef::Reset() {
  Buffer* buffer = std::exchange(buffer_, nullptr);
  if (buffer == nullptr || buffer->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<BufferPool::Core> home = std::move(buffer->home);
  if (buffer->wrapper) {
    home->GiveWrapper(buffer);
  } else {
    home->Give(buffer);
  }
}

std::byte* BufferRef::data() const { return buffer_ == nullptr ? nullptr : buffer_->data; }
std::size_t BufferRef::size() const { return buffer_ == nullptr ? 0 : buffer_->size; }
bool BufferRef::unique() const {
  return buffer_ != nullptr && !buffer_->read_only && buffer_->references.load(std::memory_order_acquire) == 1;
}

void BufferRef::Drop(void* buffer, std::uint64_t) { BufferRef dropped(static_cast<Buffer*>(buffer)); }

void BufferRef::Lose() {
  if (buffer_ != nullptr) buffer_->lost = true;
}

Release BufferRef::IntoRelease() && {
  Buffer* buffer = std::exchange(buffer_, nullptr);
  if (buffer == nullptr) return {};
  return {&BufferRef::Drop, buffer, 0};
}

BufferRef BufferRef::FromRelease(const Release& release) {
  if (release.call != &BufferRef::Drop) return {};
  Buffer* buffer = static_cast<Buffer*>(release.context);
  return buffer->wrapper ? BufferRef() : BufferRef(buffer);
}

}  // namespace tally
