// ScheduleExecutor: runs every frame of a step through its program (common/schedule) on its own; what numbers become is
// the business of ScheduleActions. Only frames that this position starts cost credit, until their program has ended;
// that bounds what any neighbour can have outstanding. No deadlock where several positions start a frame, each in an
// order of its own: credit holds N frames, as many as begin in a stripe, so the lowest unfinished stripe is under way
// everywhere. Thread: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/recycled_list.h"
#include "common/schedule/schedule.h"
#include "common/status.h"
#include "common/transport/link.h"

namespace tally {

// What the steps of a program do. A frame is told by its number in the step.
class ScheduleActions {
 public:
  virtual const std::vector<ScheduleStep>& Program(std::uint32_t f) const = 0;
  virtual std::uint64_t CreditBytes(std::uint32_t f) const = 0;
  virtual std::uint32_t FirstSlab(std::uint32_t f) const = 0;  // for people, as the name of who is at a position
  virtual std::string Name(std::uint32_t f, Position peer) const = 0;
  // A partial (kReceiveAdd) or total (kReceiveTotal). May keep the frame's buffer.
  virtual Status Receive(std::uint32_t f, const ScheduleStep& step, Frame& frame) = 0;
  virtual Status SendPartial(std::uint32_t f, Position peer) = 0;
  virtual void Finish(std::uint32_t f) = 0;
  virtual Status SendTotal(std::uint32_t f, Position peer) = 0;
  virtual void Done(std::uint32_t f) = 0;  // the program has ended

 protected:
  ~ScheduleActions() = default;
};

class ScheduleExecutor {
 public:
  static constexpr std::uint64_t kParkedFrameBytes = 256;  // so that empty frames count, too

  // `parked_cap`: bytes of frames that came before their turn, each of which costs kParkedFrameBytes besides its payload.
  ScheduleExecutor(ScheduleActions* actions, std::uint64_t credit_bytes, std::uint64_t parked_cap)
      : actions_(actions), credit_bytes_(credit_bytes), parked_cap_(parked_cap) {}

  // A step of so many frames begins; nothing of the one before is outstanding.
  void Begin(std::size_t frames);
  // This position's own numbers of the frame are here. Frames that it starts go out in the order of these calls, by
  // Continue, which is to be called after the last one.
  Status Start(std::uint32_t f);
  Status Continue();
  // A partial or total of the frame; checked here: that its program waits for one of that kind from that position, and has
  // none yet. May keep the frame. Errors: kCorrupt.
  Status OnFrame(std::uint32_t f, Frame& frame);
  // "2 frames unfinished: slab 17 from rank 3, …", at most `max_items`; empty when all are done.
  std::string Missing(std::size_t max_items) const;

 private:
  struct State {
    bool started = false;
    std::size_t at = 0;        // next step of the program
    std::uint32_t parked = 0;  // frames that wait for their turn
  };
  struct Parked {
    std::uint32_t frame;
    Frame received;
  };

  bool Starts(std::uint32_t f) const {
    const std::vector<ScheduleStep>& program = actions_->Program(f);
    return !program.empty() && program.front().op == StepOp::kSendPartial;
  }
  Parked* FindParked(std::uint32_t f, const ScheduleStep& awaited);  // null: it has not come
  Status Advance(std::uint32_t f);
  Status Consume(std::uint32_t f, Frame& frame);

  ScheduleActions* actions_;
  std::uint64_t credit_bytes_, parked_cap_;
  std::vector<State> states_;
  std::vector<std::uint32_t> starts_;  // frames that this position starts, in send order
  std::size_t next_start_ = 0;
  std::uint64_t outstanding_ = 0;
  RecycledList<Parked> parked_;
  std::uint64_t parked_bytes_ = 0;
};

}  // namespace tally
