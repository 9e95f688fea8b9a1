#include "server/core/owner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "common/check.h"
#include "compress/error_feedback.h"
#include "server/core/owner_reply.h"

namespace tally {
namespace {

constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kReplyPosition = std::numeric_limits<std::uint32_t>::max();  // EncodeKey of replies
constexpr std::uint16_t kVerdictFlags = kFlagPreviousCommitted | kFlagPreviousSkipped;

// One position's part of one slab.
struct Contribution {
  std::span<std::byte> payload;
  BufferRef hold;         // keeps payload alive; the last reference if nobody else needs its frame
  double weight = 0;
  bool non_finite = false;
  bool whole_frame = false;  // payload is all that hold carries
};

// A contribution that waits for its turn, in its slab's list, by place in the slab's order.
struct Held {
  Contribution contribution;
  std::uint32_t place = 0;
  std::uint32_t next = kNowhere;
};

struct SlabState {
  std::uint32_t number = 0;
  Slab slab;
  const Codec* codec = nullptr;
  std::size_t encoded_bytes = 0;

  // Of the open step.
  std::uint32_t added = 0;         // in deterministic mode also the place whose turn it is
  std::uint32_t held = kNowhere;   // list of Held, by place
  float* sum = nullptr;
  BufferRef sum_hold;
  double weight = 0;
  bool non_finite = false;
  bool done = false;
  std::span<const std::byte> result;
  BufferRef result_hold;
};

std::string Number(std::uint64_t n) { return std::to_string(n); }

Status Wrong(std::string_view field, const std::string& expected, const std::string& got) {
  return Corrupt("push: " + std::string(field) + ": expected " + expected + ", got " + got);
}

}  // namespace

struct Owner::Impl {
  Impl(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
       std::span<const Codec* const> tensor_codec, BufferPool* pool);

  Status OnPush(Frame& frame, std::vector<ReplyFrame>* replies);
  void EndStep(bool commit);

  // Changes nothing.
  Status Validate(const Frame& frame);
  Status ValidateStep(const FrameHeader& header);
  Status ValidateSlabs(const Frame& frame) const;
  Status ValidateHeldBytes(const FrameHeader& header) const;

  void Take(SlabState& state, std::uint32_t position, Contribution contribution);
  void Apply(SlabState& state, Contribution&& contribution);
  void Hold(SlabState& state, std::uint32_t place, Contribution&& contribution);
  void ApplyHeld(SlabState& state);
  void DropSum(SlabState& state);
  void Reply(const FrameHeader& push, std::vector<ReplyFrame>* replies);
  bool EncodeReply(SlabState& state, std::byte* out);
  ReplyFrame MakeReply(const SlabState& state) const;

  bool Arrived(std::uint32_t local, std::uint32_t position) const {
    return (arrived_[local * arrived_words_ + position / 64] >> (position % 64) & 1u) != 0;
  }
  // Place of a position in the slab's order u+1, …, u (mod N).
  std::uint32_t Place(const SlabState& state, std::uint32_t position) const {
    const std::uint32_t n = options_.workers;
    return (position + n - (state.number % n + 1) % n) % n;
  }
  bool AllDone() const { return done_ == states_.size(); }

  const OwnerOptions options_;
  const Layout& layout_;
  BufferPool* const pool_;
  std::vector<SlabState> states_;
  std::vector<std::uint32_t> local_of_;  // slab number -> index into states_, or kNowhere
  std::vector<std::uint64_t> arrived_;   // per slab a bit per position
  std::size_t arrived_words_ = 0;
  std::vector<Held> held_;               // recycled through free_held_
  std::uint32_t free_held_ = kNowhere;
  std::vector<std::uint32_t> completed_;  // by the frame at hand, local indices

  Layout residual_layout_;  // a tensor of one slab for each slab owned here
  ErrorFeedback residual_;
  ReplyEncoder encoder_;

