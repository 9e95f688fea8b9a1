// Rejections: connections turned away for what they sent, counted over all and told in the log: the first at once, then
// one line in ten seconds with how many went untold, so that a flood does not fill a disk.
#pragma once

#include <chrono>
#include <cstdint>

#include "common/clock.h"
#include "common/log.h"

namespace tally {

class Rejections {
 public:
  explicit Rejections(Logger* logger) : logger_(logger) {}  // outlives this

  void Note(const Status& why, TimePoint now) {
    ++count_;
    if (now < quiet_until_) return;
    quiet_until_ = now + std::chrono::seconds(10);
    logger_->Warn("connection turned away", {{"why", why.text()}, {"untold_before", count_ - told_ - 1}});
    told_ = count_;
  }
  std::uint64_t count() const { return count_; }

 private:
  Logger* logger_;
  TimePoint quiet_until_{};
  std::uint64_t count_ = 0, told_ = 0;
};

}  // namespace tally
