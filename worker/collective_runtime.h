// CollectiveRuntime: standalone collectives of any kind, type and operation, in frames of group 0 whose step is the
// number of the call: nothing is declared, no server takes part. One call at a time; the other ranks are at most one
// call ahead. Each call begins with an empty frame to the next position, so that ranks in different calls notice
// (CollectiveCalls). Thread: the loop's, except for `call`, which the caller fills before Begin.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/control.h"
#include "common/frame.h"
#include "common/recycled_list.h"
#include "common/schedule/schedule.h"
#include "worker/collective_plan.h"
#include "worker/schedule_executor.h"
#include "worker/ticket.h"

namespace tally {

inline constexpr GroupId kStandaloneGroup{0};  // declared groups count from 1

// The engine, as standalone collectives see it.
class CollectiveEnvironment {
 public:
  virtual ~CollectiveEnvironment() = default;
  virtual Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                      BufferRef hold) = 0;
  // Whether there is a link. If not, one is being made, and Continue is called when it is there.
  virtual bool Reach(Position peer) = 0;
  // Calls Continue from the loop. Any thread.
  virtual void Wake() = 0;
  virtual void Fail(const Status& why) = 0;
};

// What a caller asks for. Memory is the engine's until `completion`.
struct CollectiveCall {
  Completion completion;
  CollectiveShape shape;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

class CollectiveRuntime final : private ScheduleActions {
 public:
  struct Options {
    FrameHeader header;  // job, incarnation, epoch: copied into every frame
    Position self;
    std::vector<Rank> ranks;               // of each position
    std::uint64_t credit_bytes = 0;        // link.credit
    double bytes_per_s = 0;                // of the slowest NIC that is known
    const ScheduleEntry* sums = nullptr;   // for what is added up, as its order decides about bits
  };
  CollectiveRuntime(Options options, BufferPool* pool, CollectiveEnvironment* environment);

  CollectiveCall call;

  // Loop side.
  void Begin();
  void OnFrame(Frame& frame);
  void Continue();
  // Tells the next position, if there is a link, of a call that goes another way, so that it notices if it is in a
  // different one.
  void Announce(const CollectiveShape& shape);
  void FailAll(const Status& why);
  bool in_flight() const { return open_; }
  bool waits_for_link(Position peer) const;  // the call cannot begin without
  std::uint64_t progress() const { return progress_; }
  // "call 7, a broadcast of 10 int8 elements from rank 2: waits for a link to rank 1".
  std::string Describe() const;

 private:
  struct PieceState {
    BufferRef sum;    // running sum; empty before the first partial
    BufferRef total;  // holds `received`
    std::span<const std::byte> received;
  };
  using Programs = std::array<std::vector<ScheduleStep>, 3>;  // by Half

  // ScheduleActions.
  const std::vector<ScheduleStep>& Program(std::uint32_t u) const override {
    return (*programs_)[plan_.owner(u).value][static_cast<std::size_t>(plan_.half(u))];
  }
  std::uint64_t CreditBytes(std::uint32_t u) const override { return plan_.bytes(u); }
  std::uint32_t FirstSlab(std::uint32_t u) const override { return u; }
  std::string Name(std::uint32_t, Position peer) const override {
    return peer.value < positions() ? "rank " + std::to_string(options_.ranks[peer.value].value)
                                    : "position " + std::to_string(peer.value);
  }
  Status Receive(std::uint32_t u, const ScheduleStep& step, Frame& frame) override;
  Status SendPartial(std::uint32_t u, Position peer) override;
  void Finish(std::uint32_t u) override;
  Status SendTotal(std::uint32_t u, Position peer) override;
  void Done(std::uint32_t u) override;

  std::uint32_t positions() const { return static_cast<std::uint32_t>(options_.ranks.size()); }
  Position next() const { return Position((options_.self.value + 1) % positions()); }
  FrameHeader HeaderOf(const CollectiveShape& shape) const;  // of an empty frame to the next position
  const ScheduleEntry& Choose() const;
  const std::vector<Programs>& ProgramsOf(const ScheduleEntry& schedule);
  void FindPeers();
  void Start();
  void Park(Frame& frame);
  Status Take(Frame& frame);
  Status SendFrame(std::uint32_t u, FrameKind kind, Position peer, std::span<const std::byte> payload, BufferRef hold);
  Status SendCallers(std::uint32_t u, FrameKind kind, Position peer, const std::byte* memory);
  void FinishIfComplete();
  void Check(const Status& status);

  Options options_;
  BufferPool* pool_;
  CollectiveEnvironment* environment_;
  ScheduleExecutor executor_;
  CollectivePlan plan_;
  std::map<std::uint8_t, std::vector<Programs>> made_;  // by schedule's id; by owner
  const std::vector<Programs>* programs_ = nullptr;     // of the call
  std::vector<Position> peers_;                         // of the call
  std::vector<PieceState> states_;
  FrameHeader header_;
  bool open_ = false, announced_ = false, started_ = false, broken_ = false;
  std::uint64_t last_call_ = 0;  // that began here
  std::uint32_t remaining_ = 0;  // pieces
  std::uint64_t progress_ = 0;
  RecycledList<Frame> early_, opening_;  // of calls, or of one, that have not started here
  std::uint64_t early_bytes_ = 0;
  // Frames under way that read the caller's memory; who lets go of the last one wakes the loop if it waits.
  std::atomic<std::uint64_t> draining_{0};
  std::atomic<bool> waiting_{false};
};

}  // namespace tally
