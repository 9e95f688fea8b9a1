// One connection per arena and asker: request, offer with the descriptor, "taken" once it is mapped.
#include "common/transport/node_memory.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <sys/socket.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <list>
#include <utility>
#include <variant>
#include <vector>

#include "common/envelope.h"
#include "common/loop_asio.h"
#include "common/transport/unix_sockets.h"
#include "schemas/node.capnp.h"

namespace tally {
namespace {

constexpr std::size_t kMaxMessageBytes = 1024;
constexpr std::size_t kMaxConnections = 4096;
constexpr Nanos kRetry = std::chrono::milliseconds(5);

using Socket = boost::asio::posix::stream_descriptor;

struct Offered {
  std::uint64_t bytes = 0;
};
struct TakenMessage {};
using Message = std::variant<std::monostate, ArenaRequest, Offered, TakenMessage>;

Status Errno(const std::string& what) { return Unavailable("shared memory: " + what + ": " + std::strerror(errno)); }

std::string Bytes(const Message& message) {
  capnp::MallocMessageBuilder builder(64);
  auto root = builder.initRoot<schema::NodeMessage>();
  if (const auto* request = std::get_if<ArenaRequest>(&message)) {
    auto to = root.initRequest();
    to.setJobHash(request->job_hash);
    to.setEpoch(request->epoch.value);
    to.setGroup(request->group.value);
    to.setKind(static_cast<std::uint8_t>(request->kind));
    to.setPosition(request->position.value);
    to.setSharesResult(request->shares_result);
  } else if (const auto* offered = std::get_if<Offered>(&message)) {
    root.setOffer(offered->bytes);
  } else {
    root.setTaken();
  }
  const auto words = capnp::messageToFlatArray(builder);
  return {reinterpret_cast<const char*>(words.begin()), words.size() * sizeof(capnp::word)};
}

Status Read(schema::NodeMessage::Reader from, Message* to) {
  switch (from.which()) {
    case schema::NodeMessage::REQUEST: {
      const auto request = from.getRequest();
      if (request.getKind() > static_cast<std::uint8_t>(ArenaKind::kResults)) return Corrupt("arena kind");
      *to = ArenaRequest{request.getJobHash(), EpochId(request.getEpoch()), GroupId(request.getGroup()),
                         static_cast<ArenaKind>(request.getKind()), Position(request.getPosition()),
                         request.getSharesResult()};
      return Status::Ok();
    }
    case schema::NodeMessage::OFFER:
      *to = Offered{from.getOffer()};
      return Status::Ok();
    case schema::NodeMessage::TAKEN:
      *to = TakenMessage{};
      return Status::Ok();
  }
  return Unsupported("message of a newer version");
}

Status Send(int socket, const Message& message, int descriptor = -1) {
  std::string bytes = Bytes(message);
  iovec part{bytes.data(), bytes.size()};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  DescriptorRoom room;
  Attach(descriptor, &room, &header);
  if (sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return Errno("sendmsg");
  return Status::Ok();
}

// One message, and the descriptor that came with it.
Result<Message> Receive(int socket, UniqueFd* descriptor) {
  std::byte bytes[kMaxMessageBytes];
  iovec part{bytes, sizeof bytes};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  DescriptorRoom room;
  MakeRoom(&room, &header);
  const ssize_t received = recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (received < 0) return Errno("recvmsg");
  TALLY_ASSIGN_OR_RETURN(*descriptor, Attached(&header));
  if (received == 0) return Unavailable("shared memory: the peer has gone");
  if ((header.msg_flags & MSG_TRUNC) != 0) return Corrupt("shared memory: a message that is too long");
  Message message;
  TALLY_RETURN_IF_ERROR(ReadEnvelope<schema::NodeMessage>(
      std::span(bytes, static_cast<std::size_t>(received)), kMaxMessageBytes,
      [&](schema::NodeMessage::Reader from) { return Read(from, &message); }));
  return message;
}

bool SameArena(const ArenaRequest& a, const ArenaRequest& b) {
  return a.job_hash == b.job_hash && a.epoch == b.epoch && a.group == b.group && a.kind == b.kind;
}

}  // namespace

struct NodeMemory::Impl {
  struct OfferedArena {
    ArenaRequest what;
    const Arena* arena;
    Taken taken;
  };
  // A peer that asks.
  struct Asker {
    std::shared_ptr<Socket> socket;
    std::optional<ArenaRequest> request;
    const OfferedArena* answered = nullptr;
  };
  // A peer that is asked.
  struct Fetching {
    std::string name;
    ArenaRequest what;
    std::uint64_t bytes;
    bool writable;
    TimePoint deadline;
    Done done;
    std::shared_ptr<Socket> socket;
    EventLoop::TimerId timer = 0;
  };
  using Askers = std::list<Asker>;
  using Fetches = std::list<Fetching>;

