// Egress: one process's way out. Frames for all links leave in the order in which they were given, with at most a window
// of bytes in the transports' hands at a time. Many flows that share a NIC from the start get unequal shares of it, and
// a step ends with its slowest flow; one after the other in send order (SendOrder), few receivers have two senders at
// once. Links in memory share no NIC: their frames go at once. Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/buffer.h"
#include "common/frame.h"
#include "common/transport/link.h"

namespace tally {

class Egress {
 public:
  explicit Egress(std::uint64_t window_bytes) : window_bytes_(window_bytes) {}

  // Queues or sends. `hold` keeps `payload` alive; it goes when the link has let go of the frame. A dead link drops it.
  void Send(Link* link, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold);
  // Forgets what is queued for a link that is about to go.
  void Drop(const Link* link);
  void DropAll();

  std::uint64_t queued_bytes() const;
  std::uint64_t queued_bytes(const Link* link) const;  // for that one

 private:
  // One frame: queued, then in a link's hands until its release. Recycled with its header's memory.
  struct Entry {
    Egress* egress = nullptr;
    Link* link = nullptr;               // null: dropped while queued
    std::uint64_t* queued = nullptr;    // its link's count
    FrameHeader header;
    std::span<const std::byte> payload;
    BufferRef hold;
    Entry* next = nullptr;
  };
  void Pump();
  void Issue(Entry* entry);
  void Recycle(Entry* entry);
  Entry* PopFront();
  static void Released(void* entry, std::uint64_t);

  std::uint64_t window_bytes_;
  std::uint64_t unreleased_bytes_ = 0;
  Entry* first_ = nullptr;     // the queue
  Entry* last_ = nullptr;
  Entry* idle_ = nullptr;
  std::map<const Link*, std::uint64_t> queued_;  // bytes, of links that were ever sent on and not dropped
  std::vector<std::unique_ptr<Entry>> entries_;  // all ever made
  bool pumping_ = false;
};

}  // namespace tally
