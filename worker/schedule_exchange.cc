// Gradients by a peer-to-peer schedule (schedule_executor.h). A running sum is added up in the received buffer, which
// then travels on: no copy.

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/reduce/reduce.h"
#include "common/schedule/schedule.h"
#include "worker/exchange.h"
#include "worker/schedule_executor.h"

namespace tally {
namespace {

class ScheduleExchange final : public Exchange, private ScheduleActions {
 public:
  ScheduleExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables, const FramePlan* plan,
                   const ScheduleEntry& schedule, BufferPool* pool, ExchangeEnvironment* environment)
      : options_(options),
        tables_(std::move(tables)),
        plan_(plan),
        pool_(pool),
        environment_(environment),
        executor_(this, options.limits.credit_bytes, options.limits.credit_bytes * options.senders),
        programs_(options.positions),
        states_(plan->frames.size()),
        scratch_(kMaxSlabElements) {
    for (std::uint32_t owner = 0; owner < options.positions; ++owner) {
      schedule.generate(Position(owner), options.self, options.positions, &programs_[owner]);
    }
  }

  void BeginStep(StepId step, std::uint16_t verdict_flags, double declared_weight,
                 const CollectiveShape& collective) override {
    header_ = options_.header;
    header_.role = Role::kWorker;
    header_.position = options_.self.value;
    header_.step = step;
    header_.flags = verdict_flags;
    header_.collective = collective;
    declared_ = declared_weight;
    for (FrameState& state : states_) state = {};
    executor_.Begin(states_.size());
  }

  Status StartBucket(std::uint32_t bucket) override {
    for (std::uint32_t f = plan_->bucket_begin[bucket]; f < plan_->bucket_begin[bucket + 1]; ++f) {
      TALLY_RETURN_IF_ERROR(executor_.Start(f));
    }
    return executor_.Continue();
  }

  Status Continue() override { return executor_.Continue(); }

  Status OnFrame(Frame& frame) override {
    const FrameHeader& header = frame.header;
    if (header.kind != FrameKind::kPartial && header.kind != FrameKind::kTotal) {
      return Corrupt("expected a partial or total in a schedule");
    }
    if (header.slabs.empty() || header.slabs.front() >= plan_->frame_of_slab.size() ||
        plan_->frame_of_slab[header.slabs.front()] == kNoFrame) {
      return Corrupt("schedule frame without slabs of this group");
    }
    const std::uint32_t f = plan_->frame_of_slab[header.slabs.front()];
    const PlannedFrame& planned = plan_->frames[f];
    if (planned.slabs != header.slabs) {
      return Corrupt("schedule frame of " + std::to_string(header.slabs.size()) + " slabs from " +
                     std::to_string(header.slabs.front()) + ", expected " + std::to_string(planned.slabs.size()));
    }
    if (frame.payload.size() != planned.payload_bytes) {
      return Corrupt("schedule frame with " + std::to_string(frame.payload.size()) + " payload bytes, expected " +
                     std::to_string(planned.payload_bytes));
    }
    return executor_.OnFrame(f, frame);
  }

  bool Draining() override {
    awaited_ = true;
    if (draining_ != 0) return true;  // who makes that zero wakes us
    awaited_ = false;
    return false;
  }

  std::string Missing(std::size_t max_items) const override { return executor_.Missing(max_items); }

 private:
  struct FrameState {
    bool non_finite = false;
    BufferRef sum;           // running sum; empty before the first ReceiveAdd
    BufferRef total;         // result in transit, if not sent from the output itself
    double weight = 0;       // of the running sum or total
  };

  const std::vector<ScheduleStep>& Program(std::uint32_t f) const override {
    return programs_[tables_->message.owner_list[plan_->frames[f].owner].index];
  }
  std::uint64_t CreditBytes(std::uint32_t f) const override { return plan_->frames[f].payload_bytes; }
  std::uint32_t FirstSlab(std::uint32_t f) const override { return plan_->frames[f].slabs.front(); }
  std::string Name(std::uint32_t f, Position peer) const override {
    return NameOf(options_.speaker, FirstSlab(f), peer);
  }

