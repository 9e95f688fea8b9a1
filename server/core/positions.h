// Positions: which rank stands at which position of an epoch. Frames, owners and schedules count in positions; links,
// saved state and people know ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/control.h"
#include "common/schedule/nodes.h"
#include "common/status.h"

namespace tally {

class Positions {
 public:
  Positions() = default;  // nothing is known: positions as ranks
  // Errors: kCorrupt unless the workers' positions are 0 to N-1, each once, and so are their ranks.
  static Result<Positions> Make(std::span<const Member> members);

  std::uint32_t count() const { return static_cast<std::uint32_t>(ranks_.size()); }
  std::span<const Rank> ranks() const { return ranks_; }  // by position
  Rank rank(Position p) const { return p.value < count() ? ranks_[p.value] : Rank(p.value); }
  Position position(Rank r) const { return r.value < count() ? positions_[r.value] : Position(r.value); }

 private:
  std::vector<Rank> ranks_;
  std::vector<Position> positions_;  // by rank
};

// Which rank speaks for a position of an exchange in what concerns a slab: with node stages whoever carries it on that
// node. For errors; unset: positions as ranks.
using SpeakerOf = std::function<Rank(std::uint32_t slab, Position p)>;

// "rank 3".
std::string NameOf(const SpeakerOf& speaker, std::uint32_t slab, Position p);

// With node stages frames between nodes are the carriers' (Nodes::carrier). Errors: kCorrupt naming the slab and who
// carries it on the sender's node, unless the sender carries all of these.
Status CheckCarries(const Nodes& nodes, const Positions& positions, Rank sender, std::span<const std::uint32_t> slabs);

}  // namespace tally
