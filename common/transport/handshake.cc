#include "common/transport/handshake.h"

#include <algorithm>

#include "common/check.h"

namespace tally {

FrameHeader HandshakeHeader(FrameKind kind, const LinkIdentity& self) {
  FrameHeader header;
  header.kind = kind;
  header.job_hash = self.job_hash;
  header.epoch = self.epoch;
  header.incarnation = self.incarnation;
  header.role = self.role;
  header.position = self.index;
  header.bucket = BucketId{self.control ? 1U : self.probe ? 2U : 0U};
  header.codec_version = kProtocolVersion;
  return header;
}

Result<LinkIdentity> ReadHandshake(const FrameHeader& header, FrameKind kind) {
  const char* const name = kind == FrameKind::kHello ? "hello" : "welcome";
  if (header.kind != kind) {
    return Corrupt(std::string("expected a ") + name + ", got a frame of kind " +
                   std::to_string(static_cast<unsigned>(header.kind)));
  }
  if (header.codec_version != kProtocolVersion) {
    return Mismatch("the peer speaks protocol version " + std::to_string(header.codec_version) + ", this program " +
                    std::to_string(kProtocolVersion));
  }
  if (header.bucket.value > 2 || !header.slabs.empty() || !header.contributors.empty()) {
    return Corrupt(std::string("a ") + name + " that carries more than an identity");
  }
  return LinkIdentity{header.job_hash, header.epoch,    header.incarnation,
                      header.role,     header.position, header.bucket.value == 1, header.bucket.value == 2};
}

std::vector<std::byte> EncodeRefusal(const Status& why) {
  TALLY_CHECK(!why.ok(), "a refusal needs a reason");
  const std::size_t text_bytes = std::min(why.text().size(), kMaxHandshakePayloadBytes - 1);
  std::vector<std::byte> payload(1 + text_bytes);
  payload[0] = static_cast<std::byte>(why.kind());
  std::transform(why.text().begin(), why.text().begin() + static_cast<std::ptrdiff_t>(text_bytes), payload.begin() + 1,
                 [](char c) { return static_cast<std::byte>(c); });
  return payload;
}

Status DecodeRefusal(std::span<const std::byte> payload) {
  if (payload.empty()) return Corrupt("a refusal without a reason");
  const auto kind = static_cast<StatusKind>(payload[0]);
  if (kind == StatusKind::kOk || kind > StatusKind::kInternal) return Corrupt("a refusal of unknown kind");
  std::string text;
  for (const std::byte byte : payload.subspan(1)) {
    const char c = static_cast<char>(byte);
    text.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return {kind, std::move(text)};
}

std::string Name(const LinkIdentity& identity) {
  return (identity.role == Role::kServer ? "server " : "worker ") + std::to_string(identity.index);
}

}  // namespace tally