  void Done(std::uint32_t f) override {
    FrameState& state = states_[f];
    state.total.Reset();
    const Delivered delivered = state.non_finite                          ? Delivered::kNonFinite
                                : static_cast<float>(state.weight) == 0 ? Delivered::kNothing
                                                                          : Delivered::kMean;
    for (const std::uint32_t u : plan_->frames[f].slabs) environment_->SlabDone(u, delivered);
  }

  Status Receive(std::uint32_t f, const ScheduleStep& step, Frame& frame) override {
    FrameState& state = states_[f];
    if (step.op == StepOp::kReceiveTotal) {
      state.weight = frame.header.weight;
      state.non_finite = (frame.header.flags & kFlagNonFinite) != 0;
      std::size_t offset = 0;
      for (const std::uint32_t u : plan_->frames[f].slabs) {
        const std::size_t n = tables_->layout.slabs[u].elements;
        Copy(environment_->Output(u), frame.payload.data() + offset, n);
        offset += n * sizeof(float);
      }
      // Passed on as it came, unless it is not ours (a neighbour's memory): then the next one reads it in the output.
      if (frame.hold.unique()) state.total = std::move(frame.hold);
      return Status::Ok();
    }
    if (!state.sum) {
      // The received buffer becomes the running sum, unless we may not write to it.
      const bool in_place = frame.hold.unique() && frame.payload.data() == frame.hold.data() &&
                            reinterpret_cast<std::uintptr_t>(frame.payload.data()) % alignof(float) == 0;
      state.sum = in_place ? std::move(frame.hold) : pool_->Get(frame.payload.size());
      AddOwn(f, in_place ? state.sum.data() : frame.payload.data(), reinterpret_cast<float*>(state.sum.data()));
      state.weight = frame.header.weight + declared_;
    } else {
      AddInto(reinterpret_cast<float*>(state.sum.data()), frame.payload.data(), plan_->frames[f].elements);
      state.weight += frame.header.weight;
    }
    return Status::Ok();
  }

  // c of a slab: the input itself, or w times it in scratch memory.
  const float* Own(std::uint32_t u) {
    const float* input = environment_->Input(u);
    const float factor = environment_->Factor(u);
    if (factor == 1.0F) return input;
    Scale(scratch_.data(), input, factor, tables_->layout.slabs[u].elements);
    return scratch_.data();
  }

  // sum = received + own. They may be the same memory.
  void AddOwn(std::uint32_t f, const std::byte* received, float* sum) {
    const bool aligned = reinterpret_cast<std::uintptr_t>(received) % alignof(float) == 0;
    for (const std::uint32_t u : plan_->frames[f].slabs) {
      const std::size_t n = tables_->layout.slabs[u].elements;
      if (aligned) {
        Add(sum, reinterpret_cast<const float*>(received), Own(u), n);
      } else {
        Copy(sum, received, n);
        AddInto(sum, Own(u), n);
      }
      received += n * sizeof(float);
      sum += n;
    }
  }

  Status SendPartial(std::uint32_t f, Position peer) override {
    FrameState& state = states_[f];
    const PlannedFrame& planned = plan_->frames[f];
    header_.kind = FrameKind::kPartial;
    if (state.sum) {
      header_.weight = state.weight;
      const auto bytes = state.sum.bytes();
      return SendFrame(planned, peer, bytes, std::move(state.sum), 0);
    }
    header_.weight = declared_;
    if (planned.slabs.size() == 1 && environment_->Factor(planned.slabs.front()) == 1.0F) {
      const auto bytes = AsBytes(environment_->Input(planned.slabs.front()), planned.elements);
      return SendFrame(planned, peer, bytes, pool_->WrapConst(bytes, {}), 0);
    }
    BufferRef buffer = pool_->Get(planned.payload_bytes);
    std::size_t offset = 0;
    for (const std::uint32_t u : planned.slabs) {
      const std::size_t n = tables_->layout.slabs[u].elements;
      Copy(buffer.data() + offset, Own(u), n);
      offset += n * sizeof(float);
    }
    const auto bytes = buffer.bytes();
    return SendFrame(planned, peer, bytes, std::move(buffer), 0);
  }

