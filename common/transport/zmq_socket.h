// ZmqSocket: one ROUTER (a listener's) or DEALER (a dialler's) and the links over it, driven by the loop.
// A link is found by its peer's routing id; on a DEALER the id is empty and there is at most one link.
// Thread: the loop's. Held by shared_ptr: pending waits keep it alive after Close.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/handler_memory.h"
#include "common/loop.h"
#include "common/recycled_queue.h"
#include "common/transport/link.h"
#include "common/transport/sockets.h"
#include "common/transport/zmq_frames.h"

namespace tally {

class ZmqSocket;

// What the sockets of one transport share. Outlives them; the ZeroMQ context ends with it.
class ZmqShared {
 public:
  ZmqShared(EventLoop* loop, BufferPool* pool, const LinkOptions& options);
  ~ZmqShared();

  EventLoop* const loop;
  BufferPool* const pool;
  const LinkOptions options;
  void* const context;
  OutFrames out;
  PartHolder parts;
  std::uint64_t next_monitor = 0;  // a name for each socket's monitor

  // Releases of frames that are written, in order, not yet run.
  void Finish(ZmqLink* link, Release release) { finished_.PushBack() = {link, release}; }
  void RunFinished();
  void RunFinishedOf(ZmqLink* link);

 private:
  struct Finished {
    ZmqLink* link;
    Release release;
  };
  RecycledQueue<Finished> finished_;
};

class ZmqLink final : public Link {
 public:
  ZmqLink(std::shared_ptr<ZmqSocket> socket, std::string routing_id, const LinkIdentity& peer, int descriptor,
          bool paced);
  ~ZmqLink() override { Close(); }

  Status Send(const FrameHeader& header, std::span<const std::byte> payload, Release on_release) override;
  void Close() override;
  void PauseReceive(bool paused) override;
  const LinkIdentity& peer() const override { return peer_; }
  std::string Describe() const override;
  std::uint64_t queued_bytes() const override { return queued_bytes_; }
  const LinkStats& stats() const override { return stats_; }

 private:
  friend class ZmqSocket;
  friend class ZmqShared;

  std::shared_ptr<ZmqSocket> socket_;  // null once closed
  const std::string routing_id_;
  const LinkIdentity peer_;
  const int descriptor_;  // ZeroMQ's: to name, and to end, the connection
  const std::string local_address_;
  const std::string remote_address_;
  const bool paced_;
  LinkStats stats_;

  RecycledQueue<OutFrame*> queue_;  // not yet in ZeroMQ's hands
  std::size_t in_flight_ = 0;    // frames in its hands
  std::uint64_t in_flight_bytes_ = 0;
  std::uint64_t queued_bytes_ = 0;  // both
  EventLoop::TimerId pace_timer_ = 0;
  bool gone_ = false;  // the connection is; OnClosed follows

  bool paused_ = false;
  std::deque<Frame> held_;  // arrived while paused
  std::uint64_t held_bytes_ = 0;
};

class ZmqSocket : public std::enable_shared_from_this<ZmqSocket> {
 public:
  class Owner {
   public:
    // A well-formed frame of a peer without a link, from connection `descriptor`.
    virtual void OnStranger(const std::string& routing_id, int descriptor, const FrameHeader& header,
                            std::span<const std::byte> payload) = 0;
    virtual void OnRejected(const Status& why) = 0;
    // DEALER without a link: the connection failed or ended.
    virtual void OnDisconnected(const std::string& why) = 0;

   protected:
    ~Owner() = default;
  };

  // `type`: ZMQ_ROUTER or ZMQ_DEALER.
  ZmqSocket(ZmqShared* shared, int type, Owner* owner);
  ~ZmqSocket();

  // ROUTER: serves a listening socket. Errors: kUnavailable.
  Status Bind(UniqueFd listening, const std::string& address);
  // DEALER: connects to "host:port", both numeric.
  Status Connect(const std::string& address);

  // Sends a handshake frame. Errors: kUnavailable.
  Status SendHandshake(const std::string& routing_id, const FrameHeader& header, std::vector<std::byte> payload);
  std::unique_ptr<ZmqLink> MakeLink(const std::string& routing_id, const LinkIdentity& peer, int descriptor,
                                    bool paced);
  // ROUTER: lets a peer go that gets no link, or no more: its frames are discarded unparsed, its connection is ended
  // `after` a while.
  void Fence(const std::string& routing_id, int descriptor, Nanos after);

  void SetOwner(Owner* owner) { owner_ = owner; }
  // Closes every link without a callback, then the socket. Every release has run.
  void Close();
  bool closed() const { return socket_ == nullptr; }

 private:
  friend class ZmqLink;
  friend class ZmqShared;
  using Watch = boost::asio::posix::stream_descriptor;
  struct Arrived {
    std::string routing_id;
    ZmqPart head;
    ZmqPart payload;
    bool well_formed = true;
  };
  struct Stranger {
    std::string remote_address;
    EventLoop::TimerId timer = 0;
  };

  bool router() const { return type_ == ZMQ_ROUTER; }
  void Start();
  void Arm(Watch& watch, bool* armed, void (ZmqSocket::*handle)());
  void ScheduleTurn();
  void Turn();
  int Events();
  bool MayReceive();
  bool Receive(Arrived* arrived);
  void Dispatch(Arrived& arrived);
  void DispatchToLink(ZmqLink& link, Arrived& arrived);
  void DispatchFromStranger(Arrived& arrived);
  void Deliver(ZmqLink& link, Frame& frame);
  void DeliverHeld(const std::string& routing_id);
  Status ReadFrame(Arrived& arrived, std::size_t max_header, std::uint64_t max_payload, FrameHeader* header);

  void OnMonitor();
  void OnAccepted(int descriptor);
  void OnGone(int descriptor, const std::string& why);
  void GoneSoon(ZmqLink& link, int rounds, int patience);
  void EndConnection(int descriptor, const std::string& remote_address);

  void Enqueue(ZmqLink& link, const FrameHeader& header, std::span<const std::byte> payload, Release on_release);
  void Pump(ZmqLink& link);
  bool MayHand(ZmqLink& link);

  void Fail(const std::string& routing_id, const Status& why);
  void Drop(ZmqLink& link);
  bool WaitForReturns(ZmqLink& link, Nanos limit);
  void Detach(ZmqLink& link, const Status& goodbye);
  void CloseSocket(bool linger);

  ZmqShared* const shared_;
  const int type_;
  Owner* owner_;
  void* socket_ = nullptr;
  void* monitor_ = nullptr;
  Watch watch_;
  Watch monitor_watch_;
  bool watch_armed_ = false;
  bool monitor_armed_ = false;
  bool turn_posted_ = false;
  const std::shared_ptr<HandlerMemory> watch_memory_ = std::make_shared<HandlerMemory>();
  const std::shared_ptr<HandlerMemory> monitor_memory_ = std::make_shared<HandlerMemory>();
  const std::shared_ptr<HandlerMemory> turn_memory_ = std::make_shared<HandlerMemory>();
  FrameHeader header_out_;
  Frame arriving_;  // being delivered; its header keeps its memory
  EventLoop::TimerId read_timer_ = 0;
  std::uint64_t held_bytes_ = 0;  // by all links
  std::deque<Arrived> backlog_;   // received while a closing link waited
  std::unordered_map<std::string, ZmqLink*> links_;
  std::unordered_map<std::string, int> fenced_;     // routing id -> connection
  std::unordered_map<int, Stranger> strangers_;     // connections without hello
  std::unordered_map<int, std::string> by_descriptor_;  // -> routing id of its link
};

}  // namespace tally
