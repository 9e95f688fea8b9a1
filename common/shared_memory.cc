#include "common/shared_memory.h"

#include <algorithm>
#include <utility>

namespace tally {

std::optional<SharedMemory::Place> SharedMemory::Find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(mutex_);
  auto found = std::ranges::upper_bound(regions_, bytes.data(), {}, &Region::begin);
  if (found == regions_.begin()) return std::nullopt;
  --found;
  const auto offset = static_cast<std::uint64_t>(bytes.data() - found->begin);
  if (offset > found->bytes || bytes.size() > found->bytes - offset) return std::nullopt;
  return Place{found->number, offset, found->bytes, found->descriptor};
}

void SharedMemory::Add(const Arena& arena) {
  const std::lock_guard lock(mutex_);
  const Region region{arena.bytes().data(), arena.bytes().size(), next_++, arena.fd()};
  regions_.insert(std::ranges::upper_bound(regions_, region.begin, {}, &Region::begin), region);
}

void SharedMemory::Remove(const std::byte* begin) {
  const std::lock_guard lock(mutex_);
  std::erase_if(regions_, [&](const Region& region) { return region.begin == begin; });
}

SharedArena& SharedArena::operator=(SharedArena&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(arena_, other.arena_);
  return *this;
}

SharedArena::~SharedArena() {
  if (memory_ != nullptr && !arena_.bytes().empty()) memory_->Remove(arena_.bytes().data());
}

Result<SharedArena> SharedArena::Make(std::shared_ptr<SharedMemory> memory, const std::string& name,
                                      std::uint64_t bytes) {
  SharedArena shared;
  TALLY_ASSIGN_OR_RETURN(shared.arena_, Arena::Make(name, bytes));
  shared.memory_ = std::move(memory);
  if (shared.memory_ != nullptr && bytes > 0) shared.memory_->Add(shared.arena_);
  return shared;
}

}  // namespace tally
