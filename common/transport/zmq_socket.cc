#include "common/transport/zmq_socket.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <random>

#include "common/check.h"
#include "common/loop_asio.h"
#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "common/transport/sockets.h"

namespace tally {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kLingerMs = 1000;
// Messages that wait on a peer's connection before ZeroMQ stops reading it; nothing is dropped there.
constexpr int kReceiveHighWater = 64;
// The time-out must outlast a pause of this side: while nothing is received no answer to a heartbeat is seen either.
constexpr int kHeartbeatMs = 10'000;
constexpr int kHeartbeatTimeoutMs = 60'000;

// A new connection is a new link, with a hello of its own, so a DEALER must not connect again. -1 would say so, but then
// ZeroMQ drops with the connection what came over it and was not yet read. Up to twice this long is an int.
constexpr int kNeverMs = 1'000'000'000;

constexpr std::uint64_t kTurnBytes = std::uint64_t{4} << 20;  // then other links have their turn
constexpr std::size_t kTurnFrames = 256;
constexpr std::uint64_t kInFlightBytes = std::uint64_t{8} << 20;
constexpr std::size_t kInFlightFrames = 1024;
constexpr std::uint64_t kHeldBytes = std::uint64_t{8} << 20;
constexpr std::size_t kReservedAhead = 2;  // paced frames: a late timer then costs no rate
constexpr std::size_t kMaxFenced = 4096;

constexpr Nanos kCloseWait = milliseconds(20);   // for a healthy peer to take what ZeroMQ holds already
constexpr Nanos kLetGoLimit = seconds(10);       // for ZeroMQ to drop a dead connection's messages
constexpr Nanos kLastFramesPause = milliseconds(5);
constexpr int kLastFramesRounds = 20;
constexpr int kLastFramesPatience = 4000;  // pauses in all: 20 s for frames that wait for pacing or a paused receiver

template <typename T>
void Set(void* socket, int option, T value) {
  TALLY_CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0, zmq_strerror(errno));
}

int WatchedDescriptor(void* socket) {
  int descriptor = -1;
  std::size_t bytes = sizeof descriptor;
  TALLY_CHECK(zmq_getsockopt(socket, ZMQ_FD, &descriptor, &bytes) == 0, zmq_strerror(errno));
  return descriptor;
}

// Fits a std::string without memory of its own. The first byte must not be zero.
std::string RandomRoutingId() {
  std::random_device random;
  std::string id = "T";
  while (id.size() < 15) id.push_back(static_cast<char>(random() & 0xFF));
  return id;
}

std::uint64_t MaxPayload(const LinkOptions& options) { return std::min(options.max_payload_bytes, kMaxPayloadBytes); }

}  // namespace

// ---- socket ----

