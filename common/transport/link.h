// Link: an ordered channel of frames to one peer over one connection; Transport: makes and accepts links.
// Thread: the EventLoop's only. Nothing here blocks, nothing calls back from inside Send, Connect or Listen.
// Where to add a transport: one file here, one line in transports.inc (and in tests/conformance nothing: it runs over
// the table).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/buffer.h"
#include "common/frame.h"
#include "common/loop.h"
#include "common/status.h"

namespace tally {

class RateLimiter;  // rate_limiter.h

// Who is at an end of a link; the first frame on it (kHello) says so.
struct LinkIdentity {
  std::uint64_t job_hash = 0;
  EpochId epoch;
  std::uint64_t incarnation = 0;
  Role role = Role::kWorker;
  std::uint32_t index = 0;   // a rank or server index
  bool control = false;      // carries control messages, is never paced
  bool probe = false;        // asks only who is there and how fast bytes get there
};

// One received frame. `payload` stays valid as long as `hold` is kept (and unchanged, but for what a link in memory lends
// from arenas: that only until the link dies); if hold.unique(), its bytes may be changed.
struct Frame {
  FrameHeader header;
  std::span<std::byte> payload;
  BufferRef hold;
};

struct LinkStats {
  std::uint64_t bytes_sent = 0;      // on the wire: preamble, header and payload
  std::uint64_t bytes_received = 0;
  std::uint64_t frames_sent = 0;
  std::uint64_t frames_received = 0;
};

class Link;

class LinkHandler {
 public:
  virtual ~LinkHandler() = default;
  // The frame has passed the transport's checks (bounds, CRC); its meaning is unchecked. `frame` may be moved from.
  virtual void OnFrame(Link& link, Frame& frame) = 0;
  // The link is dead and calls back no more; every Send's release has run or runs before this returns. Not called
  // after the owner's own Close() or destruction. The handler may destroy the link from here.
  virtual void OnClosed(Link& link, const Status& why) = 0;
};

class Link {
 public:
  // Destruction closes. Releases of frames not yet written run before the destructor returns.
  virtual ~Link() = default;

  // Queues a frame. `payload` must stay unchanged until `on_release` runs, which happens exactly once: after the last
  // byte was handed to the system (in memory: when the receiver has let go of it), or when the link dies. Frames arrive
  // in the order of Send.
  // Errors (on_release has then run): kUnavailable (closed or closing), kInvalidArgument (payload beyond
  // kMaxPayloadBytes, or more frames queued than LinkOptions::max_queued_frames).
  virtual Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) = 0;

  // Stops receiving and sending now. Frames not yet written are dropped (their releases run). No callback follows.
  virtual void Close() = 0;

  // Flow control towards the sender: while paused no further frame is delivered; the transport's own back-pressure
  // reaches the peer. Frames already taken from the system may still be delivered once.
  virtual void PauseReceive(bool paused) = 0;

  // Its frames use no NIC: what is on its way needs no limit but the receivers' credit.
  virtual bool in_memory() const { return false; }
  virtual const LinkIdentity& peer() const = 0;
  virtual std::string Describe() const = 0;  // "tcp 10.0.0.1:4711 -> 10.0.0.2:7071 (server 0)"
  virtual std::uint64_t queued_bytes() const = 0;
  virtual const LinkStats& stats() const = 0;

  LinkHandler* handler = nullptr;  // set before the loop next runs; may be changed between callbacks
  void* context = nullptr;         // free for the handler
};

struct LinkOptions {
  std::shared_ptr<RateLimiter> limiter;  // null = unpaced; `control` links are never paced; not for shm
  bool payload_crc = true;
  std::uint32_t max_queued_frames = 65536;
  std::uint64_t max_payload_bytes = kMaxPayloadBytes;
  std::uint32_t socket_buffer_bytes = 0;  // 0 = the system's choice
  std::uint32_t max_pending_peers = 64;   // accepted, hello not yet seen
  Nanos hello_timeout = std::chrono::seconds(5);
  Nanos connect_timeout = std::chrono::seconds(10);  // in all, over every resolved address and retries; probes: 1 s
  Nanos welcome_timeout{0};  // for the welcome of a peer that was reached; not less than what is left of connect_timeout
};

// Decides about incoming links.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  // A hello arrived. Not ok: the peer is told kind and text, then the connection is closed.
  virtual Status OnHello(const LinkIdentity& peer) = 0;
  // The link is up; set link->handler here. Called right after an accepted OnHello.
  virtual void OnAccepted(std::unique_ptr<Link> link) = 0;
  // Bad bytes from a peer, or none in time; `why` names it. The connection is gone already.
  virtual void OnRejected(const Status& why) { (void)why; }
};

class Transport {
 public:
  using ConnectDone = std::function<void(Result<std::unique_ptr<Link>>)>;

  virtual ~Transport() = default;  // closes every link and listener it made that is still open
  virtual std::string_view name() const = 0;

  // Binds exactly `endpoint` ("tcp://127.0.0.1:0", port 0 = any free one) and returns the real one with the port.
  // `self` is told to peers in the welcome. Errors: kUnavailable naming address, operation and errno text;
  // kInvalidArgument for an address that does not parse.
  virtual Result<std::string> Listen(std::string_view endpoint, const LinkIdentity& self, Acceptor* acceptor) = 0;

  // Dials, says hello as `self`, waits for the welcome. `done` runs exactly once, later, on the loop: a link whose
  // peer() is what the welcome said, or an error that lists every resolved address with its errno text. A refused
  // connection is retried until options.connect_timeout (the peer may still be starting). A welcome that refuses gives
  // the refuser's kind and text at once. If the transport is destroyed first, `done` never runs.
  virtual void Connect(std::string_view endpoint, const LinkIdentity& self, ConnectDone done) = 0;
};

// The transport called `name` from transports.inc. Errors: kInvalidArgument with the list of names.
// `pool` gives the receive buffers and must outlive the transport, as must `loop`.
Result<std::unique_ptr<Transport>> MakeTransport(std::string_view name, EventLoop* loop, BufferPool* pool,
                                                 const LinkOptions& options);

// Splits "tcp://host:port" into transport name and the rest. Errors: kInvalidArgument.
struct EndpointParts {
  std::string scheme, host, port;  // host without brackets; inproc: host = name, port empty
};
Result<EndpointParts> ParseEndpoint(std::string_view endpoint);

}  // namespace tally
