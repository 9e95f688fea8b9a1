#include "common/transport/stream_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "common/loop_asio.h"
#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "common/transport/unix_sockets.h"

namespace tally {
namespace {

using boost::asio::posix::descriptor_base;

constexpr std::size_t kMaxIovecs = 128;
constexpr std::size_t kWriteBatchBytes = std::size_t{1} << 20;
// Small frames sent in one turn of the loop leave in one write at its end, unless this much has gathered.
constexpr std::uint64_t kFlushAtBytes = 64 << 10;
constexpr std::size_t kBufferBytes = 64 << 10;
// After a large frame only the next head is read along with the payload: bytes beyond it would be copied once more.
constexpr std::size_t kLargeFrameBytes = 32 << 10;
constexpr std::size_t kNextHeadBytes = 512;
constexpr std::size_t kReadTurnBytes = std::size_t{1} << 20;  // then other links have their turn

constexpr std::uint64_t kPacedBytes = 64 << 10;
// Reserving ahead keeps a late timer from costing rate.
constexpr std::uint64_t kPacedAheadBytes = 4 * kPacedBytes;
constexpr std::size_t kDiscardBytes = std::size_t{64} << 20;
constexpr Nanos kFullPause = std::chrono::milliseconds(5);
constexpr std::size_t kMaxDescriptors = 16;  // that came and wait for their frame

}  // namespace

StreamConnection::StreamConnection(EventLoop* loop, BufferPool* pool, const LinkOptions& options, UniqueFd socket)
    : loop_(loop),
      pool_(pool),
      options_(options),
      socket_(loop->impl().io, socket.get()),
      local_address_(LocalAddress(socket.get())),
      remote_address_(RemoteAddress(socket.get())),
      buffer_(kBufferBytes) {
  (void)socket.Release();
}

void StreamConnection::Start(Owner* owner) {
  owner_ = owner;
  ArmRead();
}

void StreamConnection::Admit(bool paced) {
  admitted_ = true;
  paced_ = paced && options_.limiter != nullptr;
}

void StreamConnection::Close() {
  mourner_ = nullptr;
  if (closed_) return;
  const auto self = shared_from_this();
  CloseNow();
  RunClosed();
}

void StreamConnection::CloseNow() {
  closed_ = true;
  owner_ = nullptr;
  loop_->Cancel(pace_timer_);
  loop_->Cancel(read_timer_);
  // Closing with unread bytes resets the connection, which would take back what the peer has not read yet.
  std::array<std::byte, 65536> unread;
  for (std::size_t discarded = 0; discarded < kDiscardBytes;) {
    const ssize_t got = recv(socket_.native_handle(), unread.data(), unread.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    discarded += static_cast<std::size_t>(got);
  }
  boost::system::error_code ignored;
  socket_.close(ignored);
  for (; !queue_.empty(); queue_.PopFront()) {
    released_.push_back(std::exchange(queue_[0].release, {}));
    queue_[0].descriptor = UniqueFd();
  }
  while (TakeDescriptor().get() >= 0) {
  }
  queued_bytes_ = 0;
}

// What closing sets free.
void StreamConnection::RunClosed() {
  RunReleases();
  if (const auto closed = std::exchange(on_close, nullptr); closed) closed();
}

void StreamConnection::Fail(const Status& why) {
  if (closed_) return;
  if (!admitted_ && why.kind() == StatusKind::kMismatch) {
    // A peer of another version finds ours in the preamble of this.
    const std::vector<std::byte> refusal = EncodeRefusal(why);
    (void)Send(HandshakeHeader(FrameKind::kWelcome, {}), refusal, {});
  }
  const auto self = shared_from_this();
  Owner* const owner = owner_;
  CloseNow();
  mourner_ = owner;
  RunClosed();  // a release may destroy the owner, which then closes
  if (Owner* const told = std::exchange(mourner_, nullptr); told != nullptr) {
    told->OnConnectionDead(why.WithContext(local_address_ + " <-> " + remote_address_));
  }
}

// ---- writing ----

Status StreamConnection::Refusal(std::size_t payload_bytes) const {
  if (closed_) return Unavailable("the link to " + remote_address_ + " is closed");
  if (payload_bytes > std::min(options_.max_payload_bytes, kMaxPayloadBytes)) {
    return InvalidArgument("a payload of " + std::to_string(payload_bytes) + " bytes is beyond the limit");
  }
  if (queue_.size() >= options_.max_queued_frames) {
    return InvalidArgument(std::to_string(queue_.size()) + " frames are queued to " + remote_address_ + " already");
  }
  return Status::Ok();
}

Status StreamConnection::Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) {
  if (Status refused = Refusal(payload.size()); !refused.ok()) {
    on_release();
    return refused;
  }
  header_out_ = header;
  header_out_.payload_bytes = payload.size();
  header_out_.has_crc = options_.payload_crc && !payload.empty();
  header_out_.payload_crc = header_out_.has_crc ? Crc32c(payload) : 0;
  return Queue(payload, on_release, {});
}

Status StreamConnection::SendInstead(const FrameHeader& header, std::span<const std::byte> bytes, Release on_release,
                                     UniqueFd descriptor) {
  TALLY_CHECK(by_reference_ && header.payload_bytes != bytes.size(), "a reference that would be taken for a payload");
  if (Status refused = Refusal(header.payload_bytes); !refused.ok()) {
    on_release();
    return refused;
  }
  header_out_ = header;
  return Queue(bytes, on_release, std::move(descriptor));
}

Status StreamConnection::SendReturn(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) {
  if (closed_) {
    on_release();
    return Unavailable("the link to " + remote_address_ + " is closed");
  }
  header_out_ = header;
  header_out_.payload_bytes = payload.size();
  return Queue(payload, on_release, {});
}

// The frame of header_out_.
Status StreamConnection::Queue(std::span<const std::byte> payload, Release on_release, UniqueFd descriptor) {
  EncodeHeader(header_out_, &header_bytes_out_);

  Outgoing& frame = queue_.PushBack();
  frame.head.resize(kPreambleBytes + header_bytes_out_.size());
  std::ranges::copy(header_bytes_out_, frame.head.begin() + kPreambleBytes);
  EncodePreamble({static_cast<std::uint32_t>(header_bytes_out_.size()), static_cast<std::uint32_t>(payload.size())},
                 header_bytes_out_, std::span(frame.head).first<kPreambleBytes>());
  frame.payload = payload;
  frame.release = on_release;
  frame.descriptor = std::move(descriptor);
  queued_bytes_ += frame.size();

  const bool first_of_turn = !flush_posted_;
  ScheduleFlush();
  if (first_of_turn || queued_bytes_ >= kFlushAtBytes) Write();
  return Status::Ok();
}

// Runs what Send may not: releases, errors, and the write of small frames that have gathered.
void StreamConnection::ScheduleFlush() {
  if (std::exchange(flush_posted_, true)) return;
  boost::asio::post(loop_->impl().io, HandlerWithMemory(flush_memory_, [self = shared_from_this()] {
                      self->flush_posted_ = false;
                      self->Flush();
                    }));
}

void StreamConnection::Flush() {
  if (closed_) return;
  Write();
  RunReleases();
  if (write_error_ == 0 || closed_) return;
  // What the peer sent before it went is still to be delivered; reading then meets the end as well.
  if (!paused_) OnReadable();
  Fail(PeerLost("writing failed: " + ErrnoText(write_error_)));
}

void StreamConnection::Write() {
  while (!queue_.empty() && !write_armed_ && write_error_ == 0 && !closed_) {
    std::size_t allowed = kWriteBatchBytes;
    if (paced_) {
      allowed = std::min<std::uint64_t>(GrantedBytes(), allowed);
      if (allowed == 0) return;
    }
    std::size_t wanted = 0;
    const ssize_t sent = WriteOnce(allowed, &wanted);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == ETOOMANYREFS) {  // this user's descriptors on their way, over all processes
      Later();
      return;
    }
    if (sent < 0 && errno != EAGAIN) {
      write_error_ = errno;
      ScheduleFlush();
      return;
    }
    const std::size_t taken = sent < 0 ? 0 : static_cast<std::size_t>(sent);
    Consume(taken);
    if (taken == wanted) continue;
    write_armed_ = true;
    socket_.async_wait(
        descriptor_base::wait_write,
        HandlerWithMemory(write_memory_, [self = shared_from_this()](const boost::system::error_code& error) {
          self->write_armed_ = false;
          if (!error) self->Flush();
        }));
  }
}