ZmqSocket::ZmqSocket(ZmqShared* shared, int type, Owner* owner)
    : shared_(shared),
      type_(type),
      owner_(owner),
      socket_(zmq_socket(shared->context, type)),
      watch_(shared->loop->impl().io),
      monitor_watch_(shared->loop->impl().io) {
  TALLY_CHECK(socket_ != nullptr, zmq_strerror(errno));
  const LinkOptions& options = shared->options;
  Set(socket_, ZMQ_LINGER, kLingerMs);
  Set(socket_, ZMQ_SNDHWM, 0);  // each link bounds what it hands over
  Set(socket_, ZMQ_RCVHWM, kReceiveHighWater);
  const std::uint64_t largest_part = std::max<std::uint64_t>(MaxPayload(options), kMaxHeaderBytes);
  Set(socket_, ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(largest_part));
  Set(socket_, ZMQ_HANDSHAKE_IVL,
      static_cast<int>(std::chrono::duration_cast<milliseconds>(options.hello_timeout).count()));
  Set(socket_, ZMQ_HEARTBEAT_IVL, kHeartbeatMs);
  Set(socket_, ZMQ_HEARTBEAT_TIMEOUT, kHeartbeatTimeoutMs);
  Set(socket_, ZMQ_TCP_MAXRT, kHeartbeatTimeoutMs);
  Set(socket_, ZMQ_TCP_KEEPALIVE, 1);
  if (options.socket_buffer_bytes > 0) {
    Set(socket_, ZMQ_SNDBUF, static_cast<int>(options.socket_buffer_bytes));
    Set(socket_, ZMQ_RCVBUF, static_cast<int>(options.socket_buffer_bytes));
  }
  if (router()) {
    Set(socket_, ZMQ_ROUTER_MANDATORY, 1);
    Set(socket_, ZMQ_ROUTER_HANDOVER, 0);
  } else {
    const std::string id = RandomRoutingId();
    TALLY_CHECK(zmq_setsockopt(socket_, ZMQ_ROUTING_ID, id.data(), id.size()) == 0, zmq_strerror(errno));
    Set(socket_, ZMQ_RECONNECT_IVL, kNeverMs);
  }
  // A ROUTER says nothing about a peer's end, and a DEALER's silence looks the same: the monitor does.
  // ZeroMQ gives its name back some time after the socket has closed.
  const std::string at = "inproc://monitor-" + std::to_string(shared->next_monitor++);
  TALLY_CHECK(zmq_socket_monitor(socket_, at.c_str(),
                                 ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) == 0,
              zmq_strerror(errno));
  monitor_ = zmq_socket(shared->context, ZMQ_PAIR);
  TALLY_CHECK(monitor_ != nullptr, zmq_strerror(errno));
  Set(monitor_, ZMQ_LINGER, 0);
  TALLY_CHECK(zmq_connect(monitor_, at.c_str()) == 0, zmq_strerror(errno));
  watch_.assign(WatchedDescriptor(socket_));
  monitor_watch_.assign(WatchedDescriptor(monitor_));
}

ZmqSocket::~ZmqSocket() { TALLY_CHECK(closed(), "a ZeroMQ socket was not closed"); }

Status ZmqSocket::Bind(UniqueFd listening, const std::string& address) {
  Set(socket_, ZMQ_USE_FD, listening.get());
  if (zmq_bind(socket_, ("tcp://" + address).c_str()) != 0) {
    return Unavailable("listen on " + address + ": " + zmq_strerror(errno));
  }
  (void)listening.Release();
  Start();
  return Status::Ok();
}

Status ZmqSocket::Connect(const std::string& address) {
  Set(socket_, ZMQ_IPV6, address.starts_with('[') ? 1 : 0);
  if (zmq_connect(socket_, ("tcp://" + address).c_str()) != 0) {
    return Unavailable("connect to " + address + ": " + zmq_strerror(errno));
  }
  Start();
  return Status::Ok();
}

// Reads both sockets once before it waits: making them may have taken the edge of what is there.
void ZmqSocket::Start() {
  ScheduleTurn();
  boost::asio::post(shared_->loop->impl().io, [self = shared_from_this()] {
    if (!self->closed()) self->OnMonitor();
  });
}

std::unique_ptr<ZmqLink> ZmqSocket::MakeLink(const std::string& routing_id, const LinkIdentity& peer, int descriptor,
                                             bool paced) {
  auto link = std::make_unique<ZmqLink>(shared_from_this(), routing_id, peer, descriptor, paced);
  links_[routing_id] = link.get();
  if (descriptor >= 0) by_descriptor_[descriptor] = routing_id;
  return link;
}

void ZmqSocket::Arm(Watch& watch, bool* armed, void (ZmqSocket::*handle)()) {
  if (closed() || std::exchange(*armed, true)) return;
  watch.async_wait(Watch::wait_read,
                   HandlerWithMemory(&watch == &watch_ ? watch_memory_ : monitor_memory_,
                                     [self = shared_from_this(), armed, handle](const boost::system::error_code& error) {
                                       *armed = false;
                                       if (!error && !self->closed()) (self.get()->*handle)();
                                     }));
}