  std::uint64_t step_ = 0;
  std::optional<bool> previous_committed_;  // verdict of step_ - 1
  std::size_t done_ = 0;
  std::uint64_t pushes_in_step_ = 0;
  bool step_non_finite_ = false;
  Stats stats_;
};

namespace {

Layout OwnedLayout(const Layout& layout, std::span<const std::uint32_t> slabs) {
  Layout owned;
  owned.first_slab.push_back(0);
  for (const std::uint32_t u : slabs) {
    const auto local = static_cast<std::uint32_t>(owned.slabs.size());
    owned.tensors.push_back({.name = {}, .elements = ElementCount(layout.slabs[u].elements)});
    owned.slabs.push_back({.tensor = local, .offset = 0, .elements = layout.slabs[u].elements, .bucket = 0});
    owned.first_slab.push_back(local + 1);
  }
  return owned;
}

std::vector<bool> LossySlabs(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
                             std::span<const Codec* const> tensor_codec) {
  std::vector<bool> lossy;
  for (const std::uint32_t u : slabs) {
    lossy.push_back(options.error_feedback && tensor_codec[layout.slabs[u].tensor]->traits().lossy);
  }
  return lossy;
}

}  // namespace

Owner::Impl::Impl(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
                  std::span<const Codec* const> tensor_codec, BufferPool* pool)
    : options_(options),
      layout_(layout),
      pool_(pool),
      local_of_(layout.slabs.size(), kNowhere),
      arrived_words_((options.workers + 63) / 64),
      residual_layout_(OwnedLayout(layout, slabs)),
      residual_(residual_layout_, LossySlabs(options, layout, slabs, tensor_codec)),
      step_(options.first_step.value) {
  TALLY_CHECK(options.workers >= 1, "an owner needs workers");
  states_.resize(slabs.size());
  for (std::uint32_t local = 0; local < slabs.size(); ++local) {
    SlabState& state = states_[local];
    state.number = slabs[local];
    state.slab = layout.slabs[state.number];
    state.codec = tensor_codec[state.slab.tensor];
    state.encoded_bytes = state.codec->EncodedBytes(state.slab.elements);
    local_of_[state.number] = local;
  }
  arrived_.resize(states_.size() * arrived_words_);
  completed_.reserve(states_.size());
}

Status Owner::Impl::ValidateStep(const FrameHeader& header) {
  const std::uint64_t step = header.step.value;
  if (step < step_ || step > step_ + 1) {
    ++stats_.stale;
    return InvalidArgument("push of step " + Number(step) + ": steps " + Number(step_) + " and " + Number(step_ + 1) +
                           " are accepted");
  }
  const std::uint16_t verdict = header.flags & kVerdictFlags;
  if (verdict == kVerdictFlags) return Wrong("flags", "one verdict of the step before", "both");
  if (step == step_) {
    if (verdict != 0 && previous_committed_.has_value() && *previous_committed_ != (verdict == kFlagPreviousCommitted)) {
      return Wrong("flags", *previous_committed_ ? "previous step committed" : "previous step skipped", "the opposite");
    }
    return Status::Ok();
  }
  if (verdict == 0) return Wrong("flags", "the verdict of step " + Number(step_), "none");
  if (!AllDone()) {
    return Wrong("step", Number(step_) + ", of which " + Number(states_.size() - done_) + " slabs are unfinished",
                 Number(step));
  }
  return Status::Ok();
}

Status Owner::Impl::ValidateSlabs(const Frame& frame) const {
  const FrameHeader& header = frame.header;
  const bool non_finite = (header.flags & kFlagNonFinite) != 0;
  if (header.slabs.empty()) return Wrong("slabs", "at least one", "none");
  if (non_finite && header.slabs.size() != 1) {
    return Wrong("slabs of a non-finite frame", "one", Number(header.slabs.size()));
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < header.slabs.size(); ++i) {
    const std::uint32_t u = header.slabs[i];
    if (i > 0 && u <= header.slabs[i - 1]) {
      return Wrong("slab numbers", "above " + Number(header.slabs[i - 1]), Number(u));
    }
    if (u >= local_of_.size() || local_of_[u] == kNowhere) return Wrong("slab", "one owned here", Number(u));
    const SlabState& state = states_[local_of_[u]];
    if (state.slab.bucket != header.bucket.value) {
      return Wrong("bucket of slab " + Number(u), Number(state.slab.bucket), Number(header.bucket.value));
    }
    if (state.codec->id() != header.codec) {
      return Wrong("codec of slab " + Number(u), Number(state.codec->id()), Number(header.codec));
    }
    bytes += state.encoded_bytes;
  }
  if (non_finite) bytes = 0;
  if (frame.payload.size() != bytes) {
    return Wrong("payload", Number(bytes) + " bytes", Number(frame.payload.size()));
  }
  if (non_finite) return Status::Ok();
  std::span<const std::byte> rest = frame.payload;
  for (const std::uint32_t u : header.slabs) {
    const SlabState& state = states_[local_of_[u]];
    const Status valid = state.codec->Validate(rest.first(state.encoded_bytes), state.slab.elements);
    if (!valid.ok()) return valid.WithContext("push: slab " + Number(u));
    rest = rest.subspan(state.encoded_bytes);
  }
  return Status::Ok();
}

Status Owner::Impl::ValidateHeldBytes(const FrameHeader& header) const {
  if (options_.held_bytes_cap == 0 || !options_.deterministic || (header.flags & kFlagNonFinite) != 0) {
    return Status::Ok();
  }
  const bool opens_step = header.step.value != step_;
  std::uint64_t bytes = opens_step ? 0 : stats_.held_bytes;
  for (const std::uint32_t u : header.slabs) {
    const std::uint32_t local = local_of_[u];
    const SlabState& state = states_[local];
    const bool duplicate = !opens_step && Arrived(local, header.position);
    if (!duplicate && Place(state, header.position) != (opens_step ? 0 : state.added)) bytes += state.encoded_bytes;
  }
  if (bytes <= options_.held_bytes_cap) return Status::Ok();
  return Wrong("early arrivals", "at most " + Number(options_.held_bytes_cap) + " bytes of credit", Number(bytes));
}

Status Owner::Impl::Validate(const Frame& frame) {
  const FrameHeader& header = frame.header;
  if (header.kind != FrameKind::kPush || header.role != Role::kWorker) {
    return Wrong("kind", "a push of a worker", "kind " + Number(static_cast<unsigned>(header.kind)));
  }
  if (header.job_hash != options_.job_hash) return Wrong("job", Number(options_.job_hash), Number(header.job_hash));
  if (header.group != options_.group) return Wrong("group", Number(options_.group.value), Number(header.group.value));
  if (header.epoch != options_.epoch) {
    return Mismatch("push of epoch " + Number(header.epoch.value) + ", current is " + Number(options_.epoch.value));
  }
  if (header.position >= options_.workers) {
    return Wrong("position", "below " + Number(options_.workers), Number(header.position));
  }
  if ((header.flags & ~(kFlagNonFinite | kVerdictFlags)) != 0) return Wrong("flags", "known ones", Number(header.flags));
  if (header.codec_version != 0) return Wrong("codec version", "0", Number(header.codec_version));
  if (!header.contributors.empty()) return Wrong("contributors", "none in a push", Number(header.contributors.size()));
  if (!(header.weight >= 0 && header.weight <= static_cast<double>(std::numeric_limits<float>::max())) ||
      static_cast<double>(static_cast<float>(header.weight)) != header.weight) {
    return Wrong("weight", "an fp32 number from 0", std::to_string(header.weight));
  }
  TALLY_RETURN_IF_ERROR(ValidateStep(header));
  TALLY_RETURN_IF_ERROR(ValidateSlabs(frame));
  return ValidateHeldBytes(header);
}

Status Owner::Impl::OnPush(Frame& frame, std::vector<ReplyFrame>* replies) {
  TALLY_RETURN_IF_ERROR(Validate(frame));
  TALLY_CHECK(frame.hold || frame.payload.empty(), "a frame's payload is kept alive by its hold");
  const FrameHeader& header = frame.header;
  if (header.step.value != step_) EndStep((header.flags & kFlagPreviousCommitted) != 0);
  ++stats_.pushes;
  ++pushes_in_step_;

  completed_.clear();
  const bool non_finite = (header.flags & kFlagNonFinite) != 0;
  const bool whole_frame = header.slabs.size() == 1;
  std::span<std::byte> rest = frame.payload;
  for (const std::uint32_t u : header.slabs) {
    const std::uint32_t local = local_of_[u];
    SlabState& state = states_[local];
    const std::span<std::byte> payload = rest.first(non_finite ? 0 : state.encoded_bytes);
    rest = rest.subspan(payload.size());
    if (Arrived(local, header.position)) {
      ++stats_.duplicates;
      if (state.done) {
        ReplyFrame& again = replies->emplace_back(MakeReply(state));
        again.only_one = true;
        again.only = Position(header.position);
      }
      continue;
    }
    arrived_[local * arrived_words_ + header.position / 64] |= std::uint64_t{1} << (header.position % 64);
    Contribution contribution{payload, whole_frame ? std::move(frame.hold) : frame.hold, header.weight, non_finite,
                              whole_frame};
    Take(state, header.position, std::move(contribution));
    if (state.added == options_.workers) completed_.push_back(local);
  }
  Reply(header, replies);
  return Status::Ok();
}

void Owner::Impl::Take(SlabState& state, std::uint32_t position, Contribution contribution) {
  const std::uint32_t place = options_.deterministic ? Place(state, position) : state.added;
  if (place != state.added) {
    Hold(state, place, std::move(contribution));
    return;
  }
  Apply(state, std::move(contribution));
  ApplyHeld(state);
}

void Owner::Impl::Apply(SlabState& state, Contribution&& contribution) {
  state.weight += contribution.weight;
  ++state.added;
  if (contribution.non_finite) {
    state.non_finite = true;
    DropSum(state);
  }
  if (state.non_finite) return;
  const std::size_t n = state.slab.elements;
  if (state.sum != nullptr) {
    state.codec->DecodeAdd(contribution.payload, n, state.sum);
    return;
  }
  stats_.accumulator_bytes += n * sizeof(float);
  // Bytes that nobody else needs become the accumulator where they lie.
  const auto address = reinterpret_cast<std::uintptr_t>(contribution.payload.data());
  if (state.codec->id() == kCodecNone && contribution.whole_frame && contribution.hold.unique() &&
      address % alignof(float) == 0) {
    state.sum = reinterpret_cast<float*>(contribution.payload.data());
    state.sum_hold = std::move(contribution.hold);
    return;
  }
  state.sum_hold = pool_->Get(n * sizeof(float));
  state.sum = reinterpret_cast<float*>(state.sum_hold.data());
  state.codec->Decode(contribution.payload, n, state.sum);
}

void Owner::Impl::Hold(SlabState& state, std::uint32_t place, Contribution&& contribution) {
  std::uint32_t index = free_held_;
  if (index == kNowhere) {
    index = static_cast<std::uint32_t>(held_.size());
    held_.emplace_back();
  } else {
    free_held_ = held_[index].next;
  }
  stats_.held_bytes += contribution.payload.size();
  stats_.held_bytes_max = std::max(stats_.held_bytes_max, stats_.held_bytes);
  held_[index].contribution = std::move(contribution);
  held_[index].place = place;
  std::uint32_t* link = &state.held;
  while (*link != kNowhere && held_[*link].place < place) link = &held_[*link].next;
  held_[index].next = std::exchange(*link, index);
}

void Owner::Impl::ApplyHeld(SlabState& state) {
  while (state.held != kNowhere && held_[state.held].place == state.added) {
    const std::uint32_t index = state.held;
    Held& held = held_[index];
    stats_.held_bytes -= held.contribution.payload.size();
    Apply(state, std::move(held.contribution));
    held.contribution = {};
    state.held = std::exchange(held.next, std::exchange(free_held_, index));
  }
}

void Owner::Impl::DropSum(SlabState& state) {
  if (state.sum == nullptr) return;
  stats_.accumulator_bytes -= state.slab.elements * sizeof(float);
  state.sum = nullptr;
  state.sum_hold.Reset();
}

bool Owner::Impl::EncodeReply(SlabState& state, std::byte* out) {
  if (state.non_finite) return false;
  const Slab& owned = residual_layout_.slabs[local_of_[state.number]];
  const EncodeKey key{.seed = options_.seed,
                      .tensor = state.slab.tensor,
                      .step = step_,
                      .position = kReplyPosition,
                      .offset = state.slab.offset,
                      .stochastic = options_.stochastic};
  return encoder_.Encode(*state.codec, key, state.sum, state.slab.elements, static_cast<float>(state.weight),
                         residual_.Old(owned), residual_.Next(owned), out);
}

ReplyFrame Owner::Impl::MakeReply(const SlabState& state) const {
  ReplyFrame reply;
  FrameHeader& header = reply.header;
  header.job_hash = options_.job_hash;
  header.epoch = options_.epoch;
  header.group = options_.group;
  header.step = StepId(step_);
  header.bucket = BucketId(state.slab.bucket);
  header.position = options_.index;
  header.role = options_.role;
  header.kind = FrameKind::kReply;
  header.codec = state.codec->id();
  header.flags = state.non_finite ? kFlagNonFinite : 0;
  header.weight = static_cast<double>(static_cast<float>(state.weight));
  header.slabs.push_back(state.number);
  reply.payload = state.result;
  reply.hold = state.result_hold;
  return reply;
}

// The completed slabs' results lie one after another in one buffer and travel in one frame; a slab that turns out not
// finite takes no room and travels alone, as does one whose weight was added in another order to another number.
void Owner::Impl::Reply(const FrameHeader& push, std::vector<ReplyFrame>* replies) {
  if (completed_.empty()) return;
  const bool in_place = completed_.size() == 1 && push.codec == kCodecNone;
  std::size_t room = 0;
  for (const std::uint32_t local : completed_) room += states_[local].encoded_bytes;
  BufferRef buffer;
  if (!in_place) buffer = pool_->Get(room);
  std::size_t used = 0;
  std::optional<std::size_t> open;  // the frame in `replies` that the next slab may join
  for (const std::uint32_t local : completed_) {
    SlabState& state = states_[local];
    std::byte* out = in_place ? reinterpret_cast<std::byte*>(state.sum) : buffer.data() + used;
    const bool finite = EncodeReply(state, out);
    state.done = true;
    ++done_;
    ++stats_.slabs_done;
    if (!finite) {
      state.non_finite = true;
      step_non_finite_ = true;
      ++stats_.non_finite_slabs;
      DropSum(state);
      replies->push_back(MakeReply(state));
      continue;
    }
    state.result = {out, state.encoded_bytes};
    state.result_hold = in_place ? state.sum_hold : buffer;
    if (!in_place) DropSum(state);
    used += state.encoded_bytes;
    if (open && (*replies)[*open].header.weight == static_cast<double>(static_cast<float>(state.weight))) {
      ReplyFrame& frame = (*replies)[*open];
      frame.header.slabs.push_back(state.number);
      frame.payload = {frame.payload.data(), frame.payload.size() + state.encoded_bytes};
      continue;
    }
    open = replies->size();
    replies->push_back(MakeReply(state));
  }
}

void Owner::Impl::EndStep(bool commit) {
  // A step with a non-finite slab changes no residual, whatever the verdict claims.
  if (commit && !step_non_finite_) {
    residual_.Commit();
  } else {
    residual_.Drop();
  }
  for (SlabState& state : states_) {
    DropSum(state);
    while (state.held != kNowhere) {
      Held& held = held_[state.held];
      stats_.held_bytes -= held.contribution.payload.size();
      held.contribution = {};
      const std::uint32_t index = std::exchange(state.held, held.next);
      held.next = std::exchange(free_held_, index);
    }
    state.result = {};
    state.result_hold.Reset();
    state.added = 0;
    state.weight = 0;
    state.non_finite = state.done = false;
  }
  std::ranges::fill(arrived_, 0);
  done_ = 0;
  pushes_in_step_ = 0;
  step_non_finite_ = false;
  previous_committed_ = commit;
  ++step_;
}

Owner::Owner(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
             std::span<const Codec* const> tensor_codec, BufferPool* pool)
    : impl_(std::make_unique<Impl>(options, layout, slabs, tensor_codec, pool)) {}

Owner::~Owner() = default;

Status Owner::OnPush(Frame& frame, std::vector<ReplyFrame>* replies) { return impl_->OnPush(frame, replies); }

void Owner::OnVerdict(StepId step, bool commit) {
  if (step.value == impl_->step_) impl_->EndStep(commit);
}

std::string Owner::Missing(std::size_t max_items) const {
  if (impl_->pushes_in_step_ == 0) return {};
  std::string text;
  std::size_t items = 0;
  for (std::uint32_t local = 0; local < impl_->states_.size(); ++local) {
    const SlabState& state = impl_->states_[local];
    if (state.done) continue;
    if (++items > max_items) continue;
    if (!text.empty()) text += "; ";
    text += "slab " + Number(state.number) + " (" + impl_->layout_.tensors[state.slab.tensor].name + ") misses positions ";
    std::size_t listed = 0;
    for (std::uint32_t p = 0; p < impl_->options_.workers; ++p) {
      if (impl_->Arrived(local, p)) continue;
      if (listed == max_items) {
        text += ", ...";
        break;
      }
      text += (listed++ == 0 ? "" : ", ") + Number(p);
    }
  }
  if (items > max_items) text += "; and " + Number(items - max_items) + " more slabs";
  return text;
}

const Owner::Stats& Owner::stats() const { return impl_->stats_; }
double Owner::ResidualL1() const { return impl_->residual_.L1(); }

std::span<const float> Owner::Residual(SlabId slab) const {
  const auto& local_of = impl_->local_of_;
  if (slab.value >= local_of.size() || local_of[slab.value] == kNowhere) return {};
  return impl_->residual_.Residual(local_of[slab.value]);
}

}  // namespace tally
