// Errors that every codec's Validate shares.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "common/status.h"

namespace tally {

// kCorrupt unless the payload has the length that the codec's formula gives.
inline Status CheckPayloadBytes(std::string_view codec, std::size_t n, std::size_t expected, std::size_t got) {
  if (expected == got) return Status::Ok();
  return Corrupt(std::string(codec) + " payload of " + std::to_string(n) + " elements: expected " +
                 std::to_string(expected) + " bytes, got " + std::to_string(got));
}

inline Status CorruptAt(std::string_view codec, std::string_view field, std::size_t index, std::string_view expected,
                        const std::string& got) {
  return Corrupt(std::string(codec) + " payload: " + std::string(field) + " " + std::to_string(index) + ": expected " +
                 std::string(expected) + ", got " + got);
}

}  // namespace tally
