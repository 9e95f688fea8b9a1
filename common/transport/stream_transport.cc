#include "common/transport/stream_transport.h"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/loop_asio.h"
#include "common/transport/dialer.h"
#include "common/transport/handshake.h"

namespace tally {

StreamLink::StreamLink(std::string_view scheme, std::shared_ptr<StreamConnection> connection, const LinkIdentity& peer)
    : connection_(std::move(connection)), scheme_(scheme), peer_(peer) {
  connection_->SetOwner(this);
}

std::string StreamLink::Describe() const {
  return std::string(scheme_) + " " + connection_->local_address() + " -> " + connection_->remote_address() + " (" +
         Name(peer_) + ")";
}

void StreamLink::OnConnectionFrame(Frame& frame) {
  TALLY_CHECK(handler != nullptr, "a link without a handler");
  handler->OnFrame(*this, frame);
}

void StreamLink::OnConnectionDead(const Status& why) {
  if (handler != nullptr) handler->OnClosed(*this, why.WithContext(Name(peer_)));
}

namespace {

constexpr Nanos kAcceptPause = std::chrono::milliseconds(100);

// The connections of a transport, so that it can close those that outlive it in their owners' hands.
class Connections {
 public:
  ~Connections() {
    for (const auto& entry : all_) {
      if (const auto connection = entry.lock()) connection->Close();
    }
  }
  void Add(const std::shared_ptr<StreamConnection>& connection) {
    if (all_.size() >= 2 * alive_ + 16) {
      std::erase_if(all_, [](const auto& entry) { return entry.expired(); });
      alive_ = all_.size();
    }
    all_.push_back(connection);
  }

 private:
  std::vector<std::weak_ptr<StreamConnection>> all_;
  std::size_t alive_ = 0;  // at the last sweep
};

struct Context {
  const StreamKind* kind;
  EventLoop* loop;
  BufferPool* pool;
  LinkOptions options;
  Connections connections;

  std::shared_ptr<StreamConnection> MakeConnection(UniqueFd socket) {
    auto connection = std::make_shared<StreamConnection>(loop, pool, options, std::move(socket));
    // From the start: what comes behind a welcome may be read with it.
    if (kind->by_reference) connection->TravelByReference();
    return connection;
  }
  std::unique_ptr<Link> MakeLink(const std::shared_ptr<StreamConnection>& connection, const LinkIdentity& peer,
                                 bool control) {
    connection->Admit(!control);
    connections.Add(connection);
    return kind->make_link({loop, pool, &options, connection, peer});
  }
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

  class Stranger final : private StreamConnection::Owner {
   public:
    Stranger(Listener* listener, UniqueFd socket)
        : listener_(listener),
          connection_(listener->context_->MakeConnection(std::move(socket))) {
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
    std::shared_ptr<StreamConnection> Take() { return std::move(connection_); }

   private:
    EventLoop& loop() { return *listener_->context_->loop; }
    void OnConnectionFrame(Frame& frame) override { listener_->OnHello(this, frame.header); }
    void OnConnectionDead(const Status& why) override { listener_->Reject(this, why); }

    Listener* const listener_;
    std::shared_ptr<StreamConnection> connection_;
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
      if (const Status fit = context_->kind->check_peer(accepted.get()); !fit.ok()) {
        acceptor_->OnRejected(fit);
        continue;
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
    std::shared_ptr<StreamConnection> connection = stranger->Take();
    Forget(stranger);
    (void)connection->Send(HandshakeHeader(FrameKind::kWelcome, self_), {}, {});
    acceptor_->OnAccepted(context_->MakeLink(connection, *peer, peer->control));
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
class Opening final : private StreamConnection::Owner {
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
    if (const Status fit = context_->kind->check_peer(socket.value().get()); !fit.ok()) {
      return end_(this, fit.WithContext(Name(self_) + ": connect to " + dialer_.target()));
    }
    connection_ = context_->MakeConnection(std::move(socket).value());
    connection_->Start(this);
    (void)connection_->Send(HandshakeHeader(FrameKind::kHello, self_), {}, {});
    const Nanos left = std::max(dialer_.deadline() - context_->loop->Now(), context_->options.welcome_timeout);
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
    end_(this, context_->MakeLink(std::exchange(connection_, nullptr), *peer, self_.control));
  }

  void OnConnectionDead(const Status& why) override {
    // A listener that is just starting or ending closes without a word; wrong bytes do not get better.
    if (why.kind() == StatusKind::kPeerLost) return Retry(why.text());
    end_(this, why.WithContext(Name(self_) + ": connect to " + dialer_.target()));
  }

  Context* const context_;
  const LinkIdentity self_;
  const End end_;
  std::shared_ptr<StreamConnection> connection_;
  EventLoop::TimerId timer_ = 0;
  Dialer dialer_;
};

class StreamTransport final : public Transport {
 public:
  StreamTransport(const StreamKind* kind, EventLoop* loop, BufferPool* pool, const LinkOptions& options)
      : context_{kind, loop, pool, options, {}} {}

  std::string_view name() const override { return context_.kind->scheme; }

  Result<std::string> Listen(std::string_view endpoint, const LinkIdentity& self, Acceptor* acceptor) override {
    TALLY_ASSIGN_OR_RETURN(const EndpointParts parts, Parse(endpoint));
    TALLY_ASSIGN_OR_RETURN(UniqueFd socket, context_.kind->listen(parts, context_.options.socket_buffer_bytes));
    std::string bound = std::string(name()) + "://" + LocalAddress(socket.get());
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
  Result<EndpointParts> Parse(std::string_view endpoint) const {
    TALLY_ASSIGN_OR_RETURN(EndpointParts parts, ParseEndpoint(endpoint));
    if (parts.scheme == name()) return parts;
    return InvalidArgument("\"" + std::string(endpoint) + "\" is not a " + std::string(name()) + ":// endpoint");
  }

  Context context_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unordered_map<Opening*, std::unique_ptr<Opening>> openings_;
  const std::shared_ptr<int> alive_ = std::make_shared<int>();
};

}  // namespace

std::unique_ptr<Transport> MakeStreamTransport(const StreamKind* kind, EventLoop* loop, BufferPool* pool,
                                               const LinkOptions& options) {
  return std::make_unique<StreamTransport>(kind, loop, pool, options);
}

}  // namespace tally
