// ControlSender: sends control messages as frames and keeps their bytes until the link has let go of them; a warm one
// allocates nothing. Outlives the links that it sends on. Thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/control.h"
#include "common/frame.h"
#include "common/transport/link.h"

namespace tally {

class ControlSender {
 public:
  ControlSender() { header_.kind = FrameKind::kControl; }
  ControlSender(const ControlSender&) = delete;
  ControlSender& operator=(const ControlSender&) = delete;

  // `written` (may be empty) runs when the link has let go of the message. Errors as Link::Send.
  Status Send(Link& link, const ControlMessage& message, std::function<void()> written = {});

 private:
  struct Letter {
    ControlSender* sender = nullptr;
    std::vector<std::byte> bytes;
    std::function<void()> written;
  };
  static void Released(void* letter, std::uint64_t);

  FrameHeader header_;
  std::vector<std::unique_ptr<Letter>> letters_;  // all ever made
  std::vector<Letter*> idle_;
};

}  // namespace tally
