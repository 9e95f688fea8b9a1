// Status and Result: how every fallible function reports failure.
// A kind says what the caller can do about it; the text says who, what, expected, got, and what to do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/check.h"

namespace tally {

enum class StatusKind : unsigned char {
  kOk,
  kInvalidArgument,  // the caller's input or configuration is wrong: change it
  kUnavailable,      // not there now (refused, in use, unreachable, left): retry or give another address
  kPeerLost,         // a member of the job died or went silent
  kCorrupt,          // bytes from a peer or a file failed validation
  kTimeout,          // a deadline passed
  kUnsupported,      // this build, machine or combination cannot do it
  kMismatch,         // peers disagree on version, configuration or layout
  kInternal,         // a fault of ours
};

std::string_view ToString(StatusKind kind);

// The process exit code that CLI.md gives to a kind (0 done, 1 failed, 2 usage, 3 time-out, 4 peer lost, 5 mismatch).
int ExitCode(StatusKind kind);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusKind kind, std::string text) : kind_(kind), text_(std::move(text)) {}

  static Status Ok() { return {}; }

  bool ok() const { return kind_ == StatusKind::kOk; }
  StatusKind kind() const { return kind_; }
  const std::string& text() const { return text_; }

  // "peer lost: rank 2 (hostA) closed its control connection", or "ok".
  std::string ToString() const;

  // The same kind with `prefix + ": "` before the text; ok stays ok.
  Status WithContext(std::string_view prefix) const;

 private:
  StatusKind kind_ = StatusKind::kOk;
  std::string text_;
};

inline Status InvalidArgument(std::string text) { return {StatusKind::kInvalidArgument, std::move(text)}; }
inline Status Unavailable(std::string text) { return {StatusKind::kUnavailable, std::move(text)}; }
inline Status PeerLost(std::string text) { return {StatusKind::kPeerLost, std::move(text)}; }
inline Status Corrupt(std::string text) { return {StatusKind::kCorrupt, std::move(text)}; }
inline Status Timeout(std::string text) { return {StatusKind::kTimeout, std::move(text)}; }
inline Status Unsupported(std::string text) { return {StatusKind::kUnsupported, std::move(text)}; }
inline Status Mismatch(std::string text) { return {StatusKind::kMismatch, std::move(text)}; }
inline Status Internal(std::string text) { return {StatusKind::kInternal, std::move(text)}; }

// Either a value or a Status that is not ok.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    TALLY_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    TALLY_CHECK(ok(), status_.text());
    return *value_;
  }
  const T& value() const& {
    TALLY_CHECK(ok(), status_.text());
    return *value_;
  }
  T&& value() && {
    TALLY_CHECK(ok(), status_.text());
    return *std::move(value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace tally

// Returns the enclosing function's error when `expression` (a Status) is not ok.
#define TALLY_RETURN_IF_ERROR(expression)                    \
  do {                                                       \
    if (::tally::Status tally_status_ = (expression); !tally_status_.ok()) return tally_status_; \
  } while (false)

#define TALLY_CONCAT_INNER(a, b) a##b
#define TALLY_CONCAT(a, b) TALLY_CONCAT_INNER(a, b)
// `TALLY_ASSIGN_OR_RETURN(auto x, F());` declares or assigns x from a Result, or returns its error.
#define TALLY_ASSIGN_OR_RETURN(target, expression) \
  TALLY_ASSIGN_OR_RETURN_INNER(TALLY_CONCAT(tally_result_, __LINE__), target, expression)
#define TALLY_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                    \
  if (!result.ok()) return result.status();                      \
  target = std::move(result).value()
