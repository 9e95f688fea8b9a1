// Transport "shm": links inside a node, "shm://name". Frames travel over a local socket; a payload that lies in memory
// which the peer can map (shared_memory.h) stays where it is, and the frame says where: a loan, which the receiver
// returns when it lets go of the frame. Other large payloads are copied once into such memory, small ones into the
// socket. A loan ends with its link: what a frame that is kept longer points at may change.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "common/arena.h"
#include "common/handler_memory.h"
#include "common/loop_asio.h"
#include "common/reduce/reduce.h"
#include "common/shared_memory.h"
#include "common/transport/shm_notes.h"
#include "common/transport/stream_transport.h"
#include "common/transport/unix_sockets.h"

namespace tally {
namespace {

constexpr std::size_t kLoanBytes = BufferPool::kSharedBlockBytes;  // a note and its return cost about as much as a copy
constexpr std::size_t kMaxRegions = 4096;                          // that a peer may have mapped here
constexpr std::size_t kReturnsPerFrame = 128;
constexpr std::uint8_t kPlainNumbers = 0;  // codec "none": every byte of such a payload is harmless

// What this end has lent to its peer. Outlives the link while releases run, one of which may destroy it.
class Loans {
 public:
  struct Loan {
    Release release;
    BufferRef copy;              // of a payload that the peer cannot map
    std::vector<std::byte> note;
    std::uint64_t bytes = 0;
    bool out = false;
  };

  std::uint32_t Take() {
    if (free_.empty()) {
      loans_.emplace_back();
      free_.push_back(static_cast<std::uint32_t>(loans_.size() - 1));
    }
    const std::uint32_t number = free_.back();
    free_.pop_back();
    loans_[number].out = true;
    ++count_;
    return number;
  }
  Loan& at(std::uint32_t number) { return loans_[number]; }

  // False: there is no such loan. Its release runs with the next RunReleases.
  bool Return(std::uint32_t number) {
    if (number >= loans_.size() || !loans_[number].out) return false;
    Loan& loan = loans_[number];
    due_.push_back(std::exchange(loan.release, {}));
    loan.copy.Reset();
    bytes_ -= std::exchange(loan.bytes, 0);
    loan.out = false;
    free_.push_back(number);
    --count_;
    return true;
  }
  // At the link's end. The peer may still read what has not come back: blocks of the pool are not used again.
  void ReturnAll() {
    for (std::uint32_t number = 0; number < loans_.size(); ++number) {
      Loan& loan = loans_[number];
      if (!loan.out) continue;
      loan.copy.Lose();
      if (BufferRef block = BufferRef::FromRelease(loan.release); block) {
        block.Lose();
        loan.release = {};
      }
      (void)Return(number);
    }
    RunReleases();
  }
  void RunReleases() {
    // A release may send again or end the link, and then the rest must have run before that returns.
    while (next_due_ < due_.size()) {
      const Release release = due_[next_due_++];
      release();
    }
    due_.clear();
    next_due_ = 0;
  }

  void AddBytes(std::uint32_t number, std::uint64_t bytes) {
    loans_[number].bytes = bytes;
    bytes_ += bytes;
  }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }

 private:
  std::deque<Loan> loans_;  // notes are sent from where they are
  std::vector<std::uint32_t> free_;
  std::vector<Release> due_;
  std::size_t next_due_ = 0;
  std::uint64_t bytes_ = 0;
  std::size_t count_ = 0;
};

// What this end has borrowed: the peer's regions, and the numbers that are to be returned. Lives until the last frame
// is let go of, on whatever thread that is.
class Borrowed : public std::enable_shared_from_this<Borrowed> {
 public:
  // `give` runs on the loop, soon after numbers have become due, until Close.
  Borrowed(EventLoop* loop, std::function<void()> give) : loop_(loop), give_(std::move(give)) {}

  // The peer's region. Errors: as Mapping::Make, and kCorrupt (too many, or no descriptor came).
  Result<std::span<std::byte>> Region(std::uint32_t number, std::uint64_t bytes, StreamConnection* from) {
    const auto found = regions_.find(number);
    if (found != regions_.end()) return found->second.bytes();
    if (regions_.size() >= kMaxRegions) return Corrupt(std::to_string(kMaxRegions) + " regions of memory are enough");
    UniqueFd descriptor = from->TakeDescriptor();
    if (descriptor.get() < 0) return Corrupt("region " + std::to_string(number) + " came without its descriptor");
    TALLY_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Make(descriptor.Release(), bytes, false, false));
    return regions_.emplace(number, std::move(mapping)).first->second.bytes();
  }

