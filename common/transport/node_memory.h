// NodeMemory: how processes of one node come to see each other's arenas. Each answers on an abstract unix socket, which
// goes with its process; a peer of the same user asks for an arena by its group and gets the descriptor. Nothing has a
// name in a file system, so nothing is left behind by a process that is killed.
// Thread: the EventLoop's only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/arena.h"
#include "common/loop.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

inline constexpr std::string_view kNodeMemoryScheme = "memfd://";

enum class ArenaKind : std::uint8_t { kInputs = 0, kResults = 1 };

struct ArenaRequest {
  std::uint64_t job_hash = 0;
  EpochId epoch;
  GroupId group;
  ArenaKind kind = ArenaKind::kInputs;
  Position position;           // of the asker
  bool shares_result = false;  // the asker has mapped the node's results
};

class NodeMemory {
 public:
  explicit NodeMemory(EventLoop* loop);
  ~NodeMemory();

  // Binds; returns the endpoint to publish, "memfd://…". Errors: kUnavailable.
  Result<std::string> Listen();

  // From now on peers of this job and epoch get the arena; who asked before is answered now. The arena must outlive this.
  // `taken` runs each time a peer has mapped it, or has gone without (false).
  using Taken = std::function<void(const ArenaRequest&, bool mapped)>;
  void Offer(const ArenaRequest& what, const Arena* arena, Taken taken);

  // Maps what the peer at `endpoint` offers, `bytes` long, and tells it so. `done` runs once, later. Errors: kTimeout,
  // kUnavailable (not there, another user, no memory), kMismatch, kCorrupt. If this is destroyed first, `done` never runs.
  using Done = std::function<void(Result<Mapping>)>;
  void Fetch(std::string_view endpoint, const ArenaRequest& what, std::uint64_t bytes, bool writable, Nanos deadline,
             Done done);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally
