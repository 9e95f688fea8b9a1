#include "common/transport/zmq_frames.h"

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>

#include "common/check.h"
#include "common/loop_asio.h"

namespace tally {
namespace {

constexpr std::size_t kMaxIdleShells = 4096;

}  // namespace

OutFrames::OutFrames(EventLoop* loop, std::function<void(OutFrame*)> on_returned, std::function<void()> on_drained)
    : loop_(loop),
      on_returned_(std::move(on_returned)),
      on_drained_(std::move(on_drained)),
      self_(std::make_shared<OutFrames*>(this)) {}

OutFrames::~OutFrames() {
  *self_ = nullptr;
  for (OutFrame* frame : returns_) delete frame;
  for (OutFrame* frame : idle_) delete frame;
}

OutFrame* OutFrames::Get() {
  if (idle_.empty()) {
    auto* const frame = new OutFrame;
    frame->home = this;
    return frame;
  }
  OutFrame* const frame = idle_.back();
  idle_.pop_back();
  return frame;
}

void OutFrames::Put(OutFrame* frame) {
  frame->payload = {};
  frame->own_payload.clear();
  frame->release = {};
  frame->link = nullptr;
  frame->due = {};
  idle_.push_back(frame);
}

int OutFrames::Hand(void* socket, const std::string& routing_id, OutFrame* frame) {
  const bool with_payload = !frame->payload.empty();
  // One part more than there are: ours, so that a failed call does not look like a frame that was sent.
  frame->parts.store(with_payload ? 3 : 2);
  int flags = ZMQ_DONTWAIT | (with_payload ? ZMQ_SNDMORE : 0);
  if (!routing_id.empty() &&
      zmq_send(socket, routing_id.data(), routing_id.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0) {
    return errno;
  }
  const auto send = [&](std::span<const std::byte> bytes) {
    zmq_msg_t message;
    zmq_msg_init_data(&message, const_cast<std::byte*>(bytes.data()), bytes.size(), &OutFrames::OnPartFree, frame);
    if (zmq_msg_send(&message, socket, flags) >= 0) return 0;
    const int error = errno;
    zmq_msg_close(&message);
    return error;
  };
  if (const int error = send(frame->head); error != 0) return error;
  flags = ZMQ_DONTWAIT;
  // Should the peer go between the parts, both are dropped and freed: the frame comes back like one that was sent.
  if (with_payload) (void)send(frame->payload);
  if (frame->parts.fetch_sub(1) == 1) Return(frame);
  return 0;
}

void OutFrames::OnPartFree(void*, void* frame) {
  auto* const out = static_cast<OutFrame*>(frame);
  if (out->parts.fetch_sub(1) == 1) out->home->Return(out);
}

void OutFrames::Return(OutFrame* frame) {
  std::lock_guard lock(mutex_);
  returns_.push_back(frame);
  returned_.notify_one();
  if (std::exchange(posted_, true)) return;
  boost::asio::post(loop_->impl().io, HandlerWithMemory(drain_memory_, [self = self_] {
                      if (*self != nullptr) (*self)->Drain();
                    }));
}

void OutFrames::Drain() {
  {
    std::lock_guard lock(mutex_);
    posted_ = false;
    draining_.swap(returns_);
  }
  for (OutFrame* frame : draining_) on_returned_(frame);
  draining_.clear();
  on_drained_();
}

void OutFrames::Wait(Nanos limit) {
  std::vector<OutFrame*> frames;
  {
    std::unique_lock lock(mutex_);
    returned_.wait_for(lock, limit, [&] { return !returns_.empty(); });
    frames.swap(returns_);
  }
  for (OutFrame* frame : frames) on_returned_(frame);
}

struct PartHolder::Shell {
  ZmqPart part;
  std::shared_ptr<Shells> home;
};

struct PartHolder::Shells {
  std::mutex mutex;
  std::vector<Shell*> idle;
  bool closed = false;

  static void Release(void* context, std::uint64_t) {
    auto* shell = static_cast<Shell*>(context);
    shell->part = ZmqPart();
    const std::shared_ptr<Shells> home = std::move(shell->home);
    {
      std::lock_guard lock(home->mutex);
      if (!home->closed && home->idle.size() < kMaxIdleShells) {
        home->idle.push_back(shell);
        shell = nullptr;
      }
    }
    delete shell;
  }
};

PartHolder::PartHolder(BufferPool* pool) : pool_(pool), shells_(std::make_shared<Shells>()) {}

PartHolder::~PartHolder() {
  std::lock_guard lock(shells_->mutex);
  shells_->closed = true;
  for (Shell* shell : shells_->idle) delete shell;
  shells_->idle.clear();
}

BufferRef PartHolder::Hold(ZmqPart part) {
  Shell* shell = nullptr;
  {
    std::lock_guard lock(shells_->mutex);
    if (!shells_->idle.empty()) {
      shell = shells_->idle.back();
      shells_->idle.pop_back();
    }
  }
  if (shell == nullptr) shell = new Shell;
  shell->part = std::move(part);
  shell->home = shells_;
  return pool_->Wrap(shell->part.bytes(), {&Shells::Release, shell, 0});
}

}  // namespace tally
