#include "server/core/positions.h"

#include <algorithm>
#include <string>

namespace tally {

Result<Positions> Positions::Make(std::span<const Member> members) {
  const auto workers = static_cast<std::size_t>(std::ranges::count(members, Role::kWorker, &Member::role));
  Positions all;
  all.ranks_.resize(workers);
  all.positions_.resize(workers);
  std::vector<bool> position_seen(workers, false), rank_seen(workers, false);
  for (const Member& member : members) {
    if (member.role != Role::kWorker) continue;
    const std::uint32_t position = member.position.value;
    if (position >= workers || position_seen[position] || member.index >= workers || rank_seen[member.index]) {
      return Corrupt("the epoch puts " + Describe(member) + " at position " + std::to_string(position) + " of " +
                     std::to_string(workers) + ": ranks and positions are 0, 1, …, each once");
    }
    position_seen[position] = rank_seen[member.index] = true;
    all.ranks_[position] = Rank(member.index);
    all.positions_[member.index] = member.position;
  }
  return all;
}

std::string NameOf(const SpeakerOf& speaker, std::uint32_t slab, Position p) {
  return "rank " + std::to_string(speaker ? speaker(slab, p).value : p.value);
}

Status CheckCarries(const Nodes& nodes, const Positions& positions, Rank sender, std::span<const std::uint32_t> slabs) {
  if (!nodes.shared()) return Status::Ok();
  const std::uint32_t node = nodes.node_of(positions.position(sender));
  for (const std::uint32_t u : slabs) {
    const Rank carrier = positions.rank(nodes.carrier(u, node));
    if (carrier == sender) continue;
    return Corrupt("slab " + std::to_string(u) + " of its node from rank " + std::to_string(sender.value) +
                   ", expected from rank " + std::to_string(carrier.value) + ", which carries it");
  }
  return Status::Ok();
}

}  // namespace tally
