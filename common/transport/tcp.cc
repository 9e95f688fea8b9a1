// Transport "tcp": links over TCP sockets, "tcp://host:port". Stream of preamble, header, payload (frame.h); opened by
// hello and welcome (handshake.h). Unframed bytes, wrong CRCs or lengths end the connection.
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <unordered_map>
#include <vector>

#include "common/check.h"
#include "common/loop_asio.h"
#include "common/transport/dialer.h"
#include "common/transport/handshake.h"
#include "common/transport/link.h"
#include "common/transport/tcp_connection.h"

namespace tally {
namespace {

constexpr Nanos kAcceptPause = std::chrono::milliseconds(100);

class TcpLink final : public Link, private TcpConnection::Owner {
 public:
  TcpLink(std::shared_ptr<TcpConnection> connection, const LinkIdentity& peer)
      : connection_(std::move(connection)), peer_(peer) {
    connection_->SetOwner(this);
  }
  ~TcpLink() override { connection_->Close(); }

  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) override {
    return connection_->Send(header, payload, on_release);
  }
  void Close() override { connection_->Close(); }
  void PauseReceive(bool paused) override { connection_->PauseReceive(paused); }
  const LinkIdentity& peer() const override { return peer_; }
  std::string Describe() const override {
    return "tcp " + connection_->local_address() + " -> " + connection_->remote_address() + " (" + Name(peer_) + ")";
  }
  std::uint64_t queued_bytes() const override { return connection_->queued_bytes(); }
  const LinkStats& stats() const override { return connection_->stats(); }

 private:
  void OnConnectionFrame(Frame& frame) override {
    TALLY_CHECK(handler != nullptr, "a link without a handler");
    handler->OnFrame(*this, frame);
  }
  void OnConnectionDead(const Status& why) override {
    if (handler != nullptr) handler->OnClosed(*this, why.WithContext(Name(peer_)));
  }

  const std::shared_ptr<TcpConnection> connection_;
  const LinkIdentity peer_;
};

// The connections of a transport, so that it can close those that outlive it in their owners' hands.
class Connections {
 public:
  ~Connections() {
    for (const auto& entry : all_) {
      if (const auto connection = entry.lock()) connection->Close();
    }
  }
  void Add(const std::shared_ptr<TcpConnection>& connection) {
    if (all_.size() >= 2 * alive_ + 16) {
      std::erase_if(all_, [](const auto& entry) { return entry.expired(); });
      alive_ = all_.size();
    }
    all_.push_back(connection);
  }

 private:
  std::vector<std::weak_ptr<TcpConnection>> all_;
  std::size_t alive_ = 0;  // at the last sweep
};

struct Context {
  EventLoop* loop;
  BufferPool* pool;
  LinkOptions options;
  Connections connections;
};

// One listening socket and the strangers that have not said hello yet.
class Listener {
 public:
  Listener(Context* context, UniqueFd socket, const LinkIdentity& self, Acceptor* acceptor)
      : context_(context),
        self_(self),
        acceptor_(acceptor),
        socket_(std::make_shared<Socket>(context->loop->impl().io, socket.Release())) {
    Arm();
  }
  ~Listener() {
    context_->loop->Cancel(timer_);
    boost::system::error_code ignored;
    socket_->close(ignored);
  }

 private:
  using Socket = boost::asio::posix::stream_descriptor;

  class Stranger final : private TcpConnection::Owner {
   public:
    Stranger(Listener* listener, UniqueFd socket)
        : listener_(listener),
          connection_(std::make_shared<TcpConnection>(listener->context_->loop, listener->context_->pool,
                                                      listener->context_->options, std::move(socket))) {
      connection_->Start(this);
      timer_ = loop().After(listener->context_->options.hello_timeout, [this] {
        listener_->Reject(this, Timeout("no hello in time"));
      });
    }
    ~Stranger() {
      loop().Cancel(timer_);
      if (connection_ != nullptr) connection_->Close();
    }

