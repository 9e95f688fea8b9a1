// ZmqShared: what all sockets of a transport share; ZmqLink: one peer on one socket.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>

#include "common/check.h"
#include "common/loop_asio.h"
#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "common/transport/sockets.h"
#include "common/transport/zmq_socket.h"

namespace tally {
namespace {

constexpr int kMaxSockets = 16384;

void* NewContext() {
  void* const context = zmq_ctx_new();
  TALLY_CHECK(context != nullptr, "zmq_ctx_new");
  zmq_ctx_set(context, ZMQ_IO_THREADS, 1);
  zmq_ctx_set(context, ZMQ_MAX_SOCKETS, kMaxSockets);
  // The first socket starts ZeroMQ's threads, which inherit their maker's cores: not later from the loop's thread, which
  // may be pinned to one (topology.pin).
  void* const socket = zmq_socket(context, ZMQ_PAIR);
  TALLY_CHECK(socket != nullptr, zmq_strerror(errno));
  zmq_close(socket);
  return context;
}

std::uint64_t MaxPayload(const LinkOptions& options) { return std::min(options.max_payload_bytes, kMaxPayloadBytes); }

}  // namespace

// ---- what the sockets share ----

ZmqShared::ZmqShared(EventLoop* the_loop, BufferPool* the_pool, const LinkOptions& the_options)
    : loop(the_loop),
      pool(the_pool),
      options(the_options),
      context(NewContext()),
      out(
          the_loop,
          [this](OutFrame* frame) {
            if (ZmqLink* const link = frame->link; link != nullptr) {
              --link->in_flight_;
              link->in_flight_bytes_ -= frame->size();
              link->queued_bytes_ -= frame->size();
              link->stats_.bytes_sent += frame->size();
              ++link->stats_.frames_sent;
              Finish(link, frame->release);
              if (link->socket_ != nullptr) link->socket_->Pump(*link);
            }
            out.Put(frame);
          },
          [this] { RunFinished(); }),
      parts(the_pool) {}

ZmqShared::~ZmqShared() { zmq_ctx_term(context); }

void ZmqShared::RunFinished() {
  while (!finished_.empty()) {
    const Release release = finished_.front().release;
    finished_.PopFront();
    release();
  }
}

void ZmqShared::RunFinishedOf(ZmqLink* link) {
  std::vector<Release> releases;
  for (std::size_t i = 0; i < finished_.size(); ++i) {
    if (finished_[i].link == link) releases.push_back(std::exchange(finished_[i], {}).release);
  }
  for (const Release& release : releases) release();
}

// ---- link ----

ZmqLink::ZmqLink(std::shared_ptr<ZmqSocket> socket, std::string routing_id, const LinkIdentity& peer, int descriptor,
                 bool paced)
    : socket_(std::move(socket)),
      routing_id_(std::move(routing_id)),
      peer_(peer),
      descriptor_(descriptor),
      local_address_(LocalAddress(descriptor)),
      remote_address_(RemoteAddress(descriptor)),
      paced_(paced && socket_->shared_->options.limiter != nullptr) {}

Status ZmqLink::Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) {
  Status refused;
  if (socket_ == nullptr || gone_) {
    refused = Unavailable("the link to " + remote_address_ + " is closed");
  } else if (payload.size() > MaxPayload(socket_->shared_->options)) {
    refused = InvalidArgument("a payload of " + std::to_string(payload.size()) + " bytes is beyond the limit");
  } else if (queue_.size() + in_flight_ >= socket_->shared_->options.max_queued_frames) {
    refused = InvalidArgument(std::to_string(queue_.size() + in_flight_) + " frames are queued to " + remote_address_ +
                              " already");
  }
  if (!refused.ok()) {
    on_release();
    return refused;
  }
  socket_->Enqueue(*this, header, payload, on_release);
  return Status::Ok();
}

void ZmqLink::Close() {
  if (socket_ == nullptr) return;
  const std::shared_ptr<ZmqSocket> socket = socket_;
  socket->Detach(*this, Unavailable("the peer closed the link"));
}

void ZmqLink::PauseReceive(bool paused) {
  if (std::exchange(paused_, paused) == paused || paused || socket_ == nullptr) return;
  boost::asio::post(socket_->shared_->loop->impl().io,
                    [socket = socket_, id = routing_id_] { socket->DeliverHeld(id); });
}

std::string ZmqLink::Describe() const {
  return "zmq " + local_address_ + " -> " + remote_address_ + " (" + Name(peer_) + ")";
}

}  // namespace tally
