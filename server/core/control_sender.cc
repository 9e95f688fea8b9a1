#include "server/core/control_sender.h"

#include <utility>

namespace tally {

Status ControlSender::Send(Link& link, const ControlMessage& message, std::function<void()> written) {
  if (idle_.empty()) {
    letters_.push_back(std::make_unique<Letter>());
    letters_.back()->sender = this;
    idle_.push_back(letters_.back().get());
  }
  Letter* letter = idle_.back();
  idle_.pop_back();
  EncodeControl(message, &letter->bytes);
  letter->written = std::move(written);
  return link.Send(header_, letter->bytes, {&ControlSender::Released, letter, 0});
}

void ControlSender::Released(void* context, std::uint64_t) {
  auto* letter = static_cast<Letter*>(context);
  const std::function<void()> written = std::exchange(letter->written, nullptr);
  letter->sender->idle_.push_back(letter);
  if (written) written();
}

}  // namespace tally
