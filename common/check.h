// TALLY_CHECK: our own invariants. Never used on bytes or values that come from a peer, a user or a file.
#pragma once

#include <string_view>

namespace tally {

// Prints file, line, condition and detail to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, std::string_view detail);

}  // namespace tally

#define TALLY_CHECK(condition, detail)                                              \
  do {                                                                              \
    if (!(condition)) [[unlikely]] ::tally::CheckFailed(__FILE__, __LINE__, #condition, detail); \
  } while (false)
