#include "worker/cli/local_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace tally::cli {
namespace {

// A socket bound to 127.0.0.1:`*port` (0: any, then set), or none with errno.
UniqueFd Bind(std::uint16_t* port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return fd;
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(*port);
  sockaddr* const any = reinterpret_cast<sockaddr*>(&address);  // NOLINT: the sockets API
  socklen_t length = sizeof address;
  if (bind(fd.get(), any, length) != 0 || getsockname(fd.get(), any, &length) != 0) return {};
  *port = ntohs(address.sin_port);
  return fd;
}

}  // namespace

Result<LocalPorts> LocalPorts::Reserve() {
  constexpr int kTries = 64;
  for (int i = 0; i < kTries; ++i) {
    std::uint16_t master = 0;
    const UniqueFd first = Bind(&master);  // given up again when the pair is known: any program may bind MASTER_PORT
    if (first.get() < 0) break;
    auto next = static_cast<std::uint16_t>(master + 1);
    if (next == 0) continue;
    UniqueFd second = Bind(&next);
    if (second.get() >= 0) return LocalPorts(master, std::move(second));
  }
  return Unavailable(std::string("no two free ports on 127.0.0.1: ") + std::strerror(errno));
}

}  // namespace tally::cli
