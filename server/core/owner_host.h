// OwnerHost: the owners that live in one process, one per group, and the way of their replies: to every worker's link,
// and for the worker that it lives in straight into a function. Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/config/config.h"
#include "common/control.h"
#include "common/transport/link.h"
#include "server/core/group_tables.h"
#include "server/core/owner.h"
#include "server/core/positions.h"

namespace tally {

class OwnerHost {
 public:
  struct Options {
    OwnerRef self;
    std::uint64_t job_hash = 0;
    std::uint64_t incarnation = 0;
    std::uint32_t workers = 1;               // contributors: with node stages as many as there are nodes
    std::uint32_t senders = 0;               // processes that push here, each with a credit of its own; 0: `workers`
    // Whether this member carries the slab, where the owner of the table is a node and several members stand for it.
    // Unset: it owns what the table says.
    std::function<bool(std::uint32_t slab)> carries;
    SpeakerOf speaker{};                     // whom errors name
    std::uint64_t memory_cap_bytes = 0;  // 0 = none
    // Sends a reply to a remote position; `slab` picks among several links.
    std::function<void(Position, std::uint32_t slab, const FrameHeader&, std::span<const std::byte>, BufferRef)> send;
    // The worker that this host lives in, if any: takes its replies directly.
    bool has_local = false;
    Position local;
    std::function<void(const FrameHeader&, std::span<const std::byte>, BufferRef)> deliver_local;
  };
  OwnerHost(Options options, BufferPool* pool);

  // Makes the group's owner if any slab is owned here. Errors: kUnavailable when it does not fit the memory cap (needed
  // and allowed bytes named).
  Status AddGroup(std::shared_ptr<const GroupTables> tables, const Config& job);
  std::uint32_t workers() const { return options_.workers; }
  bool owns(GroupId group) const { return groups_.contains(group.value); }

  // A push from a link, or from this process's own worker. Replies are sent before it returns.
  // Errors: kCorrupt, kMismatch: the sender broke the protocol. A stale or repeated frame is no error.
  Status OnPush(Frame& frame);
  void OnVerdict(const VerdictMessage& verdict);

  // "group default: slab 17 … misses ranks 2"; empty if nothing is waited for.
  std::string Missing() const;
  Owner::Stats stats() const;
  double ResidualL1() const;
  // Of the slabs that are owned here in the open step; null if none are.
  Owner* owner(GroupId group) const;

 private:
  // What is owned of a group from a step on.
  struct Stage {
    std::shared_ptr<const GroupTables> tables;
    std::vector<std::uint32_t> slabs;
    std::uint64_t dense_bytes = 0, residual_bytes = 0;
  };
  struct Hosted {
    std::vector<Stage> stages;     // by first step
    std::size_t stage = 0;         // that holds
    OwnerOptions options;
    std::unique_ptr<Owner> owner;  // of that stage, null if it owns no slab here
    Owner::Stats ended;            // of the owners before it

    bool last() const { return stage + 1 == stages.size(); }
    StepId next_first_step() const { return StepId(stages[stage + 1].tables->first_step); }
  };
  Stage Gather(std::shared_ptr<const GroupTables> tables, bool error_feedback) const;
  void MakeOwner(Hosted* hosted, StepId first_step, std::optional<bool> previous_committed) const;
  void BeginNextStage(Hosted* hosted, std::optional<bool> previous_committed) const;
  Status BeginStageOf(const FrameHeader& header, Hosted* hosted) const;
  void EndStep(Hosted* hosted, StepId step, bool commit) const;
  void SendReply(ReplyFrame& reply);

  Options options_;
  BufferPool* pool_;
  std::map<std::uint32_t, Hosted> groups_;  // those of which any stage owns a slab
  RecycledList<ReplyFrame> replies_;
  std::uint64_t owned_bytes_ = 0;
};

}  // namespace tally