// ---- receiving ----

// The descriptor is edge-triggered, and a send may take its edge: a turn follows every wake-up and every send.
void ZmqSocket::ScheduleTurn() {
  if (std::exchange(turn_posted_, true)) return;
  boost::asio::post(shared_->loop->impl().io, HandlerWithMemory(turn_memory_, [self = shared_from_this()] {
                      self->turn_posted_ = false;
                      if (!self->closed()) self->Turn();
                    }));
}

int ZmqSocket::Events() {
  int events = 0;
  std::size_t bytes = sizeof events;
  return zmq_getsockopt(socket_, ZMQ_EVENTS, &events, &bytes) == 0 ? events : 0;
}

bool ZmqSocket::MayReceive() {
  if (read_timer_ != 0 || held_bytes_ > kHeldBytes) return false;
  return router() || links_.empty() || !links_.begin()->second->paused_;
}

void ZmqSocket::Turn() {
  const auto self = shared_from_this();
  std::uint64_t bytes = 0;
  std::size_t frames = 0;
  while (!closed() && MayReceive()) {
    Arrived arrived;
    if (!backlog_.empty()) {
      arrived = std::move(backlog_.front());
      backlog_.pop_front();
    } else if (!Receive(&arrived)) {
      break;  // this has processed ZeroMQ's commands: whatever comes later wakes us
    }
    bytes += arrived.head.bytes().size() + arrived.payload.bytes().size();
    Dispatch(arrived);
    if (bytes >= kTurnBytes || ++frames >= kTurnFrames) {
      ScheduleTurn();
      return;
    }
  }
  if (closed()) return;
  if (!MayReceive()) (void)Events();
  Arm(watch_, &watch_armed_, &ZmqSocket::Turn);
}

bool ZmqSocket::Receive(Arrived* arrived) {
  bool more = true;
  if (router()) {
    if (!arrived->head.Receive(socket_)) return false;
    arrived->routing_id = arrived->head.text();
    more = arrived->head.more();
  }
  if (more && !arrived->head.Receive(socket_)) return false;
  arrived->well_formed = more;
  more = more && arrived->head.more();
  if (more) {
    if (!arrived->payload.Receive(socket_)) return false;
    more = arrived->payload.more();
  }
  for (arrived->well_formed = arrived->well_formed && !more; more;) {
    ZmqPart surplus;
    if (!surplus.Receive(socket_)) return false;
    more = surplus.more();
  }
  return true;
}

void ZmqSocket::Dispatch(Arrived& arrived) {
  if (!fenced_.empty() && fenced_.contains(arrived.routing_id)) return;
  const auto found = links_.find(arrived.routing_id);
  if (found != links_.end()) {
    DispatchToLink(*found->second, arrived);
  } else {
    DispatchFromStranger(arrived);
  }
}

Status ZmqSocket::ReadFrame(Arrived& arrived, std::size_t max_header, std::uint64_t max_payload, FrameHeader* header) {
  const std::span<std::byte> payload = arrived.payload.bytes();
  if (!arrived.well_formed) return Corrupt("a message that is not header and payload");
  if (arrived.head.bytes().size() > max_header || payload.size() > max_payload) {
    return Corrupt("a message of " + std::to_string(arrived.head.bytes().size()) + " + " +
                   std::to_string(payload.size()) + " bytes");
  }
  TALLY_RETURN_IF_ERROR(DecodeHeader(arrived.head.bytes(), header));
  if (header->payload_bytes != payload.size()) {
    return Corrupt("a payload of " + std::to_string(payload.size()) + " bytes, the header says " +
                   std::to_string(header->payload_bytes));
  }
  if (header->has_crc && Crc32c(payload) != header->payload_crc) {
    return Corrupt("CRC32C of the payload of " + std::to_string(payload.size()) + " bytes");
  }
  return Status::Ok();
}