  explicit Impl(EventLoop* l) : loop(l) {}
  ~Impl() {
    for (Fetching& fetching : fetches) loop->Cancel(fetching.timer);
    Close(listener);
    for (Asker& asker : askers) Close(asker.socket);
    for (Fetching& fetching : fetches) Close(fetching.socket);
  }

  // A handler of a socket that is closed is told so and touches nothing else.
  static void Close(const std::shared_ptr<Socket>& socket) {
    boost::system::error_code ignored;
    if (socket != nullptr) socket->close(ignored);
  }

  template <typename Ready>
  void WhenReadable(const std::shared_ptr<Socket>& socket, Ready ready) {
    socket->async_wait(Socket::wait_read, [socket, ready](const boost::system::error_code& error) {
      if (!error && socket->is_open()) ready();  // it may have been closed behind a handler that was due already
    });
  }

  void Accept() {
    WhenReadable(listener, [this] {
      while (true) {
        UniqueFd fd(accept4(listener->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (fd.get() < 0) break;
        if (askers.size() >= kMaxConnections || !CheckSameUser(fd.get()).ok()) continue;
        const auto asker = askers.insert(askers.end(), {std::make_shared<Socket>(loop->impl().io, fd.Release()), {}, {}});
        WhenReadable(asker->socket, [this, asker] { OnAsked(asker); });
      }
      Accept();
    });
  }

  void OnAsked(Askers::iterator asker) {
    UniqueFd ignored;
    const Result<Message> message = Receive(asker->socket->native_handle(), &ignored);
    if (asker->answered != nullptr) {
      const bool mapped = message.ok() && std::holds_alternative<TakenMessage>(*message);
      const Taken taken = asker->answered->taken;
      const ArenaRequest request = *asker->request;
      Drop(asker);
      taken(request, mapped);
      return;
    }
    const auto* request = message.ok() ? std::get_if<ArenaRequest>(&*message) : nullptr;
    if (request == nullptr || asker->request.has_value()) return Drop(asker);  // also: it gave up before it was answered
    asker->request = *request;
    for (const OfferedArena& offered : offers) {
      if (!SameArena(offered.what, *request)) continue;
      if (!Answer(asker, offered)) return;
      break;
    }
    WhenReadable(asker->socket, [this, asker] { OnAsked(asker); });  // "taken", or its end
  }

  // False: it has gone.
  bool Answer(Askers::iterator asker, const OfferedArena& offered) {
    asker->answered = &offered;
    if (Send(asker->socket->native_handle(), Offered{offered.arena->bytes().size()}, offered.arena->fd()).ok()) return true;
    const ArenaRequest request = *asker->request;
    Drop(asker);
    offered.taken(request, false);
    return false;
  }

  void Drop(Askers::iterator asker) {
    Close(asker->socket);
    askers.erase(asker);
  }

  // A peer may still be starting, or have more askers than its backlog holds.
  void Connect(Fetches::iterator fetching) {
    UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) return Finish(fetching, Errno("socket"));
    sockaddr_un address;
    const socklen_t length = UnixAddress(fetching->name, &address);
    if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      const Status failed = Errno("connecting to " + fetching->name);
      if (loop->Now() >= fetching->deadline) return Finish(fetching, failed);
      fetching->timer = loop->After(kRetry, [this, fetching] { Connect(fetching); });
      return;
    }
    Status status = CheckSameUser(fd.get());
    if (status.ok()) status = Send(fd.get(), fetching->what);
    if (!status.ok()) return Finish(fetching, status);
    fetching->socket = std::make_shared<Socket>(loop->impl().io, fd.Release());
    WhenReadable(fetching->socket, [this, fetching] { OnAnswer(fetching); });
    fetching->timer = loop->After(fetching->deadline - loop->Now(), [this, fetching] {
      Finish(fetching, Timeout("shared memory: no answer from " + fetching->name));
    });
  }

