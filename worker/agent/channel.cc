#include "worker/agent/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "common/transport/unix_sockets.h"

namespace tally::agent {
namespace {

constexpr std::size_t kMaxQueued = 65536;  // a bucket's end each, of a process that is stopped

Status Gone() { return Unavailable("the other end of the local socket has gone"); }

// True: it was taken. False: there is no room now.
Result<bool> TrySend(int socket, std::span<const std::byte> bytes, int descriptor) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  DescriptorRoom room;
  tally::Attach(descriptor, &room, &header);
  while (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EPIPE || errno == ECONNRESET) return Gone();
    return Unavailable("sendmsg on the local socket: " + ErrnoText(errno));
  }
  return true;
}

}  // namespace

Channel::Channel(UniqueFd socket, std::function<void()> wake) : socket_(std::move(socket)), wake_(std::move(wake)) {}

Status Channel::Send(const Message& message, int descriptor) {
  std::vector<std::byte> bytes = Encode(message);
  if (bytes.size() <= kPacketBytes) return SendPacket(std::move(bytes), descriptor);
  TALLY_CHECK(descriptor < 0, "a message with memory is small");
  if (bytes.size() > kMaxMessageBytes) {
    return InvalidArgument("a message of " + std::to_string(bytes.size()) +
                           " bytes between training process and tally-worker, at most " +
                           std::to_string(kMaxMessageBytes) + " are sent: use shorter tensor names or several groups");
  }
  TALLY_ASSIGN_OR_RETURN(const Arena body, Arena::Make("tally-message", bytes.size()));
  std::memcpy(body.bytes().data(), bytes.data(), bytes.size());
  return SendPacket(Encode(Body{bytes.size()}), body.fd());
}

Status Channel::SendPacket(std::vector<std::byte> bytes, int descriptor) {
  const std::lock_guard lock(mutex_);
  if (broken_) return Gone();
  if (queue_.empty()) {
    const Result<bool> taken = TrySend(socket_.get(), bytes, descriptor);
    if (!taken.ok()) {
      broken_ = true;
      return taken.status();
    }
    if (*taken) return Status::Ok();
  }
  if (queue_.size() >= kMaxQueued) {
    broken_ = true;
    return Unavailable("the other end of the local socket takes no messages: " + std::to_string(kMaxQueued) +
                       " are queued");
  }
  UniqueFd kept(descriptor < 0 ? -1 : fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (descriptor >= 0 && kept.get() < 0) return Unavailable("dup of a descriptor: " + ErrnoText(errno));
  queue_.push_back({std::move(bytes), std::move(kept)});
  wake_();
  return Status::Ok();
}

Status Channel::Flush() {
  const std::lock_guard lock(mutex_);
  while (!broken_ && !queue_.empty()) {
    const Result<bool> taken = TrySend(socket_.get(), queue_.front().bytes, queue_.front().descriptor.get());
    if (!taken.ok()) {
      broken_ = true;
      queue_.clear();
      return taken.status();
    }
    if (!*taken) return Status::Ok();
    queue_.pop_front();
  }
  return Status::Ok();
}

bool Channel::queued() const {
  const std::lock_guard lock(mutex_);
  return !broken_ && !queue_.empty();
}

Result<Channel::Received> Channel::Receive() {
  TALLY_ASSIGN_OR_RETURN(Received received, ReceivePacket());
  const auto* body = std::get_if<Body>(&received.message);
  if (body == nullptr) return received;
  if (body->bytes > kMaxMessageBytes || received.descriptor.get() < 0) {
    return Corrupt("a message of " + std::to_string(body->bytes) + " bytes in memory, at most " +
                   std::to_string(kMaxMessageBytes) + " with a descriptor are taken");
  }
  std::vector<std::byte> bytes;
  {
    TALLY_ASSIGN_OR_RETURN(const Mapping mapping, Mapping::Make(received.descriptor.Release(), body->bytes, false));
    bytes.assign(mapping.bytes().begin(), mapping.bytes().end());  // it could change while it is read
  }
  TALLY_ASSIGN_OR_RETURN(received.message, Decode(bytes));
  if (std::holds_alternative<Body>(received.message) || std::holds_alternative<Memory>(received.message)) {
    return Corrupt("a message in memory that refers to memory");
  }
  return received;
}

Result<Channel::Received> Channel::ReceivePacket() {
  std::array<std::byte, kPacketBytes> bytes;
  Received received;
  while (true) {
    iovec part{bytes.data(), bytes.size()};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    DescriptorRoom room;
    MakeRoom(&room, &header);
    const ssize_t count = recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
      pollfd waits[] = {{socket_.get(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
      (void)poll(waits, 2, -1);  // ends when the other end does, or with StopReceiving
      if (waits[0].revents != 0 || waits[1].revents == 0) continue;
      const std::lock_guard lock(mutex_);
      return stop_reason_;
    }
    if (count < 0 && errno == ECONNRESET) continue;  // it went without reading all; what it had sent is still here
    if (count < 0) return Unavailable("recvmsg on the local socket: " + ErrnoText(errno));
    TALLY_ASSIGN_OR_RETURN(received.descriptor, tally::Attached(&header));
    if (count == 0) return Gone();
    if ((header.msg_flags & MSG_TRUNC) != 0) {
      return Corrupt("a packet of more than " + std::to_string(kPacketBytes) + " bytes on the local socket");
    }
    TALLY_ASSIGN_OR_RETURN(received.message, Decode(std::span(bytes).first(static_cast<std::size_t>(count))));
    return received;
  }
}

void Channel::StopReceiving(const Status& why) {
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = why;
  }
  stop_.Wake();
}

void Channel::Close() { (void)shutdown(socket_.get(), SHUT_RDWR); }

WakeUp::WakeUp() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) { TALLY_CHECK(fd_.get() >= 0, ErrnoText(errno)); }

void WakeUp::Wake() {
  const std::uint64_t one = 1;
  (void)!write(fd_.get(), &one, sizeof one);
}

void WakeUp::Clear() {
  std::uint64_t count;
  (void)!read(fd_.get(), &count, sizeof count);
}

std::string SocketName(std::string_view configured) {
  return configured.empty() ? "tally-worker-" + std::to_string(geteuid()) : std::string(configured);
}

std::int32_t PeerProcess(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 ? peer.pid : 0;
}

}  // namespace tally::agent
