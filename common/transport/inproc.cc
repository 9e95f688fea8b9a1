// Transport "inproc": links between event loops of one process, on one thread or several.
// A frame in a pool's block is passed by reference; other memory is copied once when it is handed over, so that its
// release runs on the sender's loop and never waits for a receiver (a lender may free its memory as soon as the link is
// dead). Headers travel encoded and are checked as those of any peer.
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "common/transport/link.h"
#include "common/transport/rate_limiter.h"

namespace tally {
namespace {

constexpr std::uint64_t kWindowBytes = std::uint64_t{16} << 20;  // handed over and not yet delivered, per direction
constexpr std::uint64_t kFrameCost = 1024;                       // what a frame without payload takes of the window
constexpr Nanos kRetryEvery = std::chrono::milliseconds(10);

// The way to another loop, as long as its transport lives.
class Mailbox {
 public:
  explicit Mailbox(EventLoop* loop) : loop_(loop) {}

  void Post(EventLoop::Task task) {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) loop_->Post(std::move(task));
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  EventLoop* loop_;
};

struct Parcel {
  std::vector<std::byte> header;
  std::span<std::byte> payload;
  BufferRef hold;

  std::uint64_t bytes() const { return kPreambleBytes + header.size() + payload.size(); }
  std::uint64_t cost() const { return bytes() + kFrameCost; }
};

class InprocLink;

// One end of a connection. Its letter-box may be filled from any thread; `link` belongs to the end's own loop.
// An end that goes in any way (also with a task that never ran) tells its peer.
class End : public std::enable_shared_from_this<End> {
 public:
  struct Letters {
    std::vector<Parcel> parcels;
    std::uint64_t credit = 0;
    Status gone;  // why no more will come
  };

  explicit End(std::shared_ptr<Mailbox> home) : home_(std::move(home)) {}
  ~End() { TellPeer(PeerLost("the peer's end of the connection is gone")); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  static void Join(const std::shared_ptr<End>& a, const std::shared_ptr<End>& b) {
    a->peer_ = b;
    b->peer_ = a;
  }

  void Put(Parcel parcel) {
    Change([&](Letters& letters) { letters.parcels.push_back(std::move(parcel)); });
  }
  void PutCredit(std::uint64_t bytes) {
    Change([&](Letters& letters) { letters.credit += bytes; });
  }
  void PutGone(const Status& why) {
    Change([&](Letters& letters) {
      if (letters.gone.ok()) letters.gone = why;
    });
  }
  // Has the link look at its letters and queues soon.
  void Wake() {
    Change([](Letters&) {});
  }

  Letters Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(letters_, {});
  }

  void TellPeer(const Status& why) {
    if (const auto peer = peer_.lock()) peer->PutGone(why);
  }
  std::shared_ptr<End> peer() const { return peer_.lock(); }

  InprocLink* link = nullptr;

 private:
  template <typename F>
  void Change(F change) {
    {
      const std::lock_guard lock(mutex_);
      change(letters_);
      if (std::exchange(woken_, true)) return;
    }
    home_->Post([self = shared_from_this()] { self->OnWake(); });
  }
  void OnWake();

  const std::shared_ptr<Mailbox> home_;
  std::weak_ptr<End> peer_;  // set before the other thread knows of this end
  std::mutex mutex_;
  Letters letters_;
  bool woken_ = false;
};

// What the links of one transport share; outlives the transport if a closed link does.
struct Shop {
  EventLoop* loop;
  BufferPool* pool;
  LinkOptions options;
  std::shared_ptr<Mailbox> mailbox;
  std::unordered_set<InprocLink*> open;
};

class InprocLink final : public Link {
 public:
  InprocLink(std::shared_ptr<Shop> shop, std::shared_ptr<End> end, const LinkIdentity& peer, std::string_view name,
             bool control)
      : shop_(std::move(shop)), end_(std::move(end)), peer_(peer), name_(name),
        limiter_(control ? nullptr : shop_->options.limiter) {
    end_->link = this;
    shop_->open.insert(this);
    end_->Wake();
  }
  ~InprocLink() override {
    Close();
    end_->link = nullptr;
  }

  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) override {
    const auto refuse = [&](Status why) {
      on_release();
      return why;
    };
    if (closed_) return refuse(Unavailable(Describe() + ": the link is closed"));
    if (payload.size() > kMaxPayloadBytes) {
      return refuse(InvalidArgument(Describe() + ": a payload of " + std::to_string(payload.size()) +
                                    " bytes, at most " + std::to_string(kMaxPayloadBytes)));
    }
    if (queue_.size() >= shop_->options.max_queued_frames) {
      return refuse(InvalidArgument(Describe() + ": " + std::to_string(queue_.size()) + " frames are queued already"));
    }
    FrameHeader stamped = header;
    stamped.payload_bytes = payload.size();
    stamped.payload_crc = 0;
    stamped.has_crc = false;  // memory of one process
    Outgoing& outgoing = queue_.emplace_back();
    EncodeHeader(stamped, &outgoing.header);
    outgoing.payload = payload;
    outgoing.on_release = on_release;
    queued_bytes_ += outgoing.bytes();
    end_->Wake();
    return Status::Ok();
  }

