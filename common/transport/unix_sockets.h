// Abstract unix sockets: how processes of one node find each other. A name goes with the process that bound it, so that
// nothing is left behind by one that is killed; the other end's user is known to the system.
#pragma once

#include <sys/socket.h>
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

// Room for one descriptor beside a message. The system installs as many as there is room for: no more than a message of
// ours carries.
struct DescriptorRoom {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))];
};
// The peer gets `descriptor` with the message (-1: none).
void Attach(int descriptor, DescriptorRoom* room, msghdr* message);
// Before recvmsg (with MSG_CMSG_CLOEXEC), and what came by it; not valid: none did. Errors: kCorrupt if some had no room.
void MakeRoom(DescriptorRoom* room, msghdr* message);
Result<UniqueFd> Attached(msghdr* message);

// Not ok (kUnsupported, both users) if the peer of a connected socket is another user's process.
Status CheckSameUser(int socket);

}  // namespace tally