// One system call: at most `allowed` bytes of the queue, and the descriptor of the frame that it begins with.
ssize_t StreamConnection::WriteOnce(std::size_t allowed, std::size_t* wanted) {
  std::array<iovec, kMaxIovecs> pieces;
  std::size_t count = 0;
  std::size_t skip = front_written_;
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::size_t skipped = std::min(skip, bytes.size());
    skip -= skipped;
    bytes = bytes.subspan(skipped).first(std::min(bytes.size() - skipped, allowed - *wanted));
    if (bytes.empty()) return;
    pieces[count++] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    *wanted += bytes.size();
  };
  for (std::size_t i = 0; i < queue_.size() && count + 2 <= kMaxIovecs && *wanted < allowed; ++i) {
    if (i > 0 && queue_[i].descriptor.get() >= 0) break;  // it travels with its frame's first byte
    add(queue_[i].head);
    add(queue_[i].payload);
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  DescriptorRoom room;
  Attach(front_written_ == 0 ? queue_[0].descriptor.get() : -1, &room, &message);
  return sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL);
}

void StreamConnection::Later() {
  if (pace_timer_ != 0) return;
  pace_timer_ = loop_->After(kFullPause, [self = shared_from_this()] {
    self->pace_timer_ = 0;
    self->Flush();
  });
}