void ZmqSocket::DispatchToLink(ZmqLink& link, Arrived& arrived) {
  Frame& frame = arriving_;
  const Status status = ReadFrame(arrived, kMaxHeaderBytes, MaxPayload(shared_->options), &frame.header);
  if (!status.ok()) return Fail(arrived.routing_id, status);
  const std::uint64_t bytes = arrived.head.bytes().size() + arrived.payload.bytes().size();
  link.stats_.bytes_received += bytes;
  ++link.stats_.frames_received;
  if (frame.header.kind == FrameKind::kHello) return Fail(arrived.routing_id, Corrupt("a second hello"));
  if (frame.header.kind == FrameKind::kWelcome) {
    link.gone_ = true;
    return Fail(arrived.routing_id, PeerLost(DecodeRefusal(arrived.payload.bytes()).text()));
  }
  if (link.paced_) {
    const TimePoint now = shared_->loop->Now();
    const Nanos wait = shared_->options.limiter->Reserve(RateLimiter::Direction::kReceive, bytes, now);
    if (wait > Nanos::zero() && read_timer_ == 0) {
      read_timer_ = shared_->loop->After(wait, [self = shared_from_this()] {
        self->read_timer_ = 0;
        self->ScheduleTurn();
      });
    }
  }
  frame.payload = {};
  if (frame.header.payload_bytes > 0) {
    frame.hold = shared_->parts.Hold(std::move(arrived.payload));
    frame.payload = frame.hold.bytes();
  }
  if (link.paused_ || !link.held_.empty()) {
    link.held_bytes_ += frame.payload.size();
    held_bytes_ += frame.payload.size();
    link.held_.push_back(std::move(frame));
  } else {
    Deliver(link, frame);
    arriving_.hold.Reset();
  }
}

void ZmqSocket::DispatchFromStranger(Arrived& arrived) {
  const int descriptor = arrived.head.descriptor();
  if (router()) {
    // Descriptors are reused: the end of the connection before must be known before this one has a link.
    OnMonitor();
    const auto stranger = strangers_.find(descriptor);
    if (stranger == strangers_.end()) return;  // turned away already, or the rest of a link that is gone
    shared_->loop->Cancel(stranger->second.timer);
    strangers_.erase(stranger);
  }
  FrameHeader header;
  const Status status = ReadFrame(arrived, kMaxHandshakeHeaderBytes, kMaxHandshakePayloadBytes, &header);
  if (status.ok()) return owner_->OnStranger(arrived.routing_id, descriptor, header, arrived.payload.bytes());
  const Status named = status.WithContext("from " + RemoteAddress(descriptor));
  Fence(arrived.routing_id, descriptor, Nanos::zero());
  owner_->OnRejected(named);
}

void ZmqSocket::Deliver(ZmqLink& link, Frame& frame) {
  TALLY_CHECK(link.handler != nullptr, "a link without a handler");
  link.handler->OnFrame(link, frame);
}

void ZmqSocket::DeliverHeld(const std::string& routing_id) {
  for (;;) {
    const auto found = links_.find(routing_id);
    if (closed() || found == links_.end()) return;
    ZmqLink& link = *found->second;
    if (link.paused_ || link.held_.empty()) break;
    Frame frame = std::move(link.held_.front());
    link.held_.pop_front();
    link.held_bytes_ -= frame.payload.size();
    held_bytes_ -= frame.payload.size();
    Deliver(link, frame);
  }
  ScheduleTurn();
}

// ---- connections ----

