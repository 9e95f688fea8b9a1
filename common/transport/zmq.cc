// Transport "zmq": links over ZeroMQ's tcp, "zmq://host:port". A listener is a ROUTER, a dialler a DEALER with a random
// routing id. A message is a header part and, if not empty, a payload part; opened by hello and welcome (handshake.h),
// ended by a welcome that refuses. Wrong bytes fence the peer: its frames are discarded unparsed.
#include <memory>
#include <unordered_map>
#include <vector>

#include "common/transport/dialer.h"
#include "common/transport/handshake.h"
#include "common/transport/link.h"
#include "common/transport/zmq_socket.h"

namespace tally {
namespace {

constexpr Nanos kRefusalPause = std::chrono::seconds(1);  // for the refused peer to read why

class Listener final : public ZmqSocket::Owner {
 public:
  Listener(ZmqShared* shared, const LinkIdentity& self, Acceptor* acceptor)
      : self_(self), acceptor_(acceptor), socket_(std::make_shared<ZmqSocket>(shared, ZMQ_ROUTER, this)) {}
  ~Listener() { socket_->Close(); }

  Status Bind(UniqueFd listening, const std::string& address) { return socket_->Bind(std::move(listening), address); }

 private:
  void OnStranger(const std::string& routing_id, int descriptor, const FrameHeader& header,
                  std::span<const std::byte>) override {
    const Result<LinkIdentity> peer = ReadHandshake(header, FrameKind::kHello);
    const Status verdict = peer.ok() ? acceptor_->OnHello(*peer) : peer.status();
    const FrameHeader welcome = HandshakeHeader(FrameKind::kWelcome, self_);
    if (!verdict.ok()) {
      (void)socket_->SendHandshake(routing_id, welcome, EncodeRefusal(verdict));
      socket_->Fence(routing_id, descriptor, kRefusalPause);
      if (!peer.ok()) acceptor_->OnRejected(verdict);
      return;
    }
    std::unique_ptr<ZmqLink> link = socket_->MakeLink(routing_id, *peer, descriptor, !peer->control);
    (void)socket_->SendHandshake(routing_id, welcome, {});
    acceptor_->OnAccepted(std::move(link));
  }
  void OnRejected(const Status& why) override { acceptor_->OnRejected(why); }
  void OnDisconnected(const std::string&) override {}

  const LinkIdentity self_;
  Acceptor* const acceptor_;
  const std::shared_ptr<ZmqSocket> socket_;
};

// A link in the making: a plain connection finds the address that answers (and every other one's error), then a DEALER
// connects to it, says hello and awaits the welcome.
class Opening final : public ZmqSocket::Owner {
 public:
  using End = std::function<void(Opening*, Result<std::unique_ptr<Link>>)>;

  Opening(ZmqShared* shared, const EndpointParts& endpoint, const LinkIdentity& self, End end)
      : shared_(shared),
        self_(self),
        end_(std::move(end)),
        dialer_(shared->loop, endpoint, self, shared->options,
                [this](Result<UniqueFd> probe) { OnDialled(std::move(probe)); }) {}
  ~Opening() {
    shared_->loop->Cancel(timer_);
    if (socket_ != nullptr) socket_->Close();
  }

  // The socket of a link that is up, for the transport to close.
  std::weak_ptr<ZmqSocket> socket() const { return made_; }

 private:
  void OnDialled(Result<UniqueFd> probe) {
    if (!probe.ok()) return end_(this, probe.status());
    const std::string address = RemoteAddress(probe->get());
    probe = UniqueFd();
    socket_ = std::make_shared<ZmqSocket>(shared_, ZMQ_DEALER, this);
    Status status = socket_->Connect(address);
    if (status.ok()) status = socket_->SendHandshake("", HandshakeHeader(FrameKind::kHello, self_), {});
    if (!status.ok()) return Retry(status.text());
    const Nanos left = dialer_.deadline() - shared_->loop->Now();
    timer_ = shared_->loop->After(std::max(left, Nanos::zero()), [this] { Retry("connected, but no welcome came"); });
  }