  void Close() override {
    if (std::exchange(closed_, true)) return;
    shop_->open.erase(this);
    shop_->loop->Cancel(send_timer_);
    shop_->loop->Cancel(receive_timer_);
    end_->TellPeer(PeerLost("the peer closed the connection"));
    arrived_.clear();
    end_->Take();
    queued_bytes_ = 0;
    // Last, and from here: a release may destroy this link.
    for (const Outgoing& outgoing : std::exchange(queue_, {})) outgoing.on_release();
  }

  void PauseReceive(bool paused) override {
    paused_ = paused;
    if (!paused && !closed_) end_->Wake();
  }

  const LinkIdentity& peer() const override { return peer_; }
  std::string Describe() const override {
    return "inproc " + name_ + (peer_.role == Role::kServer ? " (server " : " (worker ") + std::to_string(peer_.index) +
           ")";
  }
  std::uint64_t queued_bytes() const override { return queued_bytes_; }
  const LinkStats& stats() const override { return stats_; }

  // The loop's turn for this link: letters in, frames out. The link may be gone afterwards.
  void OnWake() {
    if (closed_) return;
    const std::shared_ptr<End> end = end_;
    End::Letters letters = end->Take();
    for (Parcel& parcel : letters.parcels) arrived_.push_back(std::move(parcel));
    in_flight_ -= letters.credit;
    if (gone_.ok()) gone_ = std::move(letters.gone);
    HandOver(end);
    if (IsOpen(*end)) Deliver(end);
  }

 private:
  struct Outgoing {
    std::vector<std::byte> header;
    std::span<const std::byte> payload;
    Release on_release;

    std::uint64_t bytes() const { return kPreambleBytes + header.size() + payload.size(); }
  };

  // Callbacks may close or destroy the link: what a loop around one asks before it goes on.
  static bool IsOpen(const End& end) { return end.link != nullptr && !end.link->closed_; }

  // Gives queued frames to the peer as far as its window and the emulated NIC allow.
  void HandOver(const std::shared_ptr<End>& end) {
    const std::shared_ptr<End> peer = end->peer();
    while (IsOpen(*end) && peer != nullptr && !queue_.empty() && in_flight_ < kWindowBytes && send_timer_ == 0) {
      if (limiter_ != nullptr && !std::exchange(send_reserved_, true)) {
        const Nanos wait = Reserve(RateLimiter::Direction::kSend, queue_.front().bytes());
        if (wait > Nanos(0)) {
          send_timer_ = StartTimer(wait, &InprocLink::send_timer_);
          return;
        }
      }
      send_reserved_ = false;
      Outgoing outgoing = std::move(queue_.front());
      queue_.pop_front();
      queued_bytes_ -= outgoing.bytes();
      stats_.bytes_sent += outgoing.bytes();
      ++stats_.frames_sent;
      Parcel parcel = Pack(&outgoing);
      in_flight_ += parcel.cost();
      peer->Put(std::move(parcel));
      outgoing.on_release();
    }
  }

  // Leaves an empty Release where the reference itself went along.
  Parcel Pack(Outgoing* outgoing) {
    Parcel parcel;
    parcel.header = std::move(outgoing->header);
    const std::span<const std::byte> payload = outgoing->payload;
    if (payload.empty()) return parcel;
    BufferRef block = BufferRef::FromRelease(outgoing->on_release);
    if (block) outgoing->on_release = {};
    if (block && payload.data() >= block.data() && payload.data() + payload.size() <= block.data() + block.size()) {
      parcel.payload = block.bytes().subspan(static_cast<std::size_t>(payload.data() - block.data()), payload.size());
      parcel.hold = std::move(block);
    } else {
      parcel.hold = shop_->pool->Get(payload.size());
      parcel.payload = parcel.hold.bytes();
      std::memcpy(parcel.payload.data(), payload.data(), payload.size());
    }
    return parcel;
  }

