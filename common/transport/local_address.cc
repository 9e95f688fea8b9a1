#include "common/transport/local_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace tally {

Result<std::string> LocalAddressTowards(std::string_view host) {
  const std::string name(host);
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The port does not matter: connecting a datagram socket only looks the route up.
  if (const int error = getaddrinfo(name.c_str(), "9", &hints, &found); error != 0) {
    return Unavailable("looking up " + name + " failed: " + gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  std::string errors;
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    auto* address = reinterpret_cast<sockaddr*>(&local);
    const bool routed = connect(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, address, &length) == 0;
    const int error = errno;
    close(fd);
    char text[NI_MAXHOST];
    if (routed && getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0) {
      return a->ai_family == AF_INET6 ? "[" + std::string(text) + "]" : std::string(text);
    }
    errors += (errors.empty() ? "" : "; ") + std::string(std::strerror(error));
  }
  return Unavailable("no route to " + name + ": " + errors);
}

bool IsLoopbackAddress(std::string_view host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || host.starts_with("127.");
}

}  // namespace tally
