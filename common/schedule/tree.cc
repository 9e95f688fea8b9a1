// Schedule `tree`: two binary trees over all positions; slabs of even owners use one, of odd owners the other, in which
// the inner positions of the first are leaves, but for one (Sanders, Speck and Träff 2009). Partial sums go along the
// tree to the slab's owner, wherever in it that stands, the result out from there. Rounds each way: max(L, 2L-3), L =
// ceil(log2 N). At most four neighbours and 2N+1 slabs sent by a position per stripe, where a ring sends 2(N-1).
#include <algorithm>
#include <bit>

#include "common/schedule/tree_program.h"

namespace tally {
namespace {

// A tree over 0, 1, …, n-1 by its numbers' lowest bits: odd ones are leaves, 0 is the root.
class BinaryTree {
 public:
  explicit BinaryTree(std::uint32_t n) : n_(n) {}

  // Of one that is not the root.
  std::uint32_t Parent(std::uint32_t r) const {
    const std::uint32_t bit = r & ~(r - 1);
    const std::uint32_t up = (r ^ bit) | bit << 1;
    return up < n_ ? up : r ^ bit;
  }

  // The neighbour of `from` that is nearest to `to`, another number.
  std::uint32_t Towards(std::uint32_t from, std::uint32_t to) const {
    while (to != 0) {
      const std::uint32_t parent = Parent(to);
      if (parent == from) return to;
      to = parent;
    }
    return Parent(from);
  }

  // The children first, then the parent.
  template <typename Visit>
  void ForNeighbours(std::uint32_t r, const Visit& visit) const {
    for (std::uint32_t bit = 1; bit < n_; bit <<= 1) {
      if (r >= bit && r != bit && Parent(r - bit) == r) visit(r - bit);
      if (r + bit < n_ && Parent(r + bit) == r) visit(r + bit);
    }
    if (r != 0) visit(Parent(r));
  }

 private:
  std::uint32_t n_;
};

// Numbers in the tree that a slab uses: in the second one odd positions are even. Mirrored for an even N, else shifted.
std::uint32_t ToTree(bool second, std::uint32_t position, std::uint32_t n) {
  return !second ? position : n % 2 == 0 ? n - 1 - position : (position + n - 1) % n;
}
Position FromTree(bool second, std::uint32_t number, std::uint32_t n) {
  return Position{!second ? number : n % 2 == 0 ? n - 1 - number : (number + 1) % n};
}

}  // namespace

void GenerateTree(Position owner, Position self, std::uint32_t positions, std::vector<ScheduleStep>* out) {
  out->clear();
  const bool second = owner.value % 2 != 0;
  const BinaryTree tree(positions);
  const std::uint32_t own = ToTree(second, self.value, positions);
  const std::uint32_t root = ToTree(second, owner.value, positions);
  const std::uint32_t towards = own == root ? positions : tree.Towards(own, root);
  tree.ForNeighbours(own, [&](std::uint32_t other) {
    if (other != towards) out->push_back({StepOp::kReceiveAdd, FromTree(second, other, positions)});
  });
  CompleteTreeProgram(own == root ? std::nullopt : std::optional(FromTree(second, towards, positions)), out);
}

std::uint64_t TreeBusiestLinkSlabs(std::uint32_t positions) { return positions > 1 ? positions : 0; }

// Pipelined: sums end anywhere in the trees (Sanders, Speck and Träff 2009).
double TreeSeconds(double bytes, double bytes_per_s, double alpha_s, std::uint32_t positions) {
  if (positions == 1) return 0;
  const double rounds = std::bit_width(positions - 1);
  return 2 * bytes / bytes_per_s + 2 * std::max(rounds, 2 * rounds - 3) * alpha_s;
}

}  // namespace tally
