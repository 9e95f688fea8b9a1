// SharedMemory: which arenas of this process the others of its node may map, found by address, so that a transport can
// say where a payload lies instead of sending it. Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/arena.h"
#include "common/status.h"

namespace tally {

class SharedMemory {
 public:
  struct Place {
    std::uint32_t region = 0;  // numbers are not used again
    std::uint64_t offset = 0;
    std::uint64_t region_bytes = 0;
    int descriptor = -1;       // valid as long as the region is
  };
  // Where `bytes` lie, if it is in one region; the caller knows that the region stays.
  std::optional<Place> Find(std::span<const std::byte> bytes) const;

 private:
  friend class SharedArena;
  struct Region {
    const std::byte* begin;
    std::uint64_t bytes;
    std::uint32_t number;
    int descriptor;
  };
  void Add(const Arena& arena);
  void Remove(const std::byte* begin);

  mutable std::mutex mutex_;
  std::vector<Region> regions_;  // by address
  std::uint32_t next_ = 0;
};

// An arena that is known to `memory` as long as it lives.
class SharedArena {
 public:
  SharedArena() = default;
  SharedArena(SharedArena&& other) noexcept = default;
  SharedArena& operator=(SharedArena&& other) noexcept;
  ~SharedArena();

  // `memory` may be null: a plain arena. Errors: as Arena::Make.
  static Result<SharedArena> Make(std::shared_ptr<SharedMemory> memory, const std::string& name, std::uint64_t bytes);

  std::span<std::byte> bytes() const { return arena_.bytes(); }
  const Arena& arena() const { return arena_; }

 private:
  std::shared_ptr<SharedMemory> memory_;
  Arena arena_;
};

}  // namespace tally
