// NodeShare: what the processes of one node see of each other's memory in one group: everybody's inputs, and one result
// buffer, which the node's first position makes. Whoever cannot map it (another user, no memory, link.shm = off) goes
// without; the sums are the same, through frames. Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/arena.h"
#include "common/transport/node_memory.h"

namespace tally {

class NodeShare {
 public:
  struct Peer {
    Position position;
    Rank rank;                   // for people
    std::string endpoint;        // empty: it shares nothing
    Mapping inputs;              // its own; empty: its numbers come in frames
    bool maps_inputs = false;    // it has mapped ours
    bool shares_result = false;  // what is in the node's result buffer need not be sent to it
    bool answered = false;       // has mapped our inputs or gone without
    std::string fault;           // why nothing is shared with it, if that is so
  };

  // `peers`: the node's other positions, rising.
  NodeShare(EventLoop* loop, NodeMemory* memory, const ArenaRequest& self, std::vector<Peer> peers);
  ~NodeShare();

  // `inputs` and, on the node's first position, `results` are offered; all as long as the group. Both have equally many
  // bytes on all of them. `done` runs later, when everybody has answered or `deadline` has passed.
  void Begin(const Arena* inputs, const Arena* results, Nanos deadline, std::function<void()> done);

  std::vector<Peer>& peers() { return peers_; }
  const std::vector<Peer>& peers() const { return peers_; }
  // The first position's result buffer, if this is another one and has mapped it.
  Mapping& results() { return results_; }
  // Result memory here is the node's.
  bool shares_result() const { return shares_result_; }
  // When `done` ran every input was mapped here, and the results are the node's. Any thread from then on.
  bool complete() const { return complete_; }
  // "rank 1: connection refused", for people; empty if all share everything.
  std::string Faults() const;

 private:
  Peer* Find(Position position);
  void FetchInputs();
  void Settle();
  void End();

  EventLoop* loop_;
  NodeMemory* memory_;
  ArenaRequest self_;
  std::vector<Peer> peers_;
  Mapping results_;
  bool shares_result_ = false, complete_ = false;
  std::size_t open_ = 0;  // answers that are awaited
  std::uint64_t bytes_ = 0;
  Nanos deadline_{};
  std::function<void()> done_;
  EventLoop::TimerId timer_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace tally
