#include "common/transport/shm_notes.h"

#include <string>

#include "common/envelope.h"
#include "common/frame.h"
#include "schemas/node.capnp.h"

namespace tally {
namespace {

constexpr std::size_t kNoteWords = 4;  // root pointer and MemoryNote
constexpr std::size_t kMaxNoteBytes = 4096;

}  // namespace

void EncodeMemoryNote(const MemoryNote& note, std::vector<std::byte>* out) {
  WriteEnvelope<schema::MemoryNote>(kNoteWords, out, [&](schema::MemoryNote::Builder to) {
    to.setNumber(note.number);
    to.setRegion(note.region);
    to.setOffset(note.offset);
    to.setRegionBytes(note.region_bytes);
  });
}

Result<MemoryNote> DecodeMemoryNote(std::span<const std::byte> bytes) {
  MemoryNote note;
  TALLY_RETURN_IF_ERROR(ReadEnvelope<schema::MemoryNote>(bytes, kMaxNoteBytes, [&](schema::MemoryNote::Reader from) {
    note = {from.getNumber(), from.getRegion(), from.getOffset(), from.getRegionBytes()};
    return Status::Ok();
  }));
  return note;
}

void EncodeMemoryReturns(std::span<const std::uint32_t> numbers, std::vector<std::byte>* out) {
  const std::size_t words = 2 + (numbers.size() + 1) / 2;
  WriteEnvelope<schema::MemoryReturns>(words, out, [&](schema::MemoryReturns::Builder returns) {
    auto to = returns.initNumbers(static_cast<unsigned>(numbers.size()));
    for (std::size_t i = 0; i < numbers.size(); ++i) to.set(static_cast<unsigned>(i), numbers[i]);
  });
}

Status DecodeMemoryReturns(std::span<const std::byte> bytes, std::vector<std::uint32_t>* numbers) {
  numbers->clear();
  return ReadEnvelope<schema::MemoryReturns>(bytes, kMaxPayloadBytes, [&](schema::MemoryReturns::Reader returns) {
    for (const std::uint32_t number : returns.getNumbers()) numbers->push_back(number);
    return Status::Ok();
  });
}

Result<std::span<std::byte>> PlaceOf(const MemoryNote& note, std::uint64_t bytes, std::span<std::byte> region) {
  if (note.offset <= region.size() && bytes <= region.size() - note.offset) return region.subspan(note.offset, bytes);
  return Corrupt(std::to_string(bytes) + " bytes from " + std::to_string(note.offset) + " on of a region of " +
                 std::to_string(region.size()));
}

}  // namespace tally