  void Deliver(const std::shared_ptr<End>& end) {
    std::uint64_t consumed = 0;
    Status bad;
    while (IsOpen(*end) && !paused_ && !arrived_.empty() && receive_timer_ == 0) {
      if (limiter_ != nullptr && !std::exchange(receive_reserved_, true)) {
        const Nanos wait = Reserve(RateLimiter::Direction::kReceive, arrived_.front().bytes());
        if (wait > Nanos(0)) {
          receive_timer_ = StartTimer(wait, &InprocLink::receive_timer_);
          break;
        }
      }
      receive_reserved_ = false;
      Parcel parcel = std::move(arrived_.front());
      arrived_.pop_front();
      consumed += parcel.cost();
      Frame frame;
      bad = Check(parcel, &frame.header);
      if (!bad.ok()) break;
      stats_.bytes_received += parcel.bytes();
      ++stats_.frames_received;
      frame.payload = parcel.payload;
      frame.hold = std::move(parcel.hold);
      if (handler != nullptr) handler->OnFrame(*this, frame);
    }
    if (!IsOpen(*end)) return;
    if (!bad.ok()) return Die(end, bad);
    if (arrived_.empty() && !gone_.ok()) return Die(end, Status(gone_.kind(), Describe() + ": " + gone_.text()));
    if (const auto peer = end->peer(); consumed > 0 && peer != nullptr) peer->PutCredit(consumed);
  }

  Status Check(const Parcel& parcel, FrameHeader* header) const {
    TALLY_RETURN_IF_ERROR(DecodeHeader(parcel.header, header));
    if (parcel.payload.size() <= shop_->options.max_payload_bytes) return Status::Ok();
    return Corrupt(Describe() + ": a payload of " + std::to_string(parcel.payload.size()) + " bytes, at most " +
                   std::to_string(shop_->options.max_payload_bytes));
  }

  void Die(const std::shared_ptr<End>& end, const Status& why) {
    Close();
    if (end->link != nullptr && handler != nullptr) handler->OnClosed(*this, why);
  }

  Nanos Reserve(RateLimiter::Direction direction, std::uint64_t bytes) {
    return limiter_->Reserve(direction, bytes, shop_->loop->Now());
  }

  EventLoop::TimerId StartTimer(Nanos wait, EventLoop::TimerId InprocLink::*timer) {
    return shop_->loop->After(wait, [this, timer] {  // cancelled by Close
      this->*timer = 0;
      OnWake();
    });
  }

  const std::shared_ptr<Shop> shop_;
  const std::shared_ptr<End> end_;
  const LinkIdentity peer_;
  const std::string name_;
  const std::shared_ptr<RateLimiter> limiter_;
  std::deque<Outgoing> queue_;
  std::deque<Parcel> arrived_;
  std::uint64_t queued_bytes_ = 0;
  std::uint64_t in_flight_ = 0;
  EventLoop::TimerId send_timer_ = 0;  // 0: none runs
  EventLoop::TimerId receive_timer_ = 0;
  bool send_reserved_ = false;  // the first frame of the queue has its slot on the NIC
  bool receive_reserved_ = false;
  bool paused_ = false;
  bool closed_ = false;
  Status gone_;
  LinkStats stats_;
};

void End::OnWake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = false;
  }
  if (link != nullptr) link->OnWake();
}

struct Listener {
  std::shared_ptr<Shop> shop;
  LinkIdentity self;
  Acceptor* acceptor;  // null once the transport is gone; the transport's loop only
};

// The names of this process, as the kernel keeps its ports: transports of engines that know nothing of each other meet
// here, which is why there is one per process.
class Names {
 public:
  static std::shared_ptr<Names> OfProcess() {
    static const std::shared_ptr<Names> names = std::make_shared<Names>();
    return names;
  }

  bool Add(const std::string& name, std::weak_ptr<Listener> listener) {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<Listener>& place = listeners_[name];
    if (!place.expired()) return false;
    place = std::move(listener);
    return true;
  }
  void Remove(const std::string& name) {
    const std::lock_guard lock(mutex_);
    listeners_.erase(name);
  }
  std::shared_ptr<Listener> Find(const std::string& name) {
    const std::lock_guard lock(mutex_);
    const auto found = listeners_.find(name);
    return found == listeners_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<Listener>> listeners_;
};

// One Connect until its `done` has run.
class Dial : public std::enable_shared_from_this<Dial> {
 public:
  Dial(std::shared_ptr<Shop> shop, std::shared_ptr<Names> names, std::string name, const LinkIdentity& self,
       Transport::ConnectDone done)
      : shop_(std::move(shop)), names_(std::move(names)), name_(std::move(name)), self_(self), done_(std::move(done)) {}

  void Start() {
    const auto finish = [dial = shared_from_this()] {
      dial->Finish(Unavailable("inproc://" + dial->name_ + ": " + dial->last_));
    };
    shop_->mailbox->Post([dial = shared_from_this()] { dial->Try(); });
    deadline_ = shop_->loop->After(shop_->options.connect_timeout, finish);
  }

  void Fail(const Status& why) {
    shop_->mailbox->Post([dial = shared_from_this(), why] { dial->Finish(why); });
  }

  void Cancel() {
    shop_->loop->Cancel(deadline_);
    shop_->loop->Cancel(retry_);
    done_ = nullptr;
  }

