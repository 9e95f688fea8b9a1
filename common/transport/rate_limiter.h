// RateLimiter: paces bytes per direction as a NIC of a given speed would. Limiters that name the same NIC share one
// pair of virtual clocks in a small shared file, also across processes (an emulated NIC; always labelled as such).
// Lock-free; any thread. The file goes with its last user, also after SIGKILL (the next user sweeps it: flock).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/status.h"

namespace tally {

class RateLimiter {
 public:
  enum class Direction : std::uint8_t { kSend, kReceive };

  // `bits_per_second` >= 1. `nic` empty: private to this object; else at most 64 letters, digits, '-', '_', '.'.
  // Errors: kInvalidArgument, kUnavailable (file, with errno text), kMismatch when the NIC exists with another rate
  // (both named).
  static Result<std::shared_ptr<RateLimiter>> Make(double bits_per_second, const std::string& nic);
  virtual ~RateLimiter() = default;

  // Reserves `bytes` and returns how long to wait from `now` until the last of them has passed the NIC. The slot may
  // begin as early as `now - bytes/rate` for kReceive (the bytes were on the wire while the sender was paced; so a
  // lone stream is not charged twice) and at `now` for kSend; both up to 1 ms earlier, so that a caller whose timer
  // woke late loses no throughput. Over any longer time the rate is exact.
  virtual Nanos Reserve(Direction direction, std::uint64_t bytes, TimePoint now) = 0;
  virtual double bits_per_second() const = 0;
};

}  // namespace tally