void StreamConnection::Consume(std::size_t bytes) {
  stats_.bytes_sent += bytes;
  queued_bytes_ -= bytes;
  if (paced_) granted_bytes_ -= bytes;
  front_written_ += bytes;
  while (!queue_.empty() && front_written_ >= queue_[0].size()) {
    front_written_ -= queue_[0].size();
    ++stats_.frames_sent;
    released_.push_back(std::exchange(queue_[0].release, {}));
    queue_[0].descriptor = UniqueFd();
    queue_.PopFront();
  }
}

void StreamConnection::RunReleases() {
  // A release may send again, or destroy the link, and then the rest must have run before that returns.
  while (next_release_ < released_.size()) {
    const Release release = released_[next_release_++];
    release();
  }
  released_.clear();
  next_release_ = 0;
}

// Bytes that may be written now. Reserves slots ahead and sets a timer to the next one.
std::uint64_t StreamConnection::GrantedBytes() {
  const TimePoint now = loop_->Now();
  while (slot_bytes_ < kPacedAheadBytes && granted_bytes_ + slot_bytes_ < queued_bytes_) {
    const std::uint64_t bytes = std::min(kPacedBytes, queued_bytes_ - granted_bytes_ - slot_bytes_);
    slots_.PushBack() = {now + options_.limiter->Reserve(RateLimiter::Direction::kSend, bytes, now), bytes};
    slot_bytes_ += bytes;
  }
  for (; !slots_.empty() && slots_.front().due <= now; slots_.PopFront()) {
    slot_bytes_ -= slots_.front().bytes;
    granted_bytes_ += slots_.front().bytes;
  }
  if (granted_bytes_ == 0 && !slots_.empty() && pace_timer_ == 0) {
    pace_timer_ = loop_->After(slots_.front().due - now, [self = shared_from_this()] {
      self->pace_timer_ = 0;
      self->Flush();
    });
  }
  return granted_bytes_;
}

