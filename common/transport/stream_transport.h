// What transports over stream sockets have in common: listening, hello and welcome, dialling, links of framed bytes
// (stream_connection.h). What is special to one is its StreamKind.
// Thread: the loop's.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/transport/link.h"
#include "common/transport/sockets.h"
#include "common/transport/stream_connection.h"

namespace tally {

// A link whose frames are the connection's.
class StreamLink : public Link, protected StreamConnection::Owner {
 public:
  StreamLink(std::string_view scheme, std::shared_ptr<StreamConnection> connection, const LinkIdentity& peer);
  ~StreamLink() override { connection_->Close(); }

  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) override {
    return connection_->Send(header, payload, on_release);
  }
  void Close() override { connection_->Close(); }
  void PauseReceive(bool paused) override { connection_->PauseReceive(paused); }
  const LinkIdentity& peer() const override { return peer_; }
  std::string Describe() const override;
  std::uint64_t queued_bytes() const override { return connection_->queued_bytes(); }
  const LinkStats& stats() const override { return connection_->stats(); }

 protected:
  void OnConnectionFrame(Frame& frame) override;
  void OnConnectionDead(const Status& why) override;

  const std::shared_ptr<StreamConnection> connection_;

 private:
  const std::string_view scheme_;
  const LinkIdentity peer_;
};

// What a link is made of, once both ends have agreed. The connection has been admitted.
struct StreamParts {
  EventLoop* loop;
  BufferPool* pool;
  const LinkOptions* options;
  std::shared_ptr<StreamConnection> connection;
  LinkIdentity peer;
};

struct StreamKind {
  std::string_view scheme;
  bool by_reference;  // payloads may lie elsewhere, and descriptors come along
  Result<UniqueFd> (*listen)(const EndpointParts& endpoint, std::uint32_t socket_buffer_bytes);
  Status (*check_peer)(int socket);  // whether a connected peer, whoever it says it is, may be one; asked at both ends
  std::unique_ptr<Link> (*make_link)(StreamParts parts);
};

// `kind` must outlive the transport.
std::unique_ptr<Transport> MakeStreamTransport(const StreamKind* kind, EventLoop* loop, BufferPool* pool,
                                               const LinkOptions& options);

}  // namespace tally
