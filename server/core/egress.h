// Egress: one process's way out. Frames for all links leave in the order in which they were given, with at most a window
// of bytes in the transports' hands at a time. Many flows that share a NIC from the start get unequal shares of it, and
// a step ends with its slowest flow; one after the other in send order (SendOrder), no receiver has two senders at once.
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <deque>
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
  void DropAll() { queue_.clear(); }

  std::uint64_t queued_bytes() const;

 private:
  struct Entry {
    Link* link;
    FrameHeader header;
    std::span<const std::byte> payload;
    BufferRef hold;
  };
  struct Flight {
    Egress* egress = nullptr;
    std::uint64_t bytes = 0;
    BufferRef hold;
  };
  void Pump();
  void Issue(Link* link, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold);
  static void Released(void* flight, std::uint64_t);

  std::uint64_t window_bytes_;
  std::uint64_t unreleased_bytes_ = 0;
  std::deque<Entry> queue_;
  std::vector<std::unique_ptr<Flight>> flights_;  // all ever made
  std::vector<Flight*> idle_;
  bool pumping_ = false;
};

}  // namespace tally
