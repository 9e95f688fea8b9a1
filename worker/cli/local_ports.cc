#include "worker/cli/local_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tally::cli {
namespace {

// A socket bound to 127.0.0.1:`*port` (0: any, then set), or -1 with errno.
int Bind(std::uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(*port);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&address);  // NOLINT: the sockets API
  socklen_t length = sizeof address;
  if (bind(fd, any, length) != 0 || getsockname(fd, any, &length) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
  }
  *port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

Result<LocalPorts> LocalPorts::Reserve() {
  constexpr int kTries = 64;
  for (int i = 0; i < kTries; ++i) {
    std::uint16_t master = 0;
    const int first = Bind(&master);
    if (first < 0) break;
    auto next = static_cast<std::uint16_t>(master + 1);
    const int second = next == 0 ? -1 : Bind(&next);
    const int error = errno;
    close(first);
    if (second >= 0) return LocalPorts(master, second);
    errno = error;
  }
  return Unavailable(std::string("no two free ports on 127.0.0.1: ") + std::strerror(errno));
}

LocalPorts::LocalPorts(LocalPorts&& other) noexcept
    : master_(other.master_), held_(std::exchange(other.held_, -1)) {}

LocalPorts::~LocalPorts() {
  if (held_ >= 0) close(held_);
}

}  // namespace tally::cli