  void Retry(const std::string& why) {
    shared_->loop->Cancel(timer_);
    socket_->Close();
    dialer_.Retry(why);
  }

  void OnStranger(const std::string& routing_id, int descriptor, const FrameHeader& header,
                  std::span<const std::byte> payload) override {
    shared_->loop->Cancel(timer_);
    const Result<LinkIdentity> peer = ReadHandshake(header, FrameKind::kWelcome);
    if (!peer.ok()) return end_(this, peer.status().WithContext(Where()));
    if (!payload.empty()) {
      return end_(this, DecodeRefusal(payload).WithContext(Where() + ": " + Name(*peer) + " refused"));
    }
    std::unique_ptr<Link> link = socket_->MakeLink(routing_id, *peer, descriptor, !self_.control);
    socket_->SetOwner(nullptr);
    made_ = socket_;
    socket_.reset();
    end_(this, std::move(link));
  }
  void OnRejected(const Status& why) override { end_(this, why.WithContext(Where())); }
  void OnDisconnected(const std::string& why) override { Retry(why); }

  std::string Where() const { return Name(self_) + ": connect to " + dialer_.target(); }

  ZmqShared* const shared_;
  const LinkIdentity self_;
  const End end_;
  std::shared_ptr<ZmqSocket> socket_;
  std::weak_ptr<ZmqSocket> made_;
  EventLoop::TimerId timer_ = 0;
  Dialer dialer_;
};

class ZmqTransport final : public Transport {
 public:
  ZmqTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) : shared_(loop, pool, options) {}
  ~ZmqTransport() override {
    openings_.clear();
    listeners_.clear();
    for (const auto& entry : dialled_) {
      if (const auto socket = entry.lock()) socket->Close();
    }
  }

  std::string_view name() const override { return "zmq"; }

  Result<std::string> Listen(std::string_view endpoint, const LinkIdentity& self, Acceptor* acceptor) override {
    TALLY_ASSIGN_OR_RETURN(const EndpointParts parts, Parse(endpoint));
    TALLY_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(parts, shared_.options.socket_buffer_bytes));
    const std::string address = LocalAddress(socket.get());
    auto listener = std::make_unique<Listener>(&shared_, self, acceptor);
    TALLY_RETURN_IF_ERROR(listener->Bind(std::move(socket), address));
    listeners_.push_back(std::move(listener));
    return "zmq://" + address;
  }

  void Connect(std::string_view endpoint, const LinkIdentity& self, ConnectDone done) override {
    Result<EndpointParts> parts = Parse(endpoint);
    if (!parts.ok()) {
      shared_.loop->Post([alive = std::weak_ptr<int>(alive_), done = std::move(done), status = parts.status()] {
        if (!alive.expired()) done(status);
      });
      return;
    }
    auto opening = std::make_unique<Opening>(
        &shared_, *parts, self, [this, done = std::move(done)](Opening* ended, Result<std::unique_ptr<Link>> result) {
          const ConnectDone call = done;  // this closure goes with `ended`, and the transport may go in the call
          std::erase_if(dialled_, [](const auto& entry) { return entry.expired(); });
          dialled_.push_back(ended->socket());
          openings_.erase(ended);
          call(std::move(result));
        });
    Opening* const key = opening.get();
    openings_.emplace(key, std::move(opening));
  }

 private:
  static Result<EndpointParts> Parse(std::string_view endpoint) {
    TALLY_ASSIGN_OR_RETURN(EndpointParts parts, ParseEndpoint(endpoint));
    if (parts.scheme != "zmq") return InvalidArgument("\"" + std::string(endpoint) + "\" is not a zmq:// endpoint");
    return parts;
  }

  ZmqShared shared_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<Opening*, std::unique_ptr<Opening>> openings_;
  std::vector<std::weak_ptr<ZmqSocket>> dialled_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeZmqTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) {
  return std::unique_ptr<Transport>(std::make_unique<ZmqTransport>(loop, pool, options));
}

}  // namespace tally
