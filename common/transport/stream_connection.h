// StreamConnection: frames over one connected stream socket: gathered writes, reads straight into pool blocks, pacing.
// Thread: the loop's. Held by shared_ptr: pending I/O keeps it alive, its owner may go at any time.
// Nothing calls back from inside Send, PauseReceive or Close, except that Close runs the releases left.
#pragma once

#include <sys/socket.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/frame.h"
#include "common/handler_memory.h"
#include "common/loop.h"
#include "common/recycled_queue.h"
#include "common/transport/link.h"
#include "common/transport/sockets.h"

namespace tally {

class StreamConnection : public std::enable_shared_from_this<StreamConnection> {
 public:
  class Owner {
   public:
    virtual void OnConnectionFrame(Frame& frame) = 0;
    // It is closed and calls back no more.
    virtual void OnConnectionDead(const Status& why) = 0;

   protected:
    ~Owner() = default;
  };

  // Until Admit the peer is a stranger: its frames are held to the handshake's sizes and nothing is paced.
  StreamConnection(EventLoop* loop, BufferPool* pool, const LinkOptions& options, UniqueFd socket);

  void Start(Owner* owner);
  void SetOwner(Owner* owner) { owner_ = owner; }
  void Admit(bool paced);

  // As Link's.
  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release);
  // The same for a frame whose payload lies elsewhere: `header.payload_bytes` and its checksum are the caller's,
  // `bytes` is what travels in the payload's place and says where it is; their lengths differ. The peer gets
  // `descriptor` along (none: not valid). Only between ends that have called TravelByReference.
  Status SendInstead(const FrameHeader& header, std::span<const std::byte> bytes, Release on_release,
                     UniqueFd descriptor);
  // A small frame that gives memory back: not held up by the queue's limit.
  Status SendReturn(const FrameHeader& header, std::span<const std::byte> payload, Release on_release);
  void TravelByReference() { by_reference_ = true; }
  // The oldest descriptor that came and was not taken yet; not valid: there is none.
  UniqueFd TakeDescriptor();
  void Close();
  // Ends the connection for what the owner has found; the owner is told.
  void Fail(const Status& why);
  std::function<void()> on_close;  // runs once, whoever closes
  void PauseReceive(bool paused);
  std::uint64_t queued_bytes() const { return queued_bytes_; }
  const LinkStats& stats() const { return stats_; }
  const std::string& local_address() const { return local_address_; }
  const std::string& remote_address() const { return remote_address_; }

 private:
  // A frame on its way out: preamble and header in one piece, then the payload.
  struct Outgoing {
    std::vector<std::byte> head;
    std::span<const std::byte> payload;
    Release release;
    UniqueFd descriptor;
    std::size_t size() const { return head.size() + payload.size(); }
  };
  struct Slot {  // bytes that may be written from `due` on
    TimePoint due;
    std::uint64_t bytes = 0;
  };

  Status Queue(std::span<const std::byte> payload, Release on_release, UniqueFd descriptor);
  Status Refusal(std::size_t payload_bytes) const;
  ssize_t WriteOnce(std::size_t allowed, std::size_t* wanted);
  void Write();
  void Later();
  void ScheduleFlush();
  void Flush();
  std::uint64_t GrantedBytes();
  void Consume(std::size_t bytes);
  void RunReleases();
  void CloseNow();
  void RunClosed();

  void ArmRead();
  void OnReadable();
  bool ReadOnce();
  Status KeepDescriptor(msghdr* message);
  void Resume();
  void Parse();
  bool ParseHead();
  bool TakePayload(std::size_t bytes);

  EventLoop* const loop_;
  BufferPool* const pool_;
  const LinkOptions options_;
  boost::asio::posix::stream_descriptor socket_;
  const std::shared_ptr<HandlerMemory> flush_memory_ = std::make_shared<HandlerMemory>();
  const std::shared_ptr<HandlerMemory> write_memory_ = std::make_shared<HandlerMemory>();
  const std::shared_ptr<HandlerMemory> read_memory_ = std::make_shared<HandlerMemory>();
  const std::string local_address_;
  const std::string remote_address_;
  Owner* owner_ = nullptr;
  Owner* mourner_ = nullptr;  // the owner of a connection that fails, until it was told or has gone
  bool admitted_ = false;
  bool paced_ = false;
  bool closed_ = false;
  bool by_reference_ = false;
  LinkStats stats_;

  // Writing
  RecycledQueue<Outgoing> queue_;
  std::size_t front_written_ = 0;  // bytes of the first frame that the system has
  std::uint64_t queued_bytes_ = 0;
  std::vector<Release> released_;  // of frames written; run up to next_release_
  std::size_t next_release_ = 0;
  FrameHeader header_out_;
  std::vector<std::byte> header_bytes_out_;
  bool flush_posted_ = false;
  bool write_armed_ = false;
  int write_error_ = 0;
  RecycledQueue<Slot> slots_;
  std::uint64_t slot_bytes_ = 0;
  std::uint64_t granted_bytes_ = 0;
  EventLoop::TimerId pace_timer_ = 0;

  // Reading: heads and small frames pass through buffer_, the rest of a payload goes where it stays.
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  RecycledQueue<UniqueFd> descriptors_;
  Frame frame_;
  bool in_payload_ = false;
  std::size_t payload_got_ = 0;
  std::uint32_t payload_crc_ = 0;
  std::size_t last_head_bytes_ = 0;
  std::size_t last_frame_bytes_ = 0;
  bool read_armed_ = false;
  bool reading_ = false;
  bool paused_ = false;
  EventLoop::TimerId read_timer_ = 0;
};

}  // namespace tally