  Release Hold(std::uint32_t number) {
    const std::lock_guard lock(mutex_);
    if (holds_++ == 0) self_ = shared_from_this();
    const auto let_go = [](void* self, std::uint64_t loan) {
      static_cast<Borrowed*>(self)->LetGo(static_cast<std::uint32_t>(loan));
    };
    return {let_go, this, number};
  }

  void TakeDue(std::vector<std::uint32_t>* numbers) {
    numbers->clear();
    const std::lock_guard lock(mutex_);
    posted_ = false;
    numbers->swap(due_);
  }

  // On the loop, when the connection is closed.
  void Close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
    give_ = nullptr;
  }

 private:
  void LetGo(std::uint32_t number) {
    std::shared_ptr<Borrowed> last;  // goes when the lock has gone
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) {
      due_.push_back(number);
      if (!std::exchange(posted_, true)) {
        boost::asio::post(loop_->impl().io, HandlerWithMemory(memory_, [self = shared_from_this()] {
                            if (self->give_) self->give_();  // changes on the loop only
                          }));
      }
    }
    if (--holds_ == 0) last = std::move(self_);
  }

  std::unordered_map<std::uint32_t, Mapping> regions_;
  std::mutex mutex_;
  EventLoop* loop_;  // null: closed
  std::function<void()> give_;
  std::vector<std::uint32_t> due_;
  bool posted_ = false;
  const std::shared_ptr<HandlerMemory> memory_ = std::make_shared<HandlerMemory>();  // of what is posted
  std::uint64_t holds_ = 0;
  std::shared_ptr<Borrowed> self_;  // while a frame is held
};

class ShmLink final : public StreamLink {
 public:
  explicit ShmLink(const StreamParts& parts)
      : StreamLink("shm", parts.connection, parts.peer),
        pool_(parts.pool),
        options_(*parts.options),
        borrowed_(std::make_shared<Borrowed>(parts.loop, [this] { GiveBack(); })) {
    connection_->on_close = [loans = loans_, borrowed = borrowed_] {
      borrowed->Close();
      loans->ReturnAll();
    };
  }

  ~ShmLink() override { Close(); }

