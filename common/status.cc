#include "common/status.h"

#include <cstdio>
#include <cstdlib>

namespace tally {

void CheckFailed(const char* file, int line, const char* condition, std::string_view detail) {
  std::fprintf(stderr, "%s:%d: check failed: %s: %.*s\n", file, line, condition, static_cast<int>(detail.size()),
               detail.data());
  std::abort();
}

std::string_view ToString(StatusKind kind) {
  switch (kind) {
    case StatusKind::kOk: return "ok";
    case StatusKind::kInvalidArgument: return "invalid argument";
    case StatusKind::kUnavailable: return "unavailable";
    case StatusKind::kPeerLost: return "peer lost";
    case StatusKind::kCorrupt: return "corrupt";
    case StatusKind::kTimeout: return "time-out";
    case StatusKind::kUnsupported: return "unsupported";
    case StatusKind::kMismatch: return "mismatch";
    case StatusKind::kInternal: return "internal error";
  }
  return "unknown";
}

int ExitCode(StatusKind kind) {
  switch (kind) {
    case StatusKind::kOk: return 0;
    case StatusKind::kInvalidArgument: return 2;
    case StatusKind::kTimeout: return 3;
    case StatusKind::kPeerLost: return 4;
    case StatusKind::kMismatch: return 5;
    default: return 1;
  }
}

std::string Status::ToString() const {
  if (ok()) return "ok";
  return std::string(tally::ToString(kind_)) + ": " + text_;
}

Status Status::WithContext(std::string_view prefix) const {
  if (ok()) return *this;
  return {kind_, std::string(prefix) + ": " + text_};
}

}  // namespace tally
