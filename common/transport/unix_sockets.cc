#include "common/transport/unix_sockets.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <random>

namespace tally {

// Short, as all members' names travel in one message.
std::string RandomSocketName() {
  std::random_device random;
  std::array<char, 24> name{};
  std::snprintf(name.data(), name.size(), "tally-%08x%08x", random(), random());
  return name.data();
}

std::string FreshShmEndpoint() { return std::string(kShmScheme) + RandomSocketName(); }

// An abstract name begins with a zero byte and has no end but its length.
socklen_t UnixAddress(std::string_view name, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Result<UniqueFd> ListenUnix(std::string_view name, int type) {
  const auto failed = [&](const char* operation) {
    const int error = errno;
    return Unavailable(std::string(operation) + " local socket " + std::string(name) + ": " + ErrnoText(error) +
                       (error == EADDRINUSE ? "; another process listens there" : ""));
  };
  UniqueFd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return failed("socket for");
  sockaddr_un address;
  const socklen_t length = UnixAddress(name, &address);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) return failed("bind");
  if (listen(fd.get(), SOMAXCONN) != 0) return failed("listen on");
  return fd;
}

void Attach(int descriptor, DescriptorRoom* room, msghdr* message) {
  if (descriptor < 0) return;
  *room = {};
  message->msg_control = room->bytes;
  message->msg_controllen = sizeof room->bytes;
  cmsghdr* const rights = CMSG_FIRSTHDR(message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
}

void MakeRoom(DescriptorRoom* room, msghdr* message) {
  message->msg_control = room->bytes;
  message->msg_controllen = CMSG_LEN(sizeof(int));  // CMSG_SPACE has padding, in which a second one would find room
}

Result<UniqueFd> Attached(msghdr* message) {
  UniqueFd descriptor;
  for (cmsghdr* c = CMSG_FIRSTHDR(message); c != nullptr; c = CMSG_NXTHDR(message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(sizeof(int))) continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    descriptor = UniqueFd(fd);
  }
  if ((message->msg_flags & MSG_CTRUNC) == 0) return descriptor;
  return Corrupt("two descriptors with one message, or no room for one in this process");
}

Status CheckSameUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return Unavailable("SO_PEERCRED: " + ErrnoText(errno));
  }
  if (peer.uid == geteuid()) return Status::Ok();
  return Unsupported("shared memory: the peer runs as user " + std::to_string(peer.uid) + ", this process as " +
                     std::to_string(geteuid()));
}

}  // namespace tally
