// Nodes: which positions share a machine, and which of a node's positions carries a slab between nodes. Pure; equal on
// every member because it is made from the published epoch alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/control.h"
#include "common/units.h"

namespace tally {

class Nodes {
 public:
  // Nodes are numbered by their first position, positions rise within a node. A worker without a node key is alone.
  explicit Nodes(std::span<const Member> members);
  Nodes() = default;

  std::uint32_t count() const { return static_cast<std::uint32_t>(nodes_.size()); }
  std::span<const Position> positions(std::uint32_t node) const { return nodes_[node]; }
  std::uint32_t node_of(Position position) const { return node_of_[position.value]; }
  // Some positions share a node. Node stages then stand around exchanges whose positions are nodes; where they do not, and
  // of no nodes at all, the three below are those of the workers themselves.
  bool shared() const { return count() < node_of_.size(); }
  std::uint32_t exchange_positions(std::uint32_t workers) const { return shared() ? count() : workers; }
  // What a worker's frames of such an exchange speak for.
  std::uint32_t speaks_for(Position worker) const { return shared() ? node_of(worker) : worker.value; }
  // Who stands there for a position of such an exchange.
  Position worker_at(std::uint32_t slab, Position p) const { return shared() ? carrier(slab, p.value) : p; }

  // Of which ranks share a node, wherever nodes stand; never 0. It tells who carries what, as ranks of a node stand in
  // their order.
  std::uint32_t digest() const { return digest_; }
  // Place among the positions of its node.
  std::uint32_t local_rank(Position position) const { return local_rank_[position.value]; }

  // Slab u of node m is carried by local rank (u div M) mod L_m, M nodes, L_m positions on node m: with the slabs of any
  // one owner (u mod M) every local rank has work.
  Position carrier(std::uint32_t slab, std::uint32_t node) const {
    const std::vector<Position>& local = nodes_[node];
    return local[slab / count() % local.size()];
  }
  // Slabs of the same lane have the same carrier on every node. 0 where lanes are too many to number: each slab is then
  // its own.
  std::uint32_t lanes() const { return lanes_; }
  std::uint32_t lane(std::uint32_t slab) const { return lanes_ == 0 ? slab : slab / count() % lanes_; }

 private:
  std::vector<std::vector<Position>> nodes_;
  std::vector<std::uint32_t> node_of_, local_rank_;
  std::uint32_t lanes_ = 1;  // least common multiple of all L_m
  std::uint32_t digest_ = 1;
};

}  // namespace tally