// ---- reading ----

void StreamConnection::ArmRead() {
  if (closed_ || paused_ || read_armed_ || read_timer_ != 0) return;
  read_armed_ = true;
  socket_.async_wait(
      descriptor_base::wait_read,
      HandlerWithMemory(read_memory_, [self = shared_from_this()](const boost::system::error_code& error) {
        self->read_armed_ = false;
        if (!error) self->OnReadable();
      }));
}

void StreamConnection::PauseReceive(bool paused) {
  if (std::exchange(paused_, paused) == paused || paused || closed_) return;
  boost::asio::post(loop_->impl().io, [self = shared_from_this()] { self->Resume(); });
}

void StreamConnection::Resume() {
  if (closed_ || paused_ || reading_) return;
  Parse();
  ArmRead();
}

void StreamConnection::OnReadable() {
  const auto self = shared_from_this();
  if (reading_) return;
  reading_ = true;
  const std::uint64_t until = stats_.bytes_received + kReadTurnBytes;
  while (!closed_ && !paused_ && read_timer_ == 0 && stats_.bytes_received < until && ReadOnce()) {
  }
  reading_ = false;
  ArmRead();
}

// One system call and what follows from it. False when the socket has no more for now.
bool StreamConnection::ReadOnce() {
  std::array<iovec, 2> pieces;
  std::size_t count = 0;
  std::size_t wanted = 0;
  const auto add = [&](std::byte* data, std::size_t bytes) {
    if (paced_) bytes = std::min(bytes, kPacedBytes - wanted);
    if (bytes == 0) return;
    pieces[count++] = {data, bytes};
    wanted += bytes;
  };
  if (in_payload_) add(frame_.payload.data() + payload_got_, frame_.payload.size() - payload_got_);
  const std::size_t room = buffer_.size() - end_;
  const bool only_head = end_ == 0 && last_frame_bytes_ > kLargeFrameBytes;
  add(buffer_.data() + end_, only_head ? std::min(room, std::max(kNextHeadBytes, last_head_bytes_)) : room);
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  DescriptorRoom descriptors;
  if (by_reference_) MakeRoom(&descriptors, &message);
  const ssize_t received = recvmsg(socket_.native_handle(), &message, MSG_CMSG_CLOEXEC);
  if (received < 0) {
    if (errno == EINTR) return true;
    if (errno != EAGAIN) Fail(PeerLost("reading failed: " + ErrnoText(errno)));
    return false;
  }
  if (received == 0) {
    Fail(PeerLost(in_payload_ || begin_ != end_ ? "the peer closed the connection inside a frame"
                                                : "the peer closed the connection"));
    return false;
  }
  if (by_reference_) {
    if (const Status kept = KeepDescriptor(&message); !kept.ok()) return Fail(kept), false;
  }
  const std::size_t got = static_cast<std::size_t>(received);
  stats_.bytes_received += got;
  if (paced_) {
    const TimePoint now = loop_->Now();
    const Nanos wait = options_.limiter->Reserve(RateLimiter::Direction::kReceive, got, now);
    if (wait > Nanos::zero()) {
      read_timer_ = loop_->After(wait, [self = shared_from_this()] {
        self->read_timer_ = 0;
        self->OnReadable();
      });
    }
  }
  const std::size_t to_payload = in_payload_ ? std::min(got, frame_.payload.size() - payload_got_) : 0;
  end_ += got - to_payload;
  if (to_payload == 0 || TakePayload(to_payload)) Parse();
  return got == wanted;
}

Status StreamConnection::KeepDescriptor(msghdr* message) {
  TALLY_ASSIGN_OR_RETURN(UniqueFd descriptor, Attached(message));
  if (descriptor.get() < 0) return Status::Ok();
  if (descriptors_.size() >= kMaxDescriptors) return Corrupt("descriptors that belong to no frame");
  descriptors_.PushBack() = std::move(descriptor);
  return Status::Ok();
}

