// Frames in ZeroMQ's hands, both ways without a copy of the payload.
// Threads: ZeroMQ lets go of what it sent on its own threads; OutFrames brings that back to the loop. The rest runs on
// the loop's thread, except that a received frame's hold may be dropped anywhere, also after everything else is gone.
#pragma once

#include <zmq.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/clock.h"
#include "common/frame.h"
#include "common/handler_memory.h"
#include "common/loop.h"

namespace tally {

class OutFrames;
class ZmqLink;

// One frame on its way out.
struct OutFrame {
  std::vector<std::byte> head;
  std::span<const std::byte> payload;
  std::vector<std::byte> own_payload;  // of a handshake frame, which outlives its sender
  Release release;
  ZmqLink* link = nullptr;  // null for handshake frames
  TimePoint due;            // paced: not before this; zero = not reserved yet
  std::atomic<int> parts{0};
  OutFrames* home = nullptr;

  std::uint64_t size() const { return head.size() + payload.size(); }
};

// Recycles OutFrames and brings them back from ZeroMQ's threads.
class OutFrames {
 public:
  // `on_returned` runs on the loop with each frame that was let go of, which it then gives to Put; `on_drained` after a
  // batch of them, unless Wait fetched it, and may do anything.
  OutFrames(EventLoop* loop, std::function<void(OutFrame*)> on_returned, std::function<void()> on_drained);
  // Requires: ZeroMQ holds none any more (its context is terminated).
  ~OutFrames();
  OutFrames(const OutFrames&) = delete;
  OutFrames& operator=(const OutFrames&) = delete;

  OutFrame* Get();
  void Put(OutFrame* frame);

  // Sends head and payload behind `routing_id` (empty on a DEALER). 0, or the errno; then the frame is still the
  // caller's.
  int Hand(void* socket, const std::string& routing_id, OutFrame* frame);

  // Waits up to `limit` for any frame to come back; those that did go through on_returned.
  void Wait(Nanos limit);

 private:
  static void OnPartFree(void* data, void* frame);
  void Return(OutFrame* frame);
  void Drain();

  EventLoop* const loop_;
  const std::function<void(OutFrame*)> on_returned_;
  const std::function<void()> on_drained_;
  const std::shared_ptr<OutFrames*> self_;  // *self_ = this while it lives, for tasks posted earlier
  const std::shared_ptr<HandlerMemory> drain_memory_ = std::make_shared<HandlerMemory>();
  std::vector<OutFrame*> idle_;
  std::vector<OutFrame*> draining_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::vector<OutFrame*> returns_;  // under mutex_
  bool posted_ = false;             // under mutex_
};

// A received message part.
class ZmqPart {
 public:
  ZmqPart() { zmq_msg_init(&message_); }
  ~ZmqPart() { zmq_msg_close(&message_); }
  ZmqPart(ZmqPart&& other) noexcept {
    zmq_msg_init(&message_);
    zmq_msg_move(&message_, &other.message_);
  }
  ZmqPart& operator=(ZmqPart&& other) noexcept {
    zmq_msg_move(&message_, &other.message_);
    return *this;
  }

  // False with errno. Never waits.
  bool Receive(void* socket) { return zmq_msg_recv(&message_, socket, ZMQ_DONTWAIT) >= 0; }
  bool more() const { return zmq_msg_more(&message_) != 0; }
  int descriptor() const { return zmq_msg_get(&message_, ZMQ_SRCFD); }  // the connection it came from, -1 if unknown
  std::span<std::byte> bytes() {
    return {static_cast<std::byte*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }
  std::string text() {
    return {static_cast<const char*>(zmq_msg_data(&message_)), zmq_msg_size(&message_)};
  }

 private:
  zmq_msg_t message_;
};

// Turns received parts into the memory behind Frame::hold; keeps their shells for reuse.
class PartHolder {
 public:
  explicit PartHolder(BufferPool* pool);
  ~PartHolder();
  BufferRef Hold(ZmqPart part);

 private:
  struct Shell;
  struct Shells;
  BufferPool* const pool_;
  const std::shared_ptr<Shells> shells_;
};

}  // namespace tally
