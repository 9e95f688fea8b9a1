// What the event simulation keeps of a message, a lane and a slab. Included by simulate.cc only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tally::simulation {

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

enum class Kind : std::uint8_t { kLocalPart, kPartial, kTotal, kPush, kReply, kLocalTotal };
// What happens at one moment, in this order: then only keys decide who is first at a link. A message's head reaches its
// first link with kLane, the others with kHop and what follows it.
enum class EventType : std::uint8_t { kDeliver, kLane, kHop };

// A chunk on its way. Owners are numbered servers first, then positions.
struct Message {
  Kind kind = Kind::kPush;
  std::uint8_t hops = 0, hop = 0;
  std::array<std::uint32_t, 4> links;
  std::uint32_t owner = 0, chunk = 0, from = 0, to = 0;
  std::uint32_t next = kNone;  // in its lane, or free
  std::uint64_t key = 0;       // orders what happens at one moment, alike for what symmetry maps onto each other
  double bytes = 0, left = 0;  // left: when its tail was through the last link
};

struct Event {
  double at = 0;
  std::uint64_t key = 0;
  EventType type = EventType::kDeliver;
  std::uint32_t what = 0;  // message or lane
  bool operator>(const Event& other) const {
    if (at != other.at) return at > other.at;
    if (type != other.type) return type > other.type;
    return key > other.key;
  }
};

// Where a process puts messages of one kind of way (inside its host, through the NIC): one is in service at a time.
struct Lane {
  std::uint32_t head = kNone, tail = kNone;  // ready
  bool busy = false;
  std::uint64_t fresh = 0;  // place in the order of slabs that the process starts by itself
};

// What a position has done for a slab: arrivals by step of its program, steps done, whether its own sum is there.
// One word, because there are millions of them.
class Progress {
 public:
  static constexpr std::size_t kMaxSteps = 57;
  bool begun() const { return bits_ >> 63 != 0; }
  void Begin() { bits_ |= std::uint64_t{1} << 63; }
  std::size_t next() const { return bits_ >> kMaxSteps & 63; }
  void Step() { bits_ += std::uint64_t{1} << kMaxSteps; }
  bool arrived(std::size_t step) const { return (bits_ >> step & 1) != 0; }
  void Arrive(std::size_t step) { bits_ |= std::uint64_t{1} << step; }

 private:
  std::uint64_t bits_ = 0;
};

}  // namespace tally::simulation