  void OnAnswer(Fetches::iterator fetching) {
    UniqueFd descriptor;
    const Result<Message> message = Receive(fetching->socket->native_handle(), &descriptor);
    if (!message.ok()) return Finish(fetching, message.status());
    if (!std::holds_alternative<Offered>(*message) || descriptor.get() < 0) {
      return Finish(fetching, Corrupt("shared memory: expected an offer with a descriptor"));
    }
    Result<Mapping> mapping = Mapping::Make(descriptor.Release(), fetching->bytes, fetching->writable);
    if (mapping.ok()) {
      if (const Status told = Send(fetching->socket->native_handle(), TakenMessage{}); !told.ok()) mapping = told;
    }
    Finish(fetching, std::move(mapping));
  }

  void Finish(Fetches::iterator fetching, Result<Mapping> result) {
    loop->Cancel(fetching->timer);
    Close(fetching->socket);
    const Done done = std::move(fetching->done);
    fetches.erase(fetching);
    done(std::move(result));
  }

  EventLoop* loop;
  std::shared_ptr<Socket> listener;
  std::list<OfferedArena> offers;
  Askers askers;
  Fetches fetches;
};

NodeMemory::NodeMemory(EventLoop* loop) : impl_(std::make_unique<Impl>(loop)) {}
NodeMemory::~NodeMemory() = default;

Result<std::string> NodeMemory::Listen() {
  const std::string name = RandomSocketName();
  TALLY_ASSIGN_OR_RETURN(UniqueFd fd, ListenUnix(name, SOCK_SEQPACKET));
  impl_->listener = std::make_shared<Socket>(impl_->loop->impl().io, fd.Release());
  impl_->Accept();
  return std::string(kNodeMemoryScheme) + name;
}

void NodeMemory::Offer(const ArenaRequest& what, const Arena* arena, Taken taken) {
  impl_->offers.push_back({what, arena, std::move(taken)});
  std::vector<Impl::Askers::iterator> waiting;
  for (auto asker = impl_->askers.begin(); asker != impl_->askers.end(); ++asker) {
    if (asker->request.has_value() && asker->answered == nullptr && SameArena(*asker->request, what)) {
      waiting.push_back(asker);
    }
  }
  for (const auto& asker : waiting) (void)impl_->Answer(asker, impl_->offers.back());
}

void NodeMemory::Fetch(std::string_view endpoint, const ArenaRequest& what, std::uint64_t bytes, bool writable,
                       Nanos deadline, Done done) {
  if (endpoint.starts_with(kNodeMemoryScheme)) endpoint.remove_prefix(kNodeMemoryScheme.size());
  const auto fetching = impl_->fetches.insert(
      impl_->fetches.end(),
      {std::string(endpoint), what, bytes, writable, impl_->loop->Now() + deadline, std::move(done), {}, 0});
  fetching->timer = impl_->loop->After(Nanos{0}, [this, fetching] { impl_->Connect(fetching); });
}

}  // namespace tally