void ZmqSocket::OnMonitor() {
  const auto self = shared_from_this();
  for (;;) {
    ZmqPart event;
    if (closed() || !event.Receive(monitor_)) break;
    std::uint16_t kind = 0;
    std::uint32_t value = 0;
    if (event.bytes().size() == sizeof kind + sizeof value) {
      std::memcpy(&kind, event.bytes().data(), sizeof kind);
      std::memcpy(&value, event.bytes().data() + sizeof kind, sizeof value);
    }
    ZmqPart address;
    if (event.more()) (void)address.Receive(monitor_);
    const int descriptor = static_cast<int>(value);
    if (kind == ZMQ_EVENT_ACCEPTED) {
      OnAccepted(descriptor);
    } else if (kind == ZMQ_EVENT_DISCONNECTED) {
      OnGone(descriptor, "the connection ended");
    } else if (kind == ZMQ_EVENT_CLOSED && !router()) {
      OnGone(descriptor, "the connection was refused");
    }
  }
  Arm(monitor_watch_, &monitor_armed_, &ZmqSocket::OnMonitor);
}

void ZmqSocket::OnAccepted(int descriptor) {
  const std::string remote = RemoteAddress(descriptor);
  if (strangers_.size() >= shared_->options.max_pending_peers) {
    EndConnection(descriptor, remote);
    return owner_->OnRejected(Unavailable(remote + " came while " + std::to_string(strangers_.size()) +
                                          " connections had not said hello yet"));
  }
  const EventLoop::TimerId timer =
      shared_->loop->After(shared_->options.hello_timeout, [self = shared_from_this(), descriptor, remote] {
        self->strangers_.erase(descriptor);
        self->EndConnection(descriptor, remote);
        self->owner_->OnRejected(Timeout("no hello from " + remote + " in time"));
      });
  strangers_[descriptor] = {remote, timer};
}

void ZmqSocket::OnGone(int descriptor, const std::string& why) {
  if (!router() && links_.empty()) return owner_->OnDisconnected(why);
  if (const auto stranger = strangers_.find(descriptor); stranger != strangers_.end()) {
    shared_->loop->Cancel(stranger->second.timer);
    strangers_.erase(stranger);
  }
  std::erase_if(fenced_, [&](const auto& entry) { return entry.second == descriptor; });
  const auto found = by_descriptor_.find(descriptor);
  if (found == by_descriptor_.end()) return;
  if (const auto link = links_.find(found->second); link != links_.end()) GoneSoon(*link->second, kLastFramesRounds, kLastFramesPatience);
  by_descriptor_.erase(found);
}

// The link's connection is gone. What it brought before is still to be read.
void ZmqSocket::GoneSoon(ZmqLink& link, int rounds, int patience) {
  link.gone_ = true;
  shared_->loop->After(kLastFramesPause, [self = shared_from_this(), id = link.routing_id_, rounds, patience] {
    const auto found = self->links_.find(id);
    if (self->closed() || found == self->links_.end()) return;
    // Nothing may be read now, or what was read waits for its receiver: that is no sign that all is here.
    if (patience > 0 && (!self->MayReceive() || !found->second->held_.empty())) {
      return self->GoneSoon(*found->second, rounds, patience - 1);
    }
    if (rounds > 0 && (self->Events() & ZMQ_POLLIN) != 0) {
      self->ScheduleTurn();
      return self->GoneSoon(*found->second, rounds - 1, patience);
    }
    self->Fail(id, PeerLost("the connection ended"));
  });
}

// ZeroMQ cannot end one connection, the system can. The check keeps a reused descriptor safe.
void ZmqSocket::EndConnection(int descriptor, const std::string& remote_address) {
  if (descriptor >= 0 && remote_address != "?" && RemoteAddress(descriptor) == remote_address) {
    ::shutdown(descriptor, SHUT_RDWR);
  }
}

void ZmqSocket::Fence(const std::string& routing_id, int descriptor, Nanos after) {
  const std::string remote = descriptor >= 0 ? RemoteAddress(descriptor) : "?";
  if (closed() || remote == "?") return;
  if (fenced_.size() >= kMaxFenced) fenced_.erase(fenced_.begin());
  fenced_[routing_id] = descriptor;
  if (after == Nanos::zero()) return EndConnection(descriptor, remote);
  shared_->loop->After(after, [self = shared_from_this(), descriptor, remote] {
    if (!self->closed()) self->EndConnection(descriptor, remote);
  });
}

