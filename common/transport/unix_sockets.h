// Abstract unix sockets: how processes of one node find each other. A name goes with the process that bound it, so that
// nothing is left behind by one that is killed; the other end's user is known to the system.
#pragma once

#include <sys/un.h>

#include <string>
#include <string_view>

#include "common/transport/sockets.h"

namespace tally {

// Scheme of the transport shm, and an endpoint of it that nobody else has.
inline constexpr std::string_view kShmScheme = "shm://";
std::string FreshShmEndpoint();

// "tally-" and 64 random bits: nobody else's.
std::string RandomSocketName();

// The address of a name, cut at what an address holds; returns its length.
socklen_t UnixAddress(std::string_view name, sockaddr_un* address);

// A non-blocking socket of `type` (SOCK_STREAM, SOCK_SEQPACKET) that listens. Errors: kUnavailable (name, operation,
// errno).
Result<UniqueFd> ListenUnix(std::string_view name, int type);

// Not ok (kUnsupported, both users) if the peer of a connected socket is another user's process.
Status CheckSameUser(int socket);

}  // namespace tally
