#include "worker/collective_runtime.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/reduce/reduce.h"
#include "common/reduce/typed.h"
#include "common/schedule/halves.h"
#include "common/schedule/layout.h"
#include "common/schedule/ways.h"
#include "server/core/collective_calls.h"

namespace tally {
namespace {

std::uint64_t Credit(const CollectiveRuntime::Options& options) {
  return std::max<std::uint64_t>(options.credit_bytes, options.ranks.size() * CollectivePlan::kMaxPieceBytes);
}

// Of frames before their turn: what each rank may have outstanding, and all that is eager, twice, as a frame costs
// something besides its payload. An empty one stands for a piece of 16 KiB and more, or for the last.
std::uint64_t ParkedCap(const CollectiveRuntime::Options& options) {
  return Credit(options) * (2 * options.ranks.size() + 2);
}

}  // namespace

CollectiveRuntime::CollectiveRuntime(Options options, BufferPool* pool, CollectiveEnvironment* environment)
    : options_(std::move(options)),
      pool_(pool),
      environment_(environment),
      executor_(this, Credit(options_), ParkedCap(options_)) {}

// Sums keep their order, as it decides about bits; where numbers only move, the cheapest way is taken.
const ScheduleEntry& CollectiveRuntime::Choose() const {
  if (plan_.adds()) return *options_.sums;
  const double bytes = static_cast<double>(call.shape.elements * DTypeBytes(call.shape.dtype));
  if (call.shape.kind == CollectiveKind::kBroadcast) {
    return ChooseBroadcast(bytes, plan_.pieces(), options_.bytes_per_s, kUsualAlphaS, plan_.owner(0), positions());
  }
  return ChooseHalf(bytes * positions(), options_.bytes_per_s, kUsualAlphaS, positions());
}

const std::vector<CollectiveRuntime::Programs>& CollectiveRuntime::ProgramsOf(const ScheduleEntry& schedule) {
  std::vector<Programs>& made = made_[schedule.id];
  for (auto owner = static_cast<std::uint32_t>(made.size()); owner < positions(); ++owner) {
    Programs& programs = made.emplace_back();
    for (const Half half : {Half::kBoth, Half::kReduce, Half::kBroadcast}) {
      std::vector<ScheduleStep>& program = programs[static_cast<std::size_t>(half)];
      schedule.generate(Position(owner), options_.self, positions(), &program);
      KeepHalf(half, &program);
    }
  }
  return made;
}

void CollectiveRuntime::Begin() {
  last_call_ = call.shape.call;
  open_ = true;
  announced_ = started_ = false;
  ++progress_;
  plan_ = CollectivePlan(call.shape, options_.ranks, Credit(options_));
  programs_ = &ProgramsOf(Choose());
  header_ = HeaderOf(call.shape);
  FindPeers();
  Continue();
}

FrameHeader CollectiveRuntime::HeaderOf(const CollectiveShape& shape) const {
  FrameHeader header = options_.header;
  header.kind = FrameKind::kPartial;
  header.group = kStandaloneGroup;
  header.role = Role::kWorker;
  header.position = options_.self.value;
  header.step = StepId(shape.call);
  header.collective = shape;
  return header;
}

void CollectiveRuntime::Announce(const CollectiveShape& shape) {
  if (broken_ || positions() == 1 || !environment_->Reach(next())) return;
  Check(environment_->Send({Role::kWorker, next().value}, 0, HeaderOf(shape), {}, {}));
}

void CollectiveRuntime::FindPeers() {
  peers_.clear();
  const std::uint32_t owners = std::min(positions(), plan_.pieces());
  for (std::uint32_t u = 0; u < owners; ++u) {
    for (const ScheduleStep& step : (*programs_)[plan_.owner(u).value][static_cast<std::size_t>(Half::kBoth)]) {
      if (step.op != StepOp::kFinish) peers_.push_back(step.peer);
    }
  }
  std::ranges::sort(peers_);
  const auto [first, last] = std::ranges::unique(peers_);
  peers_.erase(first, last);
}

bool CollectiveRuntime::waits_for_link(Position peer) const {
  return open_ && !started_ && (peer == next() || std::ranges::binary_search(peers_, peer));
}

void CollectiveRuntime::Continue() {
  if (!open_ || broken_) return;
  if (started_) return FinishIfComplete();
  // Says which call this is, without waiting for those with whom numbers are exchanged in it.
  if (!announced_ && (positions() == 1 || environment_->Reach(next()))) {
    announced_ = true;
    Announce(call.shape);
  }
  bool all = announced_;
  for (const Position peer : peers_) all = environment_->Reach(peer) && all;
  if (all && !broken_) Start();
}

void CollectiveRuntime::Start() {
  started_ = true;
  remaining_ = plan_.pieces();
  states_.clear();
  states_.resize(remaining_);
  executor_.Begin(remaining_);
  std::swap(opening_, early_);
  early_bytes_ = 0;
  for (Frame& frame : opening_) {
    if (broken_) break;
    if (frame.header.step.value == last_call_) {
      Check(Take(frame));
    } else if (frame.header.step.value > last_call_) {
      Park(frame);
    }
    frame.hold.Reset();
  }
  opening_.Clear();
  std::vector<std::uint32_t> all(remaining_);
  std::iota(all.begin(), all.end(), 0U);
  for (const std::uint32_t u : SendOrder(all, options_.self, positions())) {
    if (!broken_) Check(executor_.Start(u));
  }
  if (!broken_) Check(executor_.Continue());
  FinishIfComplete();
}

void CollectiveRuntime::OnFrame(Frame& frame) {
  if (broken_) return;
  const std::uint64_t number = frame.header.step.value;
  if (number != frame.header.collective.call) {
    return Check(Corrupt("a frame of " + Name(0, Position(frame.header.position)) + " for call " + std::to_string(number) +
                         " is stamped with call " + std::to_string(frame.header.collective.call)));
  }
  if (frame.header.slabs.empty()) return;  // it has said what it had to
  ++progress_;
  if (number == last_call_ && open_ && started_) {
    Check(Take(frame));
    FinishIfComplete();
  } else if (number > last_call_ || (number == last_call_ && open_)) {
    Park(frame);
  }
  // Older: a call that is over, which nobody can send anything for.
}

void CollectiveRuntime::Park(Frame& frame) {
  early_bytes_ += frame.payload.size() + ScheduleExecutor::kParkedFrameBytes;
  if (early_bytes_ > ParkedCap(options_)) {
    return Check(Corrupt("early frames of collective call " + std::to_string(frame.header.step.value) +
                         " exceed the credit of all positions"));
  }
  std::swap(early_.Add(), frame);
}

Status CollectiveRuntime::Take(Frame& frame) {
  const FrameHeader& header = frame.header;
  const bool partial = header.kind == FrameKind::kPartial;
  if (!partial && header.kind != FrameKind::kTotal) return Corrupt("expected a partial or total in a collective");
  if (header.slabs.size() != 1 || header.slabs.front() >= plan_.pieces()) {
    return Corrupt("collective frame without a piece of this call");
  }
  const std::uint32_t u = header.slabs.front();
  const std::size_t expected = (partial ? plan_.adds() : plan_.spreads()) ? plan_.bytes(u) : 0;
  if (frame.payload.size() != expected) {
    return Corrupt("collective frame of piece " + std::to_string(u) + " with " + std::to_string(frame.payload.size()) +
                   " payload bytes, expected " + std::to_string(expected));
  }
  return executor_.OnFrame(u, frame);
}

Status CollectiveRuntime::Receive(std::uint32_t u, const ScheduleStep& step, Frame& frame) {
  PieceState& state = states_[u];
  const CollectiveShape& shape = plan_.shape();
  if (step.op == StepOp::kReceiveTotal) {
    if (!plan_.spreads()) return Status::Ok();
    CopyBytes(call.out + plan_.out_offset(u), frame.payload.data(), frame.payload.size());
    // Passed on as it came, unless it is not ours to keep (it lies in a neighbour's memory): then the next one reads it
    // where it has been copied to.
    if (!frame.hold.unique()) return Status::Ok();
    state.received = frame.payload;
    state.total = std::move(frame.hold);
    return Status::Ok();
  }
  if (!plan_.adds()) return Status::Ok();
  const std::size_t n = plan_.elements(u);
  if (state.sum) {
    ReduceInto(shape.dtype, shape.op, state.sum.data(), frame.payload.data(), n);
    return Status::Ok();
  }
  // The received buffer becomes the running sum. One that we may not write to is copied.
  const bool in_place = frame.hold.unique() && frame.payload.data() == frame.hold.data();
  const std::size_t bytes = frame.payload.size();
  if (in_place) {
    state.sum = std::move(frame.hold);
  } else {
    state.sum = pool_->Get(bytes);
    CopyBytes(state.sum.data(), frame.payload.data(), bytes);
  }
  ReduceInto(shape.dtype, shape.op, state.sum.data(), call.in + plan_.in_offset(u), n);
  return Status::Ok();
}

Status CollectiveRuntime::SendPartial(std::uint32_t u, Position peer) {
  if (!plan_.adds()) return SendFrame(u, FrameKind::kPartial, peer, {}, {});
  PieceState& state = states_[u];
  if (!state.sum) return SendCallers(u, FrameKind::kPartial, peer, call.in + plan_.in_offset(u));
  const auto bytes = std::span<const std::byte>(state.sum.data(), plan_.bytes(u));
  return SendFrame(u, FrameKind::kPartial, peer, bytes, std::move(state.sum));
}

void CollectiveRuntime::Finish(std::uint32_t u) {
  PieceState& state = states_[u];
  const std::size_t bytes = plan_.bytes(u);
  if (bytes == 0) return;
  const std::byte* from = state.sum ? state.sum.data() : call.in + plan_.in_offset(u);
  std::byte* out = call.out + plan_.out_offset(u);
  if (from != out) CopyBytes(out, from, bytes);
  state.sum.Reset();
  if (plan_.adds() && plan_.shape().op == ReduceOp::kMean) {
    AverageInPlace(plan_.shape().dtype, out, positions(), plan_.elements(u));
  }
}

Status CollectiveRuntime::SendTotal(std::uint32_t u, Position peer) {
  if (!plan_.spreads()) return SendFrame(u, FrameKind::kTotal, peer, {}, {});
  PieceState& state = states_[u];
  if (state.total) return SendFrame(u, FrameKind::kTotal, peer, state.received, state.total);
  return SendCallers(u, FrameKind::kTotal, peer, call.out + plan_.out_offset(u));
}

void CollectiveRuntime::Done(std::uint32_t u) {
  states_[u] = {};
  --remaining_;
}

// From the caller's own memory, which stays the engine's until the system has taken it.
Status CollectiveRuntime::SendCallers(std::uint32_t u, FrameKind kind, Position peer, const std::byte* memory) {
  const auto bytes = std::span(memory, plan_.bytes(u));
  if (bytes.empty()) return SendFrame(u, kind, peer, {}, {});
  ++draining_;
  const Release sent{[](void* context, std::uint64_t) {
                       auto* self = static_cast<CollectiveRuntime*>(context);
                       if (--self->draining_ == 0 && self->waiting_) self->environment_->Wake();
                     },
                     this, 0};
  return SendFrame(u, kind, peer, bytes, pool_->WrapConst(bytes, sent));
}

Status CollectiveRuntime::SendFrame(std::uint32_t u, FrameKind kind, Position peer, std::span<const std::byte> payload,
                                    BufferRef hold) {
  header_.kind = kind;
  header_.slabs.assign(1, u);
  return environment_->Send({Role::kWorker, peer.value}, u, header_, payload, std::move(hold));
}

void CollectiveRuntime::FinishIfComplete() {
  if (!open_ || broken_ || !started_ || remaining_ != 0) return;
  waiting_ = true;
  if (draining_ != 0) return;  // who makes that zero wakes us
  waiting_ = false;
  open_ = false;
  call.completion.Complete(Status::Ok());
}

void CollectiveRuntime::FailAll(const Status& why) {
  broken_ = true;
  if (std::exchange(open_, false)) call.completion.Complete(why);
}

void CollectiveRuntime::Check(const Status& status) {
  if (status.ok()) return;
  broken_ = true;
  environment_->Fail(status.WithContext("collective call " + std::to_string(last_call_)));
}

std::string CollectiveRuntime::Describe() const {
  if (!open_) return "no collective call is open";
  std::string text = "collective call " + std::to_string(last_call_) + ", " + DescribeCollective(call.shape) + ": ";
  if (started_) return text + executor_.Missing(3);
  return text + "waits for links to other ranks";
}

}  // namespace tally