// ---- sending ----

Status ZmqSocket::SendHandshake(const std::string& routing_id, const FrameHeader& header,
                                std::vector<std::byte> payload) {
  OutFrame* const frame = shared_->out.Get();
  FrameHeader full = header;
  full.payload_bytes = payload.size();
  EncodeHeader(full, &frame->head);
  frame->own_payload = std::move(payload);
  frame->payload = frame->own_payload;
  const int error = shared_->out.Hand(socket_, routing_id, frame);
  ScheduleTurn();
  if (error == 0) return Status::Ok();
  shared_->out.Put(frame);
  return Unavailable(zmq_strerror(error));
}

void ZmqSocket::Enqueue(ZmqLink& link, const FrameHeader& header, std::span<const std::byte> payload,
                        Release on_release) {
  OutFrame* const frame = shared_->out.Get();
  header_out_ = header;
  header_out_.payload_bytes = payload.size();
  header_out_.has_crc = shared_->options.payload_crc && !payload.empty();
  header_out_.payload_crc = header_out_.has_crc ? Crc32c(payload) : 0;
  EncodeHeader(header_out_, &frame->head);
  frame->payload = payload;
  frame->release = on_release;
  frame->link = &link;
  link.queue_.PushBack() = frame;
  link.queued_bytes_ += frame->size();
  Pump(link);
}

void ZmqSocket::Pump(ZmqLink& link) {
  while (!link.queue_.empty() && !link.gone_ && MayHand(link)) {
    OutFrame* const frame = link.queue_.front();
    const int error = shared_->out.Hand(socket_, link.routing_id_, frame);
    ScheduleTurn();
    if (error != 0) return GoneSoon(link, kLastFramesRounds, kLastFramesPatience);
    link.queue_.PopFront();
    ++link.in_flight_;
    link.in_flight_bytes_ += frame->size();
  }
}

bool ZmqSocket::MayHand(ZmqLink& link) {
  OutFrame& first = *link.queue_.front();
  if (link.in_flight_ >= kInFlightFrames) return false;
  if (link.in_flight_ > 0 && link.in_flight_bytes_ + first.size() > kInFlightBytes) return false;
  if (!link.paced_) return true;
  const TimePoint now = shared_->loop->Now();
  for (std::size_t i = 0; i < std::min(kReservedAhead, link.queue_.size()); ++i) {
    OutFrame& frame = *link.queue_[i];
    if (frame.due != TimePoint{}) continue;
    frame.due = now + shared_->options.limiter->Reserve(RateLimiter::Direction::kSend, frame.size(), now);
  }
  if (first.due <= now) return true;
  if (link.pace_timer_ == 0) {
    link.pace_timer_ = shared_->loop->After(first.due - now, [self = shared_from_this(), id = link.routing_id_] {
      const auto found = self->links_.find(id);
      if (found == self->links_.end()) return;
      found->second->pace_timer_ = 0;
      self->Pump(*found->second);
    });
  }
  return false;
}

// ---- ends ----

void ZmqSocket::Fail(const std::string& routing_id, const Status& why) {
  const auto found = links_.find(routing_id);
  if (found == links_.end()) return;
  ZmqLink& link = *found->second;
  Detach(link, why);
  if (link.handler == nullptr) return;
  link.handler->OnClosed(link, why.WithContext(Name(link.peer_) + ": " + link.local_address_ + " <-> " +
                                               link.remote_address_));
}

