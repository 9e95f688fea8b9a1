// Channel: one end of the local socket between a training process and tally-worker: messages in packets, memory as
// descriptors beside them. Sending never blocks: what the socket has no room for is queued, and somebody who watches
// the socket calls Flush. Threads: one receives; all else from any.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/arena.h"
#include "common/transport/sockets.h"
#include "worker/agent/message.h"

namespace tally::agent {

// An eventfd: what a thread that polls sockets is woken by.
class WakeUp {
 public:
  WakeUp();
  void Wake();
  void Clear();
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

class Channel {
 public:
  struct Received {
    Message message;
    UniqueFd descriptor;  // of a Memory
  };

  // A connected local socket of type SOCK_SEQPACKET. `wake` runs when a message had to be queued: from then on whoever
  // watches the socket calls Flush when there is room, until nothing is queued.
  Channel(UniqueFd socket, std::function<void()> wake);

  // Errors: kUnavailable (the other end has gone, or takes nothing and the queue is full).
  Status Send(const Message& message, int descriptor = -1);
  Status Flush();
  bool queued() const;
  // Waits for the next one, as long as the other end lives. Errors: kUnavailable (it has gone), kCorrupt,
  // kUnsupported.
  Result<Received> Receive();
  // From now on Receive fails with `why`, once it has given what is in the socket.
  void StopReceiving(const Status& why);

  // The other end is told that this one has gone, once it has received what is in the socket.
  void Close();

  int fd() const { return socket_.get(); }

 private:
  struct Packet {
    std::vector<std::byte> bytes;
    UniqueFd descriptor;
  };
  Status SendPacket(std::vector<std::byte> bytes, int descriptor);
  Status FlushLocked();
  Result<Received> ReceivePacket();

  UniqueFd socket_;
  std::function<void()> wake_;
  mutable std::mutex mutex_;  // of sending
  std::deque<Packet> queue_;
  bool broken_ = false;
  WakeUp stop_;
  Status stop_reason_;
};

// Name of the local socket: what the configuration says, else one of this user's.
std::string SocketName(std::string_view configured);

// Number of the process at the other end; 0: the system does not say.
std::int32_t PeerProcess(int socket);

}  // namespace tally::agent
