// OwnerHost: the owners that live in one process, one per group, and the way of their replies: to every worker's link,
// and for the worker that it lives in straight into a function. Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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

namespace tally {

class OwnerHost {
 public:
  struct Options {
    OwnerRef self;
    std::uint64_t job_hash = 0;
    std::uint64_t incarnation = 0;
    std::uint32_t workers = 1;
    std::uint64_t memory_cap_bytes = 0;  // 0 = none
    // Sends a reply to a remote position; `slab` picks among several links.
    std::function<void(Position, std::uint32_t slab, const FrameHeader&, std::span<const std::byte>, BufferRef)> send;
    // The worker that this host lives in, if any: takes its replies directly.
    bool has_local = false;
    Position local;
    std::function<void(const FrameHeader&, std::span<const std::byte>, BufferRef)> deliver_local;
  };
  OwnerHost(Options options, BufferPool* pool);

  static constexpr StepId kLastStage{std::numeric_limits<std::uint64_t>::max()};

  // Makes the group's owner if any slab is owned here. Errors: kUnavailable when it does not fit the memory cap (needed
  // and allowed bytes named).
  Status AddGroup(std::shared_ptr<const GroupTables> tables, const Config& job);
  std::uint32_t workers() const { return options_.workers; }
  bool owns(GroupId group) const { return groups_.contains(group.value); }

  // A push from a link, or from this process's own worker. Replies are sent before it returns.
  // Errors: kCorrupt, kMismatch: the sender broke the protocol. A stale or repeated frame is no error.
  Status OnPush(Frame& frame);
  void OnVerdict(const VerdictMessage& verdict);

  // "group default: slab 17 … misses positions 2"; empty if nothing is waited for.
  std::string Missing() const;
  Owner::Stats stats() const;
  double ResidualL1() const;
  // Of the slabs that are owned here in a step, by default of those once the codec is as configured; null if none are.
  const Owner* owner(GroupId group, StepId step = kLastStage) const;
  Owner* owner(GroupId group, StepId step = kLastStage);

 private:
  // What is owned of a group from a step on.
  struct Stage {
    std::shared_ptr<const GroupTables> tables;
    std::vector<std::uint32_t> slabs;
    std::unique_ptr<Owner> owner;  // null without slabs
    std::uint64_t dense_bytes = 0, residual_bytes = 0;
  };
  using Stages = std::vector<Stage>;  // by first step
  Stage Gather(std::shared_ptr<const GroupTables> tables, bool error_feedback) const;
  static std::size_t StageAt(const Stages& stages, StepId step);
  static void EndStep(Stages* stages, StepId step, bool commit);
  void SendReply(ReplyFrame& reply);

  Options options_;
  BufferPool* pool_;
  std::map<std::uint32_t, Stages> groups_;  // those of which any stage owns a slab
  RecycledList<ReplyFrame> replies_;
  std::uint64_t owned_bytes_ = 0;
};

}  // namespace tally