// Takes the link off the socket and drops what ZeroMQ does not hold yet.
void ZmqSocket::Drop(ZmqLink& link) {
  shared_->loop->Cancel(link.pace_timer_);
  links_.erase(link.routing_id_);
  if (const auto found = by_descriptor_.find(link.descriptor_);
      found != by_descriptor_.end() && found->second == link.routing_id_) {
    by_descriptor_.erase(found);
  }
  for (; !link.queue_.empty(); link.queue_.PopFront()) {
    OutFrame* const frame = link.queue_.front();
    link.queued_bytes_ -= frame->size();
    shared_->Finish(&link, frame->release);
    shared_->out.Put(frame);
  }
  link.held_.clear();
  held_bytes_ -= std::exchange(link.held_bytes_, 0);
  link.socket_.reset();
}

// Waits until ZeroMQ holds none of the link's frames; false after `limit`. On a ROUTER ZeroMQ needs this thread to let
// a dead peer's messages go, which includes reading what came from it.
bool ZmqSocket::WaitForReturns(ZmqLink& link, Nanos limit) {
  const TimePoint end = shared_->loop->Now() + limit;
  while (link.in_flight_ > 0 && shared_->loop->Now() < end) {
    shared_->out.Wait(milliseconds(1));
    if (closed() || link.in_flight_ == 0 || !link.gone_) continue;
    for (Arrived arrived; Receive(&arrived); arrived = {}) backlog_.push_back(std::move(arrived));
    ScheduleTurn();
  }
  return link.in_flight_ == 0;
}

void ZmqSocket::Detach(ZmqLink& link, const Status& goodbye) {
  if (!router()) return Close();
  const auto self = shared_from_this();
  const std::string& id = link.routing_id_;
  const int descriptor = link.descriptor_;
  Drop(link);
  if (!link.gone_) {
    const bool taken = WaitForReturns(link, kCloseWait);
    if (taken) (void)SendHandshake(id, HandshakeHeader(FrameKind::kWelcome, {}), EncodeRefusal(goodbye));
    Fence(id, descriptor, taken ? Nanos(milliseconds(kLingerMs)) : Nanos::zero());
    link.gone_ = true;
  } else {
    EndConnection(descriptor, link.remote_address_);
  }
  TALLY_CHECK(WaitForReturns(link, kLetGoLimit), "ZeroMQ did not let go of an ended connection's frames");
  shared_->RunFinishedOf(&link);
}

void ZmqSocket::Close() {
  if (closed()) return;
  const auto self = shared_from_this();
  std::vector<ZmqLink*> links;
  for (const auto& [id, link] : links_) links.push_back(link);
  bool idle = true;
  for (ZmqLink* const link : links) {
    Drop(*link);
    idle = (link->gone_ ? link->in_flight_ == 0 : WaitForReturns(*link, idle ? kCloseWait : Nanos::zero())) && idle;
  }
  for (ZmqLink* const link : links) {
    if (idle && !link->gone_) {
      (void)SendHandshake(link->routing_id_, HandshakeHeader(FrameKind::kWelcome, {}),
                          EncodeRefusal(Unavailable("the peer closed the link")));
    }
  }
  CloseSocket(idle);
  for (ZmqLink* const link : links) {
    TALLY_CHECK(WaitForReturns(*link, kLetGoLimit), "ZeroMQ did not let go of a closed socket's frames");
  }
  for (ZmqLink* const link : links) shared_->RunFinishedOf(link);
}

void ZmqSocket::CloseSocket(bool linger) {
  shared_->loop->Cancel(read_timer_);
  for (const auto& [descriptor, stranger] : strangers_) shared_->loop->Cancel(stranger.timer);
  strangers_.clear();
  backlog_.clear();
  (void)watch_.release();  // ZeroMQ's own descriptors
  (void)monitor_watch_.release();
  zmq_socket_monitor(socket_, nullptr, 0);
  zmq_close(monitor_);
  if (!linger) Set(socket_, ZMQ_LINGER, 0);
  zmq_close(socket_);
  socket_ = nullptr;
}

}  // namespace tally
