// The two frames that open a link on every transport that leaves the process: kHello from the side that dialled,
// kWelcome as its answer. Both carry the sender's LinkIdentity in the header: job_hash, epoch, incarnation and role as
// they are, position = index, bucket = 1 on a control link, 2 on a probe and 0 on a data link, codec_version =
// kProtocolVersion.
// A welcome without payload accepts. One with payload refuses: a StatusKind byte, then text.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/frame.h"
#include "common/status.h"
#include "common/transport/link.h"

namespace tally {

// Before its hello was accepted a peer may send frames up to these sizes only.
inline constexpr std::size_t kMaxHandshakeHeaderBytes = 4096;
inline constexpr std::size_t kMaxHandshakePayloadBytes = 4096;

FrameHeader HandshakeHeader(FrameKind kind, const LinkIdentity& self);

// Errors: kCorrupt when `header` is not of `kind` or its fields are not an identity, kMismatch (version).
Result<LinkIdentity> ReadHandshake(const FrameHeader& header, FrameKind kind);

// `why` is not ok. At most kMaxHandshakePayloadBytes; longer text is cut.
std::vector<std::byte> EncodeRefusal(const Status& why);
// Hostile input; never ok. Unprintable bytes come back as '?'.
Status DecodeRefusal(std::span<const std::byte> payload);

// "server 0", "worker 3"
std::string Name(const LinkIdentity& identity);

}  // namespace tally
