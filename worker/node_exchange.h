// NodeExchange: node stages around an exchange between nodes (DESIGN §2, aggregation.local). Inside a node each slab is
// summed by the position that carries it, reading the others' inputs where they lie; between nodes the carriers exchange
// the nodes' sums, and the mean is written once into the node's result buffer. Where memory is not shared, frames carry
// the numbers. Sums go in local-rank order, then in that of the exchange between. Thread: the loop's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/recycled_list.h"
#include "common/reduce/reduce.h"
#include "common/schedule/nodes.h"
#include "worker/exchange.h"
#include "worker/node_share.h"

namespace tally {

// Where the numbers of a group lie that the processes of a node may share.
struct NodePlaces {
  const Nodes* nodes = nullptr;
  const NodeShare* share = nullptr;
  std::span<const std::uint64_t> tensor_offset;  // bytes, per tensor of the layout, in both of the following
  std::byte* inputs = nullptr;                   // this process's
  std::byte* results = nullptr;                  // the node's, or this process's own
};

class NodeExchange final : public Exchange, private ExchangeEnvironment {
 public:
  // `places`, but for its nodes, is filled in before the first step. Of buckets first_bucket, …, end_bucket - 1.
  NodeExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables, std::uint32_t first_bucket,
               std::uint32_t end_bucket, const NodePlaces* places, BufferPool* pool, ExchangeEnvironment* environment);

  // The exchange between nodes, made with this as its environment; none if there is one node only.
  ExchangeEnvironment* between_environment() { return this; }
  void SetBetween(std::unique_ptr<Exchange> between) { between_ = std::move(between); }

  void BeginStep(StepId step, std::uint16_t verdict_flags, double declared_weight,
                 const CollectiveShape& collective) override;
  Status StartBucket(std::uint32_t bucket) override;
  Status OnFrame(Frame& frame) override;
  Status Continue() override;
  bool Draining() override { return between_ != nullptr && between_->Draining(); }
  std::string Missing(std::size_t max_items) const override;

 private:
  // A local rank's part of a slab that this position carries.
  struct Part {
    Term term;
    BufferRef hold;
    bool arrived = false, kept = false;
  };
  struct Carried {
    std::uint32_t slab = 0;
    std::uint32_t arrived = 0, kept = 0;
  };

  // ExchangeEnvironment, for the exchange between nodes.
  const float* Input(std::uint32_t slab) override { return Place(slab); }
  float Factor(std::uint32_t) override { return 1; }
  bool Kept(std::uint32_t slab) override;
  bool Absent(std::uint32_t) override { return false; }
  float* Output(std::uint32_t slab) override { return Place(slab); }
  void SlabDone(std::uint32_t slab, Delivered delivered) override;
  Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
              BufferRef hold) override;
  void ContinueSoon() override { environment_->ContinueSoon(); }

  std::uint32_t size() const { return static_cast<std::uint32_t>(local_.size()); }
  const Slab& SlabOf(std::uint32_t u) const { return tables_->layout.slabs[u]; }
  std::uint64_t Offset(std::uint32_t u) const;
  float* Place(std::uint32_t u) const { return reinterpret_cast<float*>(places_->results + Offset(u)); }
  std::uint32_t CarrierOf(std::uint32_t u) const;  // local rank
  const NodeShare::Peer& PeerOf(std::uint32_t local) const;
  std::string Name(Position worker) const { return NameOf(options_.speaker, 0, worker); }
  Part& PartOf(std::uint32_t carried, std::uint32_t local) { return parts_[carried * size() + local]; }

  void PrepareFrame(FrameKind kind, std::uint32_t bucket);
  Status SendTo(std::uint32_t local, std::span<const std::byte> payload, BufferRef hold, std::uint16_t flags);
  Status PushTo(std::uint32_t local, std::uint32_t bucket);
  Status PushNumbers(std::uint32_t local, std::span<const std::uint32_t> slabs);
  void TakeOwn(std::uint32_t u);
  void Take(std::uint32_t carried, std::uint32_t local, Part part);
  Status OnPush(Frame& frame);
  Status OnReply(Frame& frame);
  Status NoteWeight(std::uint32_t local, double weight);
  Status Advance();
  void Sum(std::uint32_t carried);
  Status StartBetween();
  Status SendReplies();
  void Deliver(std::uint32_t u, Delivered delivered);
  double TotalWeight() const;

  const ExchangeOptions options_;
  const std::shared_ptr<const GroupTables> tables_;
  const NodePlaces* const places_;
  BufferPool* const pool_;
  ExchangeEnvironment* const environment_;
  std::unique_ptr<Exchange> between_;
  const std::uint32_t first_bucket_, end_bucket_;

  std::vector<Position> local_;  // this node's positions
  std::uint32_t self_ = 0;       // local rank
  std::vector<std::uint32_t> carried_of_slab_;
  std::vector<std::vector<std::vector<std::uint32_t>>> bucket_slabs_;  // per bucket and carrier (local rank)
  std::vector<std::vector<std::uint32_t>> bucket_carried_;             // per bucket: indices into carried_
  std::vector<bool> streams_;        // per bucket: its numbers are written past the cache
  std::vector<float> zeros_;

  // Of the open step.
  FrameHeader header_;
  StepId step_;
  std::uint16_t verdict_flags_ = 0;
  CollectiveShape collective_;
  std::vector<std::optional<double>> weights_;  // per local rank, once known
  std::vector<Carried> carried_;
  std::vector<Part> parts_;
  std::vector<bool> started_;        // per bucket: this position has
  std::vector<std::uint32_t> open_;  // per bucket: carried slabs that lack a part
  std::uint32_t next_sum_ = 0;       // first bucket whose carried slabs are not summed
  bool between_begun_ = false;
  std::vector<bool> done_;           // per slab
  RecycledList<Frame> early_;        // of the exchange between, before it has begun
  std::uint64_t early_bytes_ = 0;
  struct Ready {
    std::uint32_t slab;
    Delivered delivered;
  };
  std::vector<Ready> ready_;         // done by this carrier, not yet told
  std::vector<std::uint32_t> run_;   // of slabs for one frame
  std::vector<Term> terms_;
};

}  // namespace tally