    // Told why before the connection goes.
    void Refuse(const Status& why) {
      const std::vector<std::byte> refusal = EncodeRefusal(why);
      (void)connection_->Send(HandshakeHeader(FrameKind::kWelcome, listener_->self_), refusal, {});
      connection_->Close();
    }
    const std::string& remote_address() const { return connection_->remote_address(); }
    std::shared_ptr<TcpConnection> Take() { return std::move(connection_); }

   private:
    EventLoop& loop() { return *listener_->context_->loop; }
    void OnConnectionFrame(Frame& frame) override { listener_->OnHello(this, frame.header); }
    void OnConnectionDead(const Status& why) override { listener_->Reject(this, why); }

    Listener* const listener_;
    std::shared_ptr<TcpConnection> connection_;
    EventLoop::TimerId timer_ = 0;
  };

  void Arm() {
    if (armed_ || timer_ != 0 || strangers_.size() >= context_->options.max_pending_peers) return;
    armed_ = true;
    socket_->async_wait(Socket::wait_read, [this, socket = socket_](const boost::system::error_code& error) {
      if (error) return;  // closed: `this` is gone
      armed_ = false;
      Accept();
    });
  }

  void Accept() {
    while (strangers_.size() < context_->options.max_pending_peers) {
      UniqueFd accepted(accept4(socket_->native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (accepted.get() < 0) {
        if (errno == EAGAIN) break;
        if (errno == EINTR || errno == ECONNABORTED) continue;
        // Out of descriptors or memory: the backlog waits.
        timer_ = context_->loop->After(kAcceptPause, [this] {
          timer_ = 0;
          Accept();
        });
        return;
      }
      TuneConnection(accepted.get());
      auto stranger = std::make_unique<Stranger>(this, std::move(accepted));
      Stranger* const key = stranger.get();
      strangers_.emplace(key, std::move(stranger));
    }
    Arm();
  }

  void OnHello(Stranger* stranger, const FrameHeader& header) {
    const Result<LinkIdentity> peer = ReadHandshake(header, FrameKind::kHello);
    if (!peer.ok()) return Reject(stranger, peer.status());
    if (const Status verdict = acceptor_->OnHello(*peer); !verdict.ok()) {
      stranger->Refuse(verdict);
      Forget(stranger);
      return;
    }
    std::shared_ptr<TcpConnection> connection = stranger->Take();
    Forget(stranger);
    auto link = std::make_unique<TcpLink>(connection, *peer);
    (void)connection->Send(HandshakeHeader(FrameKind::kWelcome, self_), {}, {});
    connection->Admit(!peer->control);
    context_->connections.Add(connection);
    acceptor_->OnAccepted(std::move(link));
  }

  void Reject(Stranger* stranger, const Status& why) {
    const Status named = why.WithContext("from " + stranger->remote_address());
    Forget(stranger);
    acceptor_->OnRejected(named);
  }

  void Forget(Stranger* stranger) {
    strangers_.erase(stranger);
    Arm();
  }

  Context* const context_;
  const LinkIdentity self_;
  Acceptor* const acceptor_;
  const std::shared_ptr<Socket> socket_;
  bool armed_ = false;
  EventLoop::TimerId timer_ = 0;
  std::unordered_map<Stranger*, std::unique_ptr<Stranger>> strangers_;
};

// A link in the making: dialled, hello said, welcome awaited.
class Opening final : private TcpConnection::Owner {
 public:
  using End = std::function<void(Opening*, Result<std::unique_ptr<Link>>)>;

  Opening(Context* context, const EndpointParts& endpoint, const LinkIdentity& self, End end)
      : context_(context),
        self_(self),
        end_(std::move(end)),
        dialer_(context->loop, endpoint, self, context->options,
                [this](Result<UniqueFd> socket) { OnDialled(std::move(socket)); }) {}
  ~Opening() {
    context_->loop->Cancel(timer_);
    if (connection_ != nullptr) connection_->Close();
  }

 private:
  void OnDialled(Result<UniqueFd> socket) {
    if (!socket.ok()) return end_(this, socket.status());
    connection_ = std::make_shared<TcpConnection>(context_->loop, context_->pool, context_->options,
                                                  std::move(socket).value());
    connection_->Start(this);
    (void)connection_->Send(HandshakeHeader(FrameKind::kHello, self_), {}, {});
    const Nanos left = dialer_.deadline() - context_->loop->Now();
    timer_ = context_->loop->After(std::max(left, Nanos::zero()), [this] { Retry("connected, but no welcome came"); });
  }

  void Retry(const std::string& why) {
    context_->loop->Cancel(timer_);
    connection_->Close();
    dialer_.Retry(why);
  }

  void OnConnectionFrame(Frame& frame) override {
    context_->loop->Cancel(timer_);
    const std::string where = Name(self_) + ": connect to " + dialer_.target();
    const Result<LinkIdentity> peer = ReadHandshake(frame.header, FrameKind::kWelcome);
    if (!peer.ok()) return end_(this, peer.status().WithContext(where));
    if (!frame.payload.empty()) {
      return end_(this, DecodeRefusal(frame.payload).WithContext(where + ": " + Name(*peer) + " refused"));
    }
    connection_->Admit(!self_.control);
    context_->connections.Add(connection_);
    std::unique_ptr<Link> link = std::make_unique<TcpLink>(std::move(connection_), *peer);
    end_(this, std::move(link));
  }

  void OnConnectionDead(const Status& why) override {
    // A listener that is just starting or ending closes without a word; wrong bytes do not get better.
    if (why.kind() == StatusKind::kPeerLost) return Retry(why.text());
    end_(this, why.WithContext(Name(self_) + ": connect to " + dialer_.target()));
  }

  Context* const context_;
  const LinkIdentity self_;
  const End end_;
  std::shared_ptr<TcpConnection> connection_;
  EventLoop::TimerId timer_ = 0;
  Dialer dialer_;
};

class TcpTransport final : public Transport {
 public:
  TcpTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) : context_{loop, pool, options, {}} {}

  std::string_view name() const override { return "tcp"; }

  Result<std::string> Listen(std::string_view endpoint, const LinkIdentity& self, Acceptor* acceptor) override {
    TALLY_ASSIGN_OR_RETURN(const EndpointParts parts, Parse(endpoint));
    TALLY_ASSIGN_OR_RETURN(UniqueFd socket, ListenTcp(parts, context_.options.socket_buffer_bytes));
    std::string bound = "tcp://" + LocalAddress(socket.get());
    listeners_.push_back(std::make_unique<Listener>(&context_, std::move(socket), self, acceptor));
    return bound;
  }

  void Connect(std::string_view endpoint, const LinkIdentity& self, ConnectDone done) override {
    Result<EndpointParts> parts = Parse(endpoint);
    if (!parts.ok()) {
      context_.loop->Post([alive = std::weak_ptr<int>(alive_), done = std::move(done), status = parts.status()] {
        if (!alive.expired()) done(status);
      });
      return;
    }
    auto opening = std::make_unique<Opening>(
        &context_, *parts, self, [this, done = std::move(done)](Opening* ended, Result<std::unique_ptr<Link>> result) {
          const ConnectDone call = done;  // this closure goes with `ended`, and the transport may go in the call
          openings_.erase(ended);
          call(std::move(result));
        });
    Opening* const key = opening.get();
    openings_.emplace(key, std::move(opening));
  }

 private:
  static Result<EndpointParts> Parse(std::string_view endpoint) {
    TALLY_ASSIGN_OR_RETURN(EndpointParts parts, ParseEndpoint(endpoint));
    if (parts.scheme != "tcp") return InvalidArgument("\"" + std::string(endpoint) + "\" is not a tcp:// endpoint");
    return parts;
  }

  Context context_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<Opening*, std::unique_ptr<Opening>> openings_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeTcpTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) {
  return std::unique_ptr<Transport>(std::make_unique<TcpTransport>(loop, pool, options));
}

}  // namespace tally
