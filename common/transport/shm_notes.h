// What ends of a link in memory tell each other in place of payloads (schemas/node.capnp): where a payload lies, and which
// loans are over. Reading takes hostile bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"

namespace tally {

struct MemoryNote {
  std::uint32_t number = 0;  // of the loan
  std::uint32_t region = 0;
  std::uint64_t offset = 0;  // of the payload in its region
  std::uint64_t region_bytes = 0;
  bool operator==(const MemoryNote&) const = default;
};

// Into `out` (cleared first, its capacity reused).
void EncodeMemoryNote(const MemoryNote& note, std::vector<std::byte>* out);
void EncodeMemoryReturns(std::span<const std::uint32_t> numbers, std::vector<std::byte>* out);
// Errors: kCorrupt.
Result<MemoryNote> DecodeMemoryNote(std::span<const std::byte> bytes);
Status DecodeMemoryReturns(std::span<const std::byte> bytes, std::vector<std::uint32_t>* numbers);

// The part of a region that a note names. Errors: kCorrupt unless it lies within.
Result<std::span<std::byte>> PlaceOf(const MemoryNote& note, std::uint64_t bytes, std::span<std::byte> region);

}  // namespace tally
