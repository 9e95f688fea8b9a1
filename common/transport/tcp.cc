// Transport "tcp": links over TCP sockets, "tcp://host:port". Stream of preamble, header, payload (frame.h); opened by
// hello and welcome (handshake.h). Unframed bytes, wrong CRCs or lengths end the connection.
#include "common/transport/stream_transport.h"

namespace tally {
namespace {

constexpr StreamKind kTcp = {
    .scheme = "tcp",
    .by_reference = false,
    .listen = &ListenTcp,
    .check_peer = [](int) { return Status::Ok(); },
    .make_link = [](StreamParts parts) -> std::unique_ptr<Link> {
      return std::make_unique<StreamLink>("tcp", std::move(parts.connection), parts.peer);
    },
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeTcpTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) {
  return MakeStreamTransport(&kTcp, loop, pool, options);
}

}  // namespace tally