  bool in_memory() const override { return true; }

  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) override {
    if (loans_->count() >= options_.max_queued_frames) {
      const Status full =
          InvalidArgument(Describe() + ": " + std::to_string(loans_->count()) + " frames wait for the peer already");
      on_release();  // which may end this link
      return full;
    }
    SharedMemory* const shared = pool_->shared().get();
    if (payload.size() < kLoanBytes || payload.size() > options_.max_payload_bytes || shared == nullptr) {
      return connection_->Send(header, payload, on_release);
    }
    std::optional<SharedMemory::Place> place = shared->Find(payload);
    BufferRef copy;
    if (!place.has_value()) {
      copy = pool_->Get(payload.size());
      place = shared->Find(copy.bytes());
      if (place.has_value()) CopyBytes(copy.data(), payload.data(), payload.size());
    }
    UniqueFd descriptor;
    if (place.has_value() && !Tell(*place, &descriptor)) place.reset();
    if (!place.has_value()) return connection_->Send(header, payload, on_release);  // there is no memory to share
    return Lend(header, payload.size(), *place, std::move(descriptor), std::move(copy), on_release);
  }

  std::uint64_t queued_bytes() const override { return connection_->queued_bytes() + loans_->bytes(); }
  const LinkStats& stats() const override {
    stats_ = connection_->stats();
    stats_.bytes_sent += lent_bytes_;
    stats_.bytes_received += borrowed_bytes_;
    stats_.frames_sent -= std::min(stats_.frames_sent, returns_sent_);
    stats_.frames_received -= std::min(stats_.frames_received, returns_received_);
    return stats_;
  }

 private:
  // The descriptor that the peer is to get with the frame, if it has not got the region's yet. False: it cannot.
  bool Tell(const SharedMemory::Place& place, UniqueFd* descriptor) {
    if (place.region < told_.size() && told_[place.region]) return true;
    if (told_count_ == kMaxRegions) return false;
    // Its own, as the region may go while the frame is queued.
    *descriptor = UniqueFd(fcntl(place.descriptor, F_DUPFD_CLOEXEC, 0));
    return descriptor->get() >= 0;
  }

  Status Lend(const FrameHeader& header, std::size_t bytes, const SharedMemory::Place& place, UniqueFd descriptor,
              BufferRef copy, Release on_release) {
    const bool tells = descriptor.get() >= 0;
    const std::uint32_t number = loans_->Take();
    Loans::Loan& loan = loans_->at(number);
    loans_->AddBytes(number, bytes);
    loan.copy = std::move(copy);
    loan.release = on_release;
    EncodeMemoryNote({number, place.region, place.offset, place.region_bytes}, &loan.note);
    header_ = header;
    header_.payload_bytes = bytes;
    header_.has_crc = false;  // memory of one machine
    header_.payload_crc = 0;
    const Status status = connection_->SendInstead(header_, loan.note, {}, std::move(descriptor));
    if (status.ok()) {
      if (tells) {
        if (place.region >= told_.size()) told_.resize(place.region + 1);
        told_[place.region] = true;
        ++told_count_;
      }
      lent_bytes_ += bytes;
    } else {
      const auto loans = loans_;
      (void)loans->Return(number);
      loans->RunReleases();
    }
    return status;
  }

  void OnConnectionFrame(Frame& frame) override {
    const auto connection = connection_;  // the link may go meanwhile
    Status status;
    if (frame.header.kind == FrameKind::kCredit) {
      status = OnReturns(frame.payload);
    } else if (frame.header.payload_bytes == frame.payload.size()) {
      return StreamLink::OnConnectionFrame(frame);
    } else if (status = Borrow(frame); status.ok()) {
      return StreamLink::OnConnectionFrame(frame);
    }
    if (!status.ok()) connection->Fail(status);
  }

  // The payload that the frame's note tells of takes the note's place.
  Status Borrow(Frame& frame) {
    const std::uint64_t bytes = frame.header.payload_bytes;
    if (bytes > options_.max_payload_bytes) {
      return Corrupt("a payload of " + std::to_string(bytes) + " bytes, at most " +
                     std::to_string(options_.max_payload_bytes));
    }
    TALLY_ASSIGN_OR_RETURN(const MemoryNote note, DecodeMemoryNote(frame.payload));
    TALLY_ASSIGN_OR_RETURN(const auto region, borrowed_->Region(note.region, note.region_bytes, connection_.get()));
    TALLY_ASSIGN_OR_RETURN(frame.payload, PlaceOf(note, bytes, region));
    borrowed_bytes_ += bytes;
    frame.hold = pool_->WrapConst(frame.payload, borrowed_->Hold(note.number));
    if (frame.header.codec == kPlainNumbers) return Status::Ok();
    // What is checked first and decoded later must not change in between, whatever the peer does.
    BufferRef own = pool_->Get(bytes);
    CopyBytes(own.data(), frame.payload.data(), bytes);
    frame.payload = own.bytes();
    frame.hold = std::move(own);
    return Status::Ok();
  }

  Status OnReturns(std::span<const std::byte> payload) {
    ++returns_received_;
    const auto loans = loans_;
    Status status = DecodeMemoryReturns(payload, &returned_);
    for (const std::uint32_t number : returned_) {
      if (!status.ok()) break;
      if (!loans->Return(number)) status = Corrupt("loan " + std::to_string(number) + ", which is not out, came back");
    }
    loans->RunReleases();  // `this` may be gone
    return status;
  }

  void GiveBack() {
    borrowed_->TakeDue(&due_);
    for (std::size_t first = 0; first < due_.size(); first += kReturnsPerFrame) {
      const std::size_t count = std::min(kReturnsPerFrame, due_.size() - first);
      EncodeMemoryReturns(std::span(due_).subspan(first, count), &returns_);
      BufferRef bytes = pool_->Get(returns_.size());
      std::ranges::copy(returns_, bytes.data());
      const std::span<const std::byte> payload = bytes.bytes();
      FrameHeader header;
      header.kind = FrameKind::kCredit;
      ++returns_sent_;
      if (!connection_->SendReturn(header, payload, std::move(bytes).IntoRelease()).ok()) return;  // closed
    }
  }

  BufferPool* const pool_;
  const LinkOptions options_;
  const std::shared_ptr<Loans> loans_ = std::make_shared<Loans>();
  const std::shared_ptr<Borrowed> borrowed_;
  std::vector<bool> told_;  // by region: the peer has its descriptor
  std::size_t told_count_ = 0;
  FrameHeader header_;
  std::vector<std::uint32_t> due_, returned_;
  std::vector<std::byte> returns_;
  std::uint64_t lent_bytes_ = 0, borrowed_bytes_ = 0, returns_sent_ = 0, returns_received_ = 0;
  mutable LinkStats stats_;
};

constexpr StreamKind kShm = {
    .scheme = "shm",
    .by_reference = true,
    .listen = [](const EndpointParts& endpoint, std::uint32_t) { return ListenUnix(endpoint.host, SOCK_STREAM); },
    .check_peer = &CheckSameUser,
    .make_link = [](StreamParts parts) -> std::unique_ptr<Link> { return std::make_unique<ShmLink>(parts); },
};

}  // namespace

Result<std::unique_ptr<Transport>> MakeShmTransport(EventLoop* loop, BufferPool* pool, const LinkOptions& options) {
  if (options.limiter != nullptr) return InvalidArgument("transport shm has no NIC whose rate could be limited");
  return MakeStreamTransport(&kShm, loop, pool, options);
}

}  // namespace tally