  // The outputs of a frame of several slabs in one piece, to be sent.
  void Gather(std::uint32_t f) {
    FrameState& state = states_[f];
    state.total = pool_->Get(plan_->frames[f].payload_bytes);
    std::size_t offset = 0;
    for (const std::uint32_t u : plan_->frames[f].slabs) {
      const std::size_t n = tables_->layout.slabs[u].elements;
      Copy(state.total.data() + offset, environment_->Output(u), n);
      offset += n * sizeof(float);
    }
  }

  // mean = S / W into the output.
  void Finish(std::uint32_t f) override {
    FrameState& state = states_[f];
    const PlannedFrame& planned = plan_->frames[f];
    const bool alone = !state.sum;  // one position: the own contribution is the sum
    if (alone) state.weight = declared_;
    const float total_weight = static_cast<float>(state.weight);
    const float* sum = alone ? nullptr : reinterpret_cast<const float*>(state.sum.data());
    std::size_t offset = 0;
    for (const std::uint32_t u : planned.slabs) {
      const std::size_t n = tables_->layout.slabs[u].elements;
      float* out = environment_->Output(u);
      const float* from = alone ? Own(u) : sum + offset;
      if (total_weight == 0) {
        std::fill(out, out + n, 0.0F);
      } else if (total_weight == 1) {
        if (out != from) Copy(out, from, n, false);
      } else {
        Divide(out, from, total_weight, n);
      }
      if (!AllFinite(out, n)) state.non_finite = true;
      offset += n;
    }
    state.sum.Reset();
  }

  Status SendTotal(std::uint32_t f, Position peer) override {
    FrameState& state = states_[f];
    const PlannedFrame& planned = plan_->frames[f];
    header_.kind = FrameKind::kTotal;
    header_.weight = static_cast<double>(static_cast<float>(state.weight));
    const auto flag = static_cast<std::uint16_t>(state.non_finite ? kFlagNonFinite : 0);
    if (!state.total && planned.slabs.size() > 1) Gather(f);
    if (state.total) return SendFrame(planned, peer, state.total.bytes().first(planned.payload_bytes), state.total, flag);
    const auto bytes = AsBytes(environment_->Output(planned.slabs.front()), planned.elements);
    ++draining_;
    const Release sent{[](void* context, std::uint64_t) {
                         auto* self = static_cast<ScheduleExchange*>(context);
                         if (--self->draining_ == 0 && self->awaited_.exchange(false)) self->environment_->ContinueSoon();
                       },
                       this, 0};
    return SendFrame(planned, peer, bytes, pool_->WrapConst(bytes, sent), flag);
  }

  Status SendFrame(const PlannedFrame& planned, Position peer, std::span<const std::byte> payload, BufferRef hold,
                   std::uint16_t flag) {
    header_.bucket = BucketId(planned.bucket);
    header_.slabs = planned.slabs;
    const std::uint16_t flags = header_.flags;
    header_.flags = static_cast<std::uint16_t>(flags | flag);
    const Status status = environment_->Send({Role::kWorker, peer.value}, planned.slabs.front(), header_, payload,
                                             std::move(hold));
    header_.flags = flags;
    return status;
  }

  ExchangeOptions options_;
  std::shared_ptr<const GroupTables> tables_;
  const FramePlan* plan_;
  BufferPool* pool_;
  ExchangeEnvironment* environment_;
  ScheduleExecutor executor_;
  std::vector<std::vector<ScheduleStep>> programs_;  // by owner position
  std::vector<FrameState> states_;                   // by planned frame
  std::vector<float> scratch_;
  std::atomic<std::uint64_t> draining_{0};
  std::atomic<bool> awaited_{false};  // that it is zero
  FrameHeader header_;
  double declared_ = 1;
};

}  // namespace

std::unique_ptr<Exchange> MakeScheduleExchange(const ExchangeOptions& options,
                                               std::shared_ptr<const GroupTables> tables, const FramePlan* plan,
                                               BufferPool* pool, ExchangeEnvironment* environment) {
  const Result<const ScheduleEntry*> schedule = FindSchedule(tables->message.schedule);
  TALLY_CHECK(schedule.ok(), "the group checked the schedule's name");
  return std::make_unique<ScheduleExchange>(options, std::move(tables), plan, *schedule.value(), pool, environment);
}

}  // namespace tally
