// Time as the engine sees it: monotonic nanoseconds. Pure logic takes a TimePoint as an argument and never reads a
// clock, so a simulation can run whole clusters on a clock of its own.
#pragma once

#include <chrono>
#include <cstdint>

namespace tally {

using Nanos = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Nanos>;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

class ManualClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Nanos by) { now_ += by; }

 private:
  TimePoint now_{};
};

}  // namespace tally
