// VerifySchedule: runs all programs of one stripe symbolically. A running sum is the list of positions it contains, so
// a lost or doubled contribution shows; links hold one frame, so an order that needs more buffering deadlocks.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/schedule/halves.h"

namespace tally {
namespace {

struct Message {
  std::uint32_t owner = 0;
  bool total = false;
  std::vector<std::uint32_t> sum;  // positions in the order of addition
};

// What one position does for one owner's slab.
struct Program {
  std::vector<ScheduleStep> steps;
  std::size_t next = 0;
  std::vector<std::uint32_t> sum;
  bool has_total = false;

  bool done() const { return next == steps.size(); }
};

std::string Describe(const ScheduleStep& step) {
  const std::string peer = std::to_string(step.peer.value);
  switch (step.op) {
    case StepOp::kSendPartial: return "sending a partial sum to " + peer;
    case StepOp::kReceiveAdd: return "receiving a partial sum from " + peer;
    case StepOp::kFinish: return "finishing";
    case StepOp::kSendTotal: return "sending the total to " + peer;
    case StepOp::kReceiveTotal: return "receiving the total from " + peer;
  }
  return "an unknown step";
}

class Verifier {
 public:
  Verifier(const ScheduleEntry& schedule, std::uint32_t positions, Half half)
      : schedule_(schedule), half_(half), n_(positions), programs_(std::size_t{n_} * n_), links_(std::size_t{n_} * n_),
        link_load_(std::size_t{n_} * n_, 0) {
    report_.order.resize(n_);
  }

  Result<VerifyReport> Run() {
    TALLY_RETURN_IF_ERROR(Generate());
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t owner = 0; owner < n_; ++owner) {
        for (std::uint32_t self = 0; self < n_; ++self) {
          while (!At(owner, self).done()) {
            TALLY_ASSIGN_OR_RETURN(const bool stepped, Step(owner, self));
            if (!stepped) break;
            moved = true;
          }
        }
      }
    }
    TALLY_RETURN_IF_ERROR(CheckEnd());
    return report_;
  }

 private:
  Program& At(std::uint32_t owner, std::uint32_t self) { return programs_[std::size_t{owner} * n_ + self]; }
  std::size_t LinkIndex(std::uint32_t from, std::uint32_t to) const { return std::size_t{from} * n_ + to; }

  Status Fault(std::uint32_t owner, std::uint32_t self, const std::string& text) const {
    return Internal("schedule " + std::string(schedule_.name) + " with " + std::to_string(n_) + " positions, owner " +
                    std::to_string(owner) + ", position " + std::to_string(self) + ": " + text);
  }

  Status Generate() {
    for (std::uint32_t owner = 0; owner < n_; ++owner) {
      for (std::uint32_t self = 0; self < n_; ++self) {
        Program& program = At(owner, self);
        program.sum = {self};
        schedule_.generate(Position{owner}, Position{self}, n_, &program.steps);
        KeepHalf(half_, &program.steps);
        for (const ScheduleStep& step : program.steps) {
          if (step.op == StepOp::kFinish) continue;
          if (step.peer.value >= n_ || step.peer.value == self) {
            return Fault(owner, self, Describe(step) + ", which is no peer");
          }
        }
      }
    }
    return Status::Ok();
  }

  // True if the program's next step could be done.
  Result<bool> Step(std::uint32_t owner, std::uint32_t self) {
    Program& program = At(owner, self);
    const ScheduleStep& step = program.steps[program.next];
    bool moved = true;
    switch (step.op) {
      case StepOp::kSendPartial:
        if (program.has_total) return Fault(owner, self, Describe(step) + " after it has the total");
        moved = Send(owner, self, step.peer.value, false);
        break;
      case StepOp::kSendTotal:
        if (!program.has_total) return Fault(owner, self, Describe(step) + " before it has it");
        moved = Send(owner, self, step.peer.value, true);
        break;
      case StepOp::kReceiveAdd:
        if (program.has_total) return Fault(owner, self, Describe(step) + " after it has the total");
        if (std::optional<Message> message = Receive(owner, self, step.peer.value, false)) {
          // Left to right means that only a single contribution is ever added to what came in.
          if (schedule_.ring_order && program.sum.size() != 1) {
            return Fault(owner, self, Describe(step) + " onto a sum of several: not from left to right");
          }
          message->sum.insert(message->sum.end(), program.sum.begin(), program.sum.end());
          program.sum = std::move(message->sum);
        } else {
          moved = false;
        }
        break;
      case StepOp::kReceiveTotal:
        if (program.has_total) return Fault(owner, self, Describe(step) + " after it has the total");
        moved = Receive(owner, self, step.peer.value, true).has_value();
        if (moved) program.has_total = true;
        break;
      case StepOp::kFinish: TALLY_RETURN_IF_ERROR(Finish(owner, self)); break;
    }
    if (moved) ++program.next;
    return moved;
  }