 private:
  void Try() {
    if (done_ == nullptr) return;
    const std::shared_ptr<Listener> listener = names_->Find(name_);
    if (listener == nullptr) {
      last_ = "nobody listens in this process";
      retry_ = shop_->loop->After(kRetryEvery, [dial = shared_from_this()] { dial->Try(); });
      return;
    }
    last_ = "the listener did not answer";
    auto end = std::make_shared<End>(shop_->mailbox);
    listener->shop->mailbox->Post([listener, end, dial = shared_from_this(), home = shop_->mailbox, self = self_,
                                   name = name_] { Accept(listener, end, dial, home, self, name); });
  }

  // On the listener's loop.
  static void Accept(const std::shared_ptr<Listener>& listener, const std::shared_ptr<End>& end,
                     const std::shared_ptr<Dial>& dial, const std::shared_ptr<Mailbox>& home, const LinkIdentity& self,
                     const std::string& name) {
    if (listener->acceptor == nullptr) {
      home->Post([dial] { dial->Try(); });
      return;
    }
    if (Status refusal = listener->acceptor->OnHello(self); !refusal.ok()) {
      home->Post([dial, refusal = std::move(refusal)] { dial->Finish(refusal); });
      return;
    }
    auto accepted = std::make_shared<End>(listener->shop->mailbox);
    End::Join(end, accepted);
    auto link = std::make_unique<InprocLink>(listener->shop, accepted, self, name, self.control);
    home->Post([dial, end, peer = listener->self] { dial->Welcome(end, peer); });
    listener->acceptor->OnAccepted(std::move(link));
  }

  void Welcome(const std::shared_ptr<End>& end, const LinkIdentity& peer) {
    if (done_ == nullptr) return;
    Finish(std::unique_ptr<Link>(std::make_unique<InprocLink>(shop_, end, peer, name_, self_.control)));
  }

  void Finish(Result<std::unique_ptr<Link>> result) {
    const Transport::ConnectDone done = std::exchange(done_, nullptr);
    Cancel();
    if (done != nullptr) done(std::move(result));
  }

  const std::shared_ptr<Shop> shop_;
  const std::shared_ptr<Names> names_;
  const std::string name_;
  const LinkIdentity self_;
  Transport::ConnectDone done_;
  EventLoop::TimerId deadline_ = 0;
  EventLoop::TimerId retry_ = 0;
  std::string last_;
};

class InprocTransport final : public Transport {
 public:
  InprocTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options)
      : shop_(std::make_shared<Shop>(Shop{loop, pool, options, std::make_shared<Mailbox>(loop), {}})) {}

  ~InprocTransport() override {
    for (auto& [name, listener] : listeners_) {
      names_->Remove(name);
      listener->acceptor = nullptr;
    }
    for (const auto& weak : dials_) {
      if (const auto dial = weak.lock()) dial->Cancel();
    }
    while (!shop_->open.empty()) (*shop_->open.begin())->Close();
    shop_->mailbox->Close();
  }

  std::string_view name() const override { return "inproc"; }

  Result<std::string> Listen(std::string_view endpoint, const LinkIdentity& self, Acceptor* acceptor) override {
    TALLY_ASSIGN_OR_RETURN(const EndpointParts parts, Parse(endpoint));
    auto listener = std::make_shared<Listener>(Listener{shop_, self, acceptor});
    if (!names_->Add(parts.host, listener)) {
      return Unavailable(std::string(endpoint) + ": listen: the name is in use in this process");
    }
    listeners_.emplace(parts.host, std::move(listener));
    return std::string(endpoint);
  }

  void Connect(std::string_view endpoint, const LinkIdentity& self, ConnectDone done) override {
    Result<EndpointParts> parts = Parse(endpoint);
    std::erase_if(dials_, [](const auto& dial) { return dial.expired(); });
    // An address that does not parse is told later as well, through the same door.
    auto dial = std::make_shared<Dial>(shop_, names_, parts.ok() ? parts->host : std::string(), self, std::move(done));
    dials_.push_back(dial);
    if (parts.ok()) return dial->Start();
    dial->Fail(parts.status());
  }

 private:
  static Result<EndpointParts> Parse(std::string_view endpoint) {
    TALLY_ASSIGN_OR_RETURN(EndpointParts parts, ParseEndpoint(endpoint));
    if (parts.scheme == "inproc") return parts;
    return InvalidArgument("endpoint \"" + std::string(endpoint) + "\" is not of transport inproc");
  }

  const std::shared_ptr<Shop> shop_;
  const std::shared_ptr<Names> names_ = Names::OfProcess();
  std::unordered_map<std::string, std::shared_ptr<Listener>> listeners_;
  std::vector<std::weak_ptr<Dial>> dials_;
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeInprocTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) {
  return std::unique_ptr<Transport>(std::make_unique<InprocTransport>(loop, pool, options));
}

}  // namespace tally
