#include "worker/agent/session.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace tally::agent {

Session::Session(UniqueFd socket, std::function<void()> wake)
    : process_(PeerProcess(socket.get())),
      process_end_(static_cast<int>(syscall(SYS_pidfd_open, process_, 0))),
      channel_(std::move(socket), std::move(wake)) {}

bool Session::BeginCall(Engine* engine, std::string what) {
  const std::lock_guard lock(mutex_);
  if (gone_) return false;
  calling_ = engine;
  what_ = std::move(what);
  return true;
}

void Session::EndCall() {
  const std::lock_guard lock(mutex_);
  calling_ = nullptr;
}

void Session::Gone() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(gone_, true)) return;
  channel_.StopReceiving(Unavailable(name() + " has gone"));
  if (calling_ != nullptr) calling_->Abort(Lost(what_));
}

bool Session::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

Status Session::Lost(const std::string& what) const { return PeerLost(name() + " died in the middle of " + what); }

}  // namespace tally::agent