  bool Send(std::uint32_t owner, std::uint32_t self, std::uint32_t peer, bool total) {
    std::optional<Message>& link = links_[LinkIndex(self, peer)];
    if (link.has_value()) return false;
    link = Message{owner, total, total ? std::vector<std::uint32_t>{} : At(owner, self).sum};
    ++link_load_[LinkIndex(self, peer)];
    ++report_.messages;
    return true;
  }

  std::optional<Message> Receive(std::uint32_t owner, std::uint32_t self, std::uint32_t peer, bool total) {
    std::optional<Message>& link = links_[LinkIndex(peer, self)];
    if (!link.has_value() || link->owner != owner || link->total != total) return std::nullopt;
    return std::exchange(link, std::nullopt);
  }

  Status Finish(std::uint32_t owner, std::uint32_t self) {
    Program& program = At(owner, self);
    if (self != owner) return Fault(owner, self, "finishes a slab that it does not own");
    if (program.has_total) return Fault(owner, self, "finishes twice");
    program.has_total = true;
    if (half_ == Half::kBroadcast) {
      if (program.sum.size() != 1) return Fault(owner, self, "begins with more than its own numbers");
      return Status::Ok();
    }
    for (std::uint32_t p = 0; p < n_; ++p) {
      const auto times = std::count(program.sum.begin(), program.sum.end(), p);
      if (times != 1) {
        return Fault(owner, self, "the total holds position " + std::to_string(p) + " " + std::to_string(times) +
                                      " times");
      }
    }
    for (std::uint32_t p = 0; p < n_; ++p) {
      if (schedule_.ring_order && program.sum[p] != (owner + 1 + p) % n_) {
        return Fault(owner, self, "place " + std::to_string(p) + " of the sum is position " +
                                      std::to_string(program.sum[p]) + ", ring order wants " +
                                      std::to_string((owner + 1 + p) % n_));
      }
    }
    report_.order[owner] = program.sum;
    return Status::Ok();
  }

  Status CheckEnd() {
    for (std::uint32_t owner = 0; owner < n_; ++owner) {
      for (std::uint32_t self = 0; self < n_; ++self) {
        const Program& program = At(owner, self);
        if (!program.done()) return Fault(owner, self, "never gets past " + Describe(program.steps[program.next]));
        const bool gets_total = half_ != Half::kReduce || self == owner;
        if (program.has_total != gets_total) {
          return Fault(owner, self, gets_total ? "ends without the total" : "ends with a total that is the owner's");
        }
      }
    }
    for (std::uint32_t from = 0; from < n_; ++from) {
      for (std::uint32_t to = 0; to < n_; ++to) {
        const std::optional<Message>& link = links_[LinkIndex(from, to)];
        if (link.has_value()) return Fault(link->owner, from, "nobody receives its frame to " + std::to_string(to));
      }
    }
    report_.busiest_link_slabs = *std::max_element(link_load_.begin(), link_load_.end());
    if (half_ != Half::kBoth) return CheckMessages();
    const std::uint64_t expected = schedule_.busiest_link_slabs(n_);
    if (report_.busiest_link_slabs != expected) {
      return Internal("schedule " + std::string(schedule_.name) + " with " + std::to_string(n_) +
                      " positions: the busiest link carries " + std::to_string(report_.busiest_link_slabs) +
                      " slabs per stripe, its formula says " + std::to_string(expected));
    }
    return Status::Ok();
  }

  // A tree over n positions has n - 1 edges, and there is one for each owner.
  Status CheckMessages() const {
    const std::uint64_t expected = std::uint64_t{n_} * (n_ - 1);
    if (report_.messages == expected) return Status::Ok();
    return Internal("half of schedule " + std::string(schedule_.name) + " with " + std::to_string(n_) + " positions sends " +
                    std::to_string(report_.messages) + " messages, expected " + std::to_string(expected));
  }

  const ScheduleEntry& schedule_;
  const Half half_;
  const std::uint32_t n_;
  std::vector<Program> programs_;              // [owner * n + position]
  std::vector<std::optional<Message>> links_;  // [from * n + to]
  std::vector<std::uint64_t> link_load_;
  VerifyReport report_;
};

}  // namespace

Result<VerifyReport> VerifySchedule(const ScheduleEntry& schedule, std::uint32_t positions, Half half) {
  TALLY_CHECK(positions >= 1, "a schedule needs a position");
  return Verifier(schedule, positions, half).Run();
}

}  // namespace tally