UniqueFd StreamConnection::TakeDescriptor() {
  if (descriptors_.empty()) return {};
  UniqueFd oldest = std::move(descriptors_.front());
  descriptors_.PopFront();
  return oldest;
}

// Delivers every frame that buffer_ completes. Leaves in it at most the beginning of a head.
void StreamConnection::Parse() {
  while (!closed_ && !paused_ && !in_payload_ && ParseHead()) {
    const std::size_t bytes = std::min(end_ - begin_, frame_.payload.size());
    if (bytes > 0) std::memcpy(frame_.payload.data(), buffer_.data() + begin_, bytes);
    begin_ += bytes;
    in_payload_ = true;
    if (!TakePayload(bytes)) break;
  }
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

// Reads preamble and header from buffer_ into frame_ and gets the payload's block. False when bytes are missing.
bool StreamConnection::ParseHead() {
  const std::span<const std::byte> bytes(buffer_.data() + begin_, end_ - begin_);
  if (bytes.size() < kPreambleBytes) return false;
  const auto preamble_bytes = bytes.first<kPreambleBytes>();
  const Result<Preamble> preamble = DecodePreamble(
      preamble_bytes, admitted_ ? std::min(options_.max_payload_bytes, kMaxPayloadBytes) : kMaxHandshakePayloadBytes);
  if (!preamble.ok()) return Fail(preamble.status()), false;
  const std::size_t header_bytes = preamble->header_bytes;
  if (!admitted_ && header_bytes > kMaxHandshakeHeaderBytes) {
    return Fail(Corrupt("a header of " + std::to_string(header_bytes) + " bytes before the hello")), false;
  }
  const std::size_t head_bytes = kPreambleBytes + header_bytes;
  if (bytes.size() < head_bytes) {
    if (buffer_.size() < head_bytes) buffer_.resize(begin_ + head_bytes);
    return false;
  }
  const auto header = bytes.subspan(kPreambleBytes, header_bytes);
  if (Status status = CheckHeaderCrc(preamble_bytes, header); !status.ok()) return Fail(status), false;
  if (Status status = DecodeHeader(header, &frame_.header); !status.ok()) return Fail(status), false;
  if (frame_.header.payload_bytes != preamble->payload_bytes && !(admitted_ && by_reference_)) {
    return Fail(Corrupt("header and preamble give the payload different lengths")), false;
  }
  begin_ += head_bytes;
  last_head_bytes_ = head_bytes;
  last_frame_bytes_ = head_bytes + preamble->payload_bytes;
  payload_got_ = 0;
  payload_crc_ = 0;
  if (preamble->payload_bytes > 0) {
    frame_.hold = pool_->Get(preamble->payload_bytes);
    frame_.payload = frame_.hold.bytes();
  } else {
    frame_.hold.Reset();
    frame_.payload = {};
  }
  return true;
}

// `bytes` more of the payload have arrived. True when that completed the frame, which then was delivered.
bool StreamConnection::TakePayload(std::size_t bytes) {
  const bool by_reference = frame_.header.payload_bytes != frame_.payload.size();
  // Piece by piece, while it is still in the cache.
  const bool checked = frame_.header.has_crc && !by_reference;
  if (checked) payload_crc_ = Crc32c(frame_.payload.subspan(payload_got_, bytes), payload_crc_);
  payload_got_ += bytes;
  if (payload_got_ < frame_.payload.size()) return false;
  in_payload_ = false;
  if (checked && payload_crc_ != frame_.header.payload_crc) {
    Fail(Corrupt("CRC32C of the payload of " + std::to_string(payload_got_) + " bytes"));
    return false;
  }
  ++stats_.frames_received;
  owner_->OnConnectionFrame(frame_);
  frame_.hold.Reset();
  frame_.payload = {};
  return true;
}

}  // namespace tally
