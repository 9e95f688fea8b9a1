#include "common/schedule/topology.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace tally {
namespace {

struct Node {
  std::vector<std::uint32_t> ranks;
  std::vector<std::string_view> switches;  // from the top
};

std::vector<std::string_view> SplitPath(std::string_view path) {
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    parts.push_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return parts;
}

// Appends the ranks of `nodes`, which rise by their least rank and share `depth` switches.
void Arrange(const std::vector<const Node*>& nodes, std::size_t depth, std::vector<std::uint32_t>* order) {
  std::vector<std::vector<const Node*>> groups;
  std::map<std::string_view, std::size_t> group_of;
  for (const Node* node : nodes) {
    if (node->switches.size() == depth) {  // at this switch itself
      groups.push_back({node});
      continue;
    }
    const auto [found, added] = group_of.try_emplace(node->switches[depth], groups.size());
    if (added) groups.emplace_back();
    groups[found->second].push_back(node);
  }
  for (const std::vector<const Node*>& group : groups) {
    if (group.front()->switches.size() == depth) {
      order->insert(order->end(), group.front()->ranks.begin(), group.front()->ranks.end());
    } else {
      Arrange(group, depth + 1, order);
    }
  }
}

}  // namespace

Status CheckSwitchPath(std::string_view path) {
  const bool printable = std::ranges::all_of(path, [](char c) { return c > ' ' && c <= '~'; });
  const auto parts = SplitPath(path);
  const bool whole = std::ranges::none_of(parts, [](std::string_view part) { return part.empty(); });
  if (path.size() <= kMaxSwitchPathBytes && printable && whole && !path.ends_with('/')) return Status::Ok();
  return InvalidArgument("a switch path is at most " + std::to_string(kMaxSwitchPathBytes) +
                         " printable characters without spaces, names of switches from the top down, as spine1/leaf3");
}

std::vector<std::uint32_t> OrderPositions(std::span<const Placed> members) {
  std::vector<Node> nodes;
  std::map<std::string_view, std::size_t> node_of;
  for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
    const auto [found, added] = node_of.try_emplace(members[rank].node, nodes.size());
    // A member that cannot say where it is shares memory with nobody.
    if (added || members[rank].node.empty()) {
      if (!added) found->second = nodes.size();
      nodes.push_back({{}, SplitPath(members[rank].switch_path)});
    }
    nodes[found->second].ranks.push_back(rank);
  }
  std::vector<const Node*> by_least_rank;
  for (const Node& node : nodes) by_least_rank.push_back(&node);
  std::vector<std::uint32_t> order;
  order.reserve(members.size());
  Arrange(by_least_rank, 0, &order);
  return order;
}

RingEdges CountEdges(std::span<const Placed> members, std::span<const std::uint32_t> order) {
  RingEdges edges;
  for (std::size_t i = 0; order.size() > 1 && i < order.size(); ++i) {
    const Placed& from = members[order[i]];
    const Placed& to = members[order[(i + 1) % order.size()]];
    if (from.node == to.node && !from.node.empty()) continue;
    ++edges.leave_node;
    if (from.switch_path != to.switch_path) ++edges.leave_switch;
  }
  return edges;
}

}  // namespace tally
