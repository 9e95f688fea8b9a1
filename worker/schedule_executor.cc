#include "worker/schedule_executor.h"

#include <algorithm>
#include <utility>

namespace tally {
namespace {

StepOp Awaiting(FrameKind kind) { return kind == FrameKind::kPartial ? StepOp::kReceiveAdd : StepOp::kReceiveTotal; }

}  // namespace

void ScheduleExecutor::Begin(std::size_t frames) {
  states_.assign(frames, {});
  starts_.clear();
  starts_.reserve(frames);
  next_start_ = 0;
  outstanding_ = 0;
  parked_.Clear();
  parked_bytes_ = 0;
}

Status ScheduleExecutor::Start(std::uint32_t f) {
  states_[f].started = true;
  if (!Starts(f)) return Advance(f);
  starts_.push_back(f);
  return Status::Ok();
}

Status ScheduleExecutor::Continue() {
  while (next_start_ < starts_.size()) {
    const std::uint32_t f = starts_[next_start_];
    const std::uint64_t bytes = actions_->CreditBytes(f);
    if (outstanding_ != 0 && outstanding_ + bytes > credit_bytes_) return Status::Ok();
    ++next_start_;
    outstanding_ += bytes;
    TALLY_RETURN_IF_ERROR(Advance(f));
  }
  return Status::Ok();
}

Status ScheduleExecutor::OnFrame(std::uint32_t f, Frame& frame) {
  const FrameHeader& header = frame.header;
  const ScheduleStep awaited{Awaiting(header.kind), Position(header.position)};
  const std::vector<ScheduleStep>& program = actions_->Program(f);
  State& state = states_[f];
  const auto refused = [&](const char* how) {
    return Corrupt(how + std::string(header.kind == FrameKind::kPartial ? "partial" : "total") + " of slab " +
                   std::to_string(actions_->FirstSlab(f)) + " from " + actions_->Name(f, Position(header.position)));
  };
  if (std::find(program.begin() + static_cast<std::ptrdiff_t>(state.at), program.end(), awaited) == program.end()) {
    return refused("unexpected ");
  }
  if (state.started && program[state.at] == awaited) {
    TALLY_RETURN_IF_ERROR(Consume(f, frame));
    TALLY_RETURN_IF_ERROR(Advance(f));
    return Continue();
  }
  if (FindParked(f, awaited) != nullptr) return refused("second ");
  parked_bytes_ += frame.payload.size() + kParkedFrameBytes;
  if (parked_bytes_ > parked_cap_) {
    return Corrupt("early frames exceed the credit of all positions: a peer ignores its credit");
  }
  ++state.parked;
  Parked& parked = parked_.Add();
  parked.frame = f;
  std::swap(parked.received, frame);
  return Status::Ok();
}

std::string ScheduleExecutor::Missing(std::size_t max_items) const {
  std::string text;
  std::size_t items = 0, count = 0;
  for (std::uint32_t f = 0; f < states_.size(); ++f) {
    const std::vector<ScheduleStep>& program = actions_->Program(f);
    if (states_[f].at >= program.size()) continue;
    ++count;
    if (items == max_items) continue;
    ++items;
    const ScheduleStep& step = program[states_[f].at];
    const bool receives = step.op == StepOp::kReceiveAdd || step.op == StepOp::kReceiveTotal;
    text += (text.empty() ? "" : ", ") + ("slab " + std::to_string(actions_->FirstSlab(f))) +
            (receives ? " from " + actions_->Name(f, step.peer) : std::string(" waits for credit"));
  }
  return count == 0 ? "" : std::to_string(count) + " frames unfinished: " + text + (count > items ? ", …" : "");
}

ScheduleExecutor::Parked* ScheduleExecutor::FindParked(std::uint32_t f, const ScheduleStep& awaited) {
  if (states_[f].parked == 0) return nullptr;
  const auto found = std::find_if(parked_.begin(), parked_.end(), [&](const Parked& p) {
    return p.frame == f && p.received.header.position == awaited.peer.value &&
           Awaiting(p.received.header.kind) == awaited.op;
  });
  return found == parked_.end() ? nullptr : found;
}

// Runs the program up to the next receive that has nothing to receive.
Status ScheduleExecutor::Advance(std::uint32_t f) {
  State& state = states_[f];
  const std::vector<ScheduleStep>& program = actions_->Program(f);
  while (state.at < program.size()) {
    const ScheduleStep& step = program[state.at];
    switch (step.op) {
      case StepOp::kSendPartial:
        TALLY_RETURN_IF_ERROR(actions_->SendPartial(f, step.peer));
        break;
      case StepOp::kFinish:
        actions_->Finish(f);
        break;
      case StepOp::kSendTotal:
        TALLY_RETURN_IF_ERROR(actions_->SendTotal(f, step.peer));
        break;
      case StepOp::kReceiveAdd:
      case StepOp::kReceiveTotal: {
        Parked* const found = FindParked(f, step);
        if (found == nullptr) return Status::Ok();
        std::swap(*found, parked_.back());
        Frame& frame = parked_.back().received;
        parked_.RemoveLast();
        parked_bytes_ -= frame.payload.size() + kParkedFrameBytes;
        --state.parked;
        TALLY_RETURN_IF_ERROR(Consume(f, frame));
        frame.hold.Reset();
        continue;  // Consume moved on
      }
    }
    ++state.at;
  }
  if (Starts(f)) outstanding_ -= actions_->CreditBytes(f);
  actions_->Done(f);
  return Status::Ok();
}

Status ScheduleExecutor::Consume(std::uint32_t f, Frame& frame) {
  const ScheduleStep& step = actions_->Program(f)[states_[f].at];
  ++states_[f].at;
  return actions_->Receive(f, step, frame);
}

}  // namespace tally
