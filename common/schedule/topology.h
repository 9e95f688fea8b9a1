// Topology: the order of positions that keeps neighbours on one node, then below one switch, and what an order costs.
// Pure. A switch path names switches from the top down, "spine1/leaf3"; the last one is the node's own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::size_t kMaxSwitchPathBytes = 128;

// Errors: kInvalidArgument: longer than that, not printable ASCII, or an empty part ("a//b", "/a").
Status CheckSwitchPath(std::string_view path);

// Where a member is, by rank.
struct Placed {
  std::string node;         // equal: shares memory
  std::string switch_path;  // "": not known
};

// Ranks by position: first those that share the topmost switch with the least rank, and so on down to the node; ranks of
// one node rise, and so do the least ranks of nodes and of switches among their equals. A node is where its least rank
// says. With one node, or one rank on each and no switches, the order of ranks.
std::vector<std::uint32_t> OrderPositions(std::span<const Placed> members);

// Edges from each position to the next, around.
struct RingEdges {
  std::uint32_t leave_node = 0;    // of all that many lead to another node
  std::uint32_t leave_switch = 0;  // of those, that many to another switch
};
RingEdges CountEdges(std::span<const Placed> members, std::span<const std::uint32_t> order);

// A ring through all members whose least bandwidth is as large as can be found: a bottleneck tour.
struct Tour {
  std::vector<std::uint32_t> order;  // begins with 0
  double least = 0;                  // bandwidth of its slowest edge
  double bound = 0;                  // no tour's slowest edge is faster
  bool optimal() const { return least >= bound; }
};
// `bandwidth[i * n + j]`: from i to j, of which the less of both directions counts. n <= 16: exact (dynamic programming
// over subsets for each threshold). Beyond: for thresholds from the bound down, rotations of paths (Pósa 1976) look for
// a tour and may miss one; `bound` (each member has two edges that fast, and no member cuts the rest apart) then says how
// much that can have cost. The order of indices is kept where it is as good.
// Errors: kInvalidArgument: not n * n numbers of 0 or more, n = 0 or more than 4096.
Result<Tour> BottleneckTour(std::span<const double> bandwidth, std::uint32_t n);
// The slowest edge of an order.
double LeastBandwidth(std::span<const double> bandwidth, std::span<const std::uint32_t> order);

}  // namespace tally
