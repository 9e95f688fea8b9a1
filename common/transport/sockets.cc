#include "common/transport/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <memory>
#include <system_error>

namespace tally {
namespace {

constexpr int kListenBacklog = 1024;
constexpr int kKeepIdleSeconds = 10;
constexpr int kKeepIntervalSeconds = 5;
constexpr int kKeepProbes = 4;
// Counts from the first unanswered byte, and also while the peer's window stays closed: it must be longer than any
// pause that a healthy peer's back-pressure makes. Silent peers are declared dead earlier by the control plane.
constexpr unsigned kUserTimeoutMs = 60'000;

template <typename T>
void Set(int fd, int level, int option, T value) {
  // A refused option costs speed or detection time, never correctness.
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

std::string Name(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  return name(fd, generic, &bytes) == 0 ? AddressText(generic, bytes) : "?";
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

std::string AddressText(const sockaddr* address, socklen_t bytes) {
  if (address->sa_family == AF_UNIX) {  // the abstract ones that we bind; an end that dialled has none
    const std::size_t begin = offsetof(sockaddr_un, sun_path) + 1;
    if (bytes <= begin) return "unnamed";
    return {reinterpret_cast<const char*>(address) + begin, bytes - begin};
  }
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(address, bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool v6 = address->sa_family == AF_INET6;
  return std::string(v6 ? "[" : "") + host + (v6 ? "]:" : ":") + port;
}

std::string LocalAddress(int fd) { return Name(fd, &getsockname); }
std::string RemoteAddress(int fd) { return Name(fd, &getpeername); }

int OpenSocket(int family, std::uint32_t socket_buffer_bytes) {
  const int fd = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && socket_buffer_bytes > 0) {
    Set(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(socket_buffer_bytes));
    Set(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(socket_buffer_bytes));
  }
  return fd;
}

void TuneConnection(int fd) {
  Set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kKeepIdleSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kKeepIntervalSeconds);
  Set(fd, IPPROTO_TCP, TCP_KEEPCNT, kKeepProbes);
  Set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

Result<UniqueFd> ListenTcp(const EndpointParts& endpoint, std::uint32_t socket_buffer_bytes) {
  const std::string where = endpoint.scheme + "://" + endpoint.host + ":" + endpoint.port;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found); error != 0) {
    return InvalidArgument("listen on " + where + ": " + gai_strerror(error) + "; give an address of this host");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);

  UniqueFd fd(OpenSocket(list->ai_family, socket_buffer_bytes));
  const std::string address = AddressText(list->ai_addr, list->ai_addrlen);
  const auto failed = [&](const char* operation, int error, const char* hint) {
    return Unavailable(std::string(operation) + " " + address + " for " + where + ": " + ErrnoText(error) + hint);
  };
  if (fd.get() < 0) return failed("socket for", errno, "");
  Set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (list->ai_family == AF_INET6) Set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd.get(), list->ai_addr, list->ai_addrlen) != 0) {
    const int error = errno;
    return failed("bind", error,
                  error == EADDRINUSE      ? "; another process listens there: stop it, or give port 0 for a free one"
                  : error == EADDRNOTAVAIL ? "; no interface of this host has that address"
                                           : "");
  }
  if (listen(fd.get(), kListenBacklog) != 0) return failed("listen on", errno, "");
  return fd;
}

}  // namespace tally
