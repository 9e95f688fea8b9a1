#include "common/schedule/nodes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

namespace tally {
namespace {

// FNV-1a, 32 bits, over the node of each worker by rank, nodes numbered by their first rank: positions do not count.
std::uint32_t Digest(std::span<const Member* const> by_rank, std::span<const std::uint32_t> node_of) {
  std::uint32_t hash = 0x811C9DC5u;
  std::map<std::uint32_t, std::uint32_t> numbers;
  for (const Member* worker : by_rank) {
    const std::uint32_t number = static_cast<std::uint32_t>(numbers.size());
    const std::uint32_t node = numbers.try_emplace(node_of[worker->position.value], number).first->second;
    for (std::uint32_t shift = 0; shift < 32; shift += 8) hash = (hash ^ (node >> shift & 0xFF)) * 0x01000193u;
  }
  return hash | 1;
}

}  // namespace

Nodes::Nodes(std::span<const Member> members) {
  std::vector<const Member*> workers;
  for (const Member& member : members) {
    if (member.role == Role::kWorker) workers.push_back(&member);
  }
  std::ranges::sort(workers, {}, [](const Member* m) { return m->position; });
  node_of_.resize(workers.size());
  local_rank_.resize(workers.size());
  std::map<std::string, std::uint32_t> known;
  for (std::uint32_t p = 0; p < workers.size(); ++p) {
    std::uint32_t node = count();
    if (!workers[p]->node.empty()) node = known.try_emplace(workers[p]->node, node).first->second;
    if (node == count()) nodes_.emplace_back();
    node_of_[p] = node;
    local_rank_[p] = static_cast<std::uint32_t>(nodes_[node].size());
    nodes_[node].push_back(Position(p));
  }
  std::ranges::sort(workers, {}, [](const Member* m) { return m->index; });
  digest_ = Digest(workers, node_of_);
  constexpr std::uint64_t kMaxLanes = 1u << 20;
  std::uint64_t lanes = 1;
  for (const auto& node : nodes_) {
    lanes = std::lcm(lanes, static_cast<std::uint64_t>(node.size()));
    if (lanes > kMaxLanes) {
      lanes_ = 0;
      return;
    }
  }
  lanes_ = static_cast<std::uint32_t>(lanes);
}

}  // namespace tally
