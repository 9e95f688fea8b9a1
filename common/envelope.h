// Cap'n Proto bytes of messages. Those that a peer sent are bounds checked by hand before the library sees them (its
// segment count can overflow, capnproto advisory of 2026-03-12), alignment is restored, exceptions become kCorrupt.
// Included by what reads or writes messages only.
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::uint32_t kMaxSegments = 16;
inline constexpr int kMaxNesting = 16;

// Writes a message of at most `bound` words into `out` (cleared first, its capacity reused): one segment, built in
// place behind its 8-byte segment table, so that nothing is allocated or copied once `out` has grown to its working
// size. `fill(Root::Builder)`.
template <typename Root, typename Fill>
void WriteEnvelope(std::size_t bound, std::vector<std::byte>* out, Fill fill) {
  out->assign(8 * (bound + 1), std::byte{0});
  capnp::FlatMessageBuilder builder(kj::arrayPtr(reinterpret_cast<capnp::word*>(out->data()) + 1, bound));
  fill(builder.template initRoot<Root>());
  const auto words = static_cast<std::uint32_t>(builder.getSegmentsForOutput()[0].size());
  out->resize(8 * (std::size_t{words} + 1));
  std::memcpy(out->data() + 4, &words, sizeof words);
}

// The segment table must account for exactly all bytes.
inline Status CheckEnvelope(std::span<const std::byte> bytes, std::size_t max_bytes) {
  const auto word32 = [&](std::size_t index) {
    std::uint32_t value;
    std::memcpy(&value, bytes.data() + 4 * index, sizeof value);
    return value;
  };
  if (bytes.size() < 16 || bytes.size() % 8 != 0) {
    return Corrupt("envelope of " + std::to_string(bytes.size()) + " bytes, expected a multiple of 8 from 16");
  }
  if (bytes.size() > max_bytes) {
    return Corrupt("envelope of " + std::to_string(bytes.size()) + " bytes, at most " + std::to_string(max_bytes));
  }
  if (word32(0) >= kMaxSegments) return Corrupt("envelope of more than " + std::to_string(kMaxSegments) + " segments");
  const std::size_t segments = word32(0) + std::size_t{1};
  const std::size_t table_bytes = (segments / 2 + 1) * 8;
  if (table_bytes > bytes.size()) return Corrupt("envelope shorter than its segment table");
  std::uint64_t words = 0;
  for (std::size_t i = 1; i <= segments; ++i) words += word32(i);
  if (words * 8 != bytes.size() - table_bytes) return Corrupt("envelope's segment sizes do not add up to its length");
  return Status::Ok();
}

// Calls `read(Root::Reader)` -> Status and turns the library's exceptions into kCorrupt.
template <typename Root, typename Read>
Status ReadEnvelope(std::span<const std::byte> bytes, std::size_t max_bytes, Read read) {
  TALLY_RETURN_IF_ERROR(CheckEnvelope(bytes, max_bytes));
  std::array<capnp::word, 512> small;
  std::vector<std::uint64_t> large;
  const std::size_t words = bytes.size() / 8;
  const capnp::word* aligned = nullptr;
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(capnp::word) == 0) {
    aligned = reinterpret_cast<const capnp::word*>(bytes.data());
  } else {
    if (words > small.size()) large.resize(words);
    auto* copy = words > small.size() ? reinterpret_cast<capnp::word*>(large.data()) : small.data();
    std::memcpy(static_cast<void*>(copy), bytes.data(), bytes.size());
    aligned = copy;
  }
  capnp::ReaderOptions options;
  options.traversalLimitInWords = 2 * words + 64;  // everything is read once; lists that point into each other are not
  options.nestingLimit = kMaxNesting;
  Status status;
  try {
    capnp::FlatArrayMessageReader reader(kj::arrayPtr(aligned, words), options);
    status = read(reader.template getRoot<Root>());
  } catch (const kj::Exception& error) {
    status = Corrupt(std::string("envelope: ") + std::string(error.getDescription().cStr()).substr(0, 200));
  }
  return status;
}

}  // namespace tally
