// Dialer: opens one stream connection. Resolves the host (a name without a port is a local socket's), tries every address
// in turn, and starts over with growing pauses until a time limit, because the peer may still be starting.
// Thread: the loop's. Destroying a Dialer cancels it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/loop.h"
#include "common/status.h"
#include "common/transport/link.h"
#include "common/transport/sockets.h"

namespace tally {

class Dialer {
 public:
  using Done = std::function<void(Result<UniqueFd>)>;

  // `done` runs later, on the loop, with a connected, tuned socket, or with kUnavailable: who dialled what, for how
  // long, every address with its error, and a hint. It may destroy the Dialer.
  Dialer(EventLoop* loop, const EndpointParts& endpoint, const LinkIdentity& self, const LinkOptions& options,
         Done done);
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  // The connection that `done` got is of no use: go on with the next address; `done` runs again. `why` becomes that
  // address's error.
  void Retry(const std::string& why);
  TimePoint deadline() const;
  // The host and port that were dialled, as text: for messages.
  const std::string& target() const;

 private:
  class Attempts;
  std::shared_ptr<Attempts> attempts_;
};

}  // namespace tally
