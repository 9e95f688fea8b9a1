// Stream sockets by the system's own calls, for the transports: opening, naming and tuning them. Nothing here blocks,
// except that ListenTcp looks up a host that is not a literal address.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <utility>

#include "common/status.h"
#include "common/transport/link.h"

namespace tally {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();

  int get() const { return fd_; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

std::string ErrnoText(int error);

// "10.0.0.1:7070", "[::1]:7070", a local socket's name; "?" where there is none.
std::string AddressText(const sockaddr* address, socklen_t bytes);
std::string LocalAddress(int fd);
std::string RemoteAddress(int fd);

// A new non-blocking, close-on-exec stream socket with its buffer sizes set (0 = the system's). -1 with errno.
int OpenSocket(int family, std::uint32_t socket_buffer_bytes);

// For a connected socket: no delay, and a dead peer is noticed within about a minute.
void TuneConnection(int fd);

// Binds exactly `endpoint`'s address and listens. Errors: as Transport::Listen.
Result<UniqueFd> ListenTcp(const EndpointParts& endpoint, std::uint32_t socket_buffer_bytes);

}  // namespace tally
