#include "server/core/owner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "common/check.h"
#include "compress/error_feedback.h"
#include "server/core/owned_slabs.h"
#include "server/core/owner_reply.h"

namespace tally {
namespace {

constexpr std::uint32_t kNowhere = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kReplyPosition = std::numeric_limits<std::uint32_t>::max();  // EncodeKey of replies
constexpr std::uint16_t kVerdictFlags = kFlagPreviousCommitted | kFlagPreviousSkipped;
constexpr std::uint16_t kEmptyFlags = kFlagNonFinite | kFlagKeep;  // no payload

// One position's part of one slab.
struct Contribution {
  std::span<std::byte> payload;
  BufferRef hold;         // keeps payload alive; the last reference if nobody else needs its frame
  double weight = 0;
  bool non_finite = false;
  bool keep = false;         // zeros
  bool whole_frame = false;  // payload is all that hold carries
};

// A contribution that waits for its turn, in its slab's list, by place in the slab's order.
struct Held {
  Contribution contribution;
  std::uint32_t place = 0;
  std::uint32_t next = kNowhere;
};

constexpr double kMaxWeight = 65536.0 * static_cast<double>(std::numeric_limits<float>::max());

constexpr std::uint8_t kNoVersion = 0xFF;

// A slab in the open step.
struct SlabState {
  std::uint8_t version = kNoVersion;  // of its pushes' codec
  std::uint32_t added = 0;         // in deterministic mode also the place whose turn it is
  std::uint32_t held = kNowhere;   // list of Held, by place
  std::byte* sum = nullptr;        // fp32 numbers, or as the codec's OwnerSum has it
  BufferRef sum_hold;
  double weight = 0;
  std::uint32_t kept = 0;          // of those added: zeros that travelled as a flag
  bool non_finite = false;
  bool done = false;
  std::span<const std::byte> result;
  BufferRef result_hold;
};

std::string Number(std::uint64_t n) { return std::to_string(n); }

// The total weight as it travels: the sum in double, rounded once.
float TotalWeight(const SlabState& state) { return static_cast<float>(state.weight); }

std::vector<bool> LossySlabs(bool error_feedback, const OwnedSlabs& owned) {
  std::vector<bool> lossy(owned.size());
  for (std::uint32_t local = 0; local < owned.size(); ++local) {
    lossy[local] = error_feedback && HasLossyReply(*owned[local].codec);
  }
  return lossy;
}

}  // namespace

struct Owner::Impl {
  Impl(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
       std::span<const Codec* const> tensor_codec, BufferPool* pool, Impl* former);
  static ErrorFeedback MakeResidual(const Layout& layout, const std::vector<bool>& lossy, Impl* former);

  Status OnPush(Frame& frame, RecycledList<ReplyFrame>* replies);
  void EndStep(bool commit);

  // Changes nothing.
  Status Validate(const Frame& frame);
  Status ValidateHeader(const FrameHeader& header) const;
  Status ValidateStep(const FrameHeader& header);
  Status ValidateVersion(const FrameHeader& header) const;
  Status ValidateHeldBytes(const FrameHeader& header) const;

  // Slabs below are named by their local index.
  void Take(std::uint32_t local, std::uint32_t position, Contribution contribution);
  void Apply(std::uint32_t local, Contribution&& contribution);
  void Hold(SlabState& state, std::uint32_t place, Contribution&& contribution);
  Contribution TakeFirstHeld(SlabState& state);
  void DropSum(std::uint32_t local);
  void Reply(const FrameHeader& push, RecycledList<ReplyFrame>* replies);
  std::size_t SumBytes(std::uint32_t local) const;
  std::size_t ReplyBytes(std::uint32_t local) const;
  bool EncodeReply(std::uint32_t local, std::span<std::byte> out);
  void MakeReply(std::uint32_t local, ReplyFrame* reply) const;

  bool Arrived(std::uint32_t local, std::uint32_t position) const {
    return (arrived_[local * arrived_words_ + position / 64] >> (position % 64) & 1u) != 0;
  }
  // Place of a position in the slab's order u+1, …, u (mod N).
  std::uint32_t Place(std::uint32_t local, std::uint32_t position) const {
    const std::uint32_t n = options_.workers;
    return (position + n - (owned_[local].number % n + 1) % n) % n;
  }
  // Every part is a flag: nothing was sent, so nothing is answered and no residual is touched.
  bool AllKept(const SlabState& state) const { return state.kept == options_.workers && !state.non_finite; }
  bool AllDone() const { return done_ == states_.size(); }

  const OwnerOptions options_;
  const Layout& layout_;
  BufferPool* const pool_;
  const OwnedSlabs owned_;
  std::vector<SlabState> states_;
  std::vector<std::uint64_t> arrived_;  // per slab a bit per position
  const std::size_t arrived_words_;
  std::vector<Held> held_;              // recycled through free_held_
  std::uint32_t free_held_ = kNowhere;
  std::vector<std::uint32_t> completed_;  // by the frame at hand, local indices
  std::vector<std::size_t> reply_bytes_;  // of those

  const Layout residual_layout_;
  ErrorFeedback residual_;
  ReplyEncoder encoder_;

  std::uint64_t step_ = 0;
  std::optional<bool> previous_committed_;  // verdict of step_ - 1
  std::size_t done_ = 0;
  std::uint64_t pushes_in_step_ = 0;
  bool step_non_finite_ = false;
  Stats stats_;
};

Owner::Impl::Impl(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
                  std::span<const Codec* const> tensor_codec, BufferPool* pool, Impl* former)
    : options_(options),
      layout_(layout),
      pool_(pool),
      owned_(layout, slabs, tensor_codec, options.workers),
      states_(slabs.size()),
      arrived_words_((options.workers + 63) / 64),
      residual_layout_(owned_.AsTensors()),
      residual_(MakeResidual(residual_layout_, LossySlabs(options.error_feedback, owned_), former)),
      step_(options.first_step.value),
      previous_committed_(options.previous_committed) {
  TALLY_CHECK(options.workers >= 1, "an owner needs workers");
  arrived_.resize(states_.size() * arrived_words_);
  completed_.reserve(states_.size());
  reply_bytes_.reserve(states_.size());
}

ErrorFeedback Owner::Impl::MakeResidual(const Layout& layout, const std::vector<bool>& lossy, Impl* former) {
  bool same = former != nullptr;
  for (std::uint32_t local = 0; same && local < lossy.size(); ++local) same = former->residual_.Has(local) == lossy[local];
  if (same) return std::move(former->residual_);
  ErrorFeedback residual(layout, lossy);
  for (std::uint32_t local = 0; former != nullptr && local < lossy.size(); ++local) {
    const std::span<const float> kept = former->residual_.Residual(local);
    TALLY_CHECK(kept.empty() || lossy[local], "an owner's residual has an heir");
    if (!kept.empty()) residual.Restore(local, kept);
  }
  return residual;
}

Status Owner::Impl::ValidateStep(const FrameHeader& header) {
  const std::uint64_t step = header.step.value;
  if (step < step_ || step > step_ + 1) {
    ++stats_.stale;
    return InvalidArgument("push of step " + Number(step) + ": steps " + Number(step_) + " and " + Number(step_ + 1) +
                           " are accepted");
  }
  const std::uint16_t verdict = header.flags & kVerdictFlags;
  if (verdict == kVerdictFlags) return WrongPush("flags", "one verdict of the step before", "both");
  if (step == step_) {
    const bool committed = verdict == kFlagPreviousCommitted;
    if (verdict != 0 && previous_committed_.has_value() && *previous_committed_ != committed) {
      return WrongPush("verdict of the step before", committed ? "skipped" : "committed", "the opposite");
    }
    return Status::Ok();
  }
  if (verdict == 0) return WrongPush("flags", "the verdict of step " + Number(step_), "none");
  if (!AllDone()) {
    return WrongPush("step", Number(step_) + ", of which " + Number(states_.size() - done_) + " slabs are unfinished",
                 Number(step));
  }
  return Status::Ok();
}

Status Owner::Impl::ValidateVersion(const FrameHeader& header) const {
  for (const std::uint32_t u : header.slabs) {
    const std::uint32_t local = owned_.Local(u);
    const unsigned versions = owned_[local].sum == nullptr ? 1 : owned_[local].sum->versions();
    const std::uint8_t known = header.step.value == step_ ? states_[local].version : kNoVersion;
    if (header.codec_version < versions && (known == kNoVersion || known == header.codec_version)) continue;
    const std::string others = ", as the slab's other pushes (all ranks resume from the same checkpoint, or none does)";
    return WrongPush("codec version of slab " + Number(u),
                     known == kNoVersion ? "below " + Number(versions) : Number(known) + others,
                     Number(header.codec_version));
  }
  return Status::Ok();
}

Status Owner::Impl::ValidateHeldBytes(const FrameHeader& header) const {
  if (options_.held_bytes_cap == 0 || !options_.deterministic || (header.flags & kEmptyFlags) != 0) {
    return Status::Ok();
  }
  const bool opens_step = header.step.value != step_;
  std::uint64_t bytes = opens_step ? 0 : stats_.held_bytes;
  for (const std::uint32_t u : header.slabs) {
    const std::uint32_t local = owned_.Local(u);
    if (!opens_step && Arrived(local, header.position)) continue;
    const std::uint32_t turn = opens_step ? 0 : states_[local].added;
    if (Place(local, header.position) != turn) bytes += owned_[local].encoded_bytes;
  }
  if (bytes <= options_.held_bytes_cap) return Status::Ok();
  return WrongPush("early arrivals", "at most " + Number(options_.held_bytes_cap) + " bytes of credit", Number(bytes));
}

Status Owner::Impl::ValidateHeader(const FrameHeader& header) const {
  if (header.kind != FrameKind::kPush || header.role != Role::kWorker) {
    return WrongPush("kind", "a push of a worker", "kind " + Number(static_cast<unsigned>(header.kind)));
  }
  if (header.job_hash != options_.job_hash) return WrongPush("job", Number(options_.job_hash), Number(header.job_hash));
  if (header.group != options_.group) {
    return WrongPush("group", Number(options_.group.value), Number(header.group.value));
  }
  if (header.epoch != options_.epoch) {
    return Mismatch("push of epoch " + Number(header.epoch.value) + ", current is " + Number(options_.epoch.value));
  }
  if (header.position >= options_.workers) {
    return WrongPush("position", "below " + Number(options_.workers), Number(header.position));
  }
  if ((header.flags & ~(kEmptyFlags | kVerdictFlags)) != 0) {
    return WrongPush("flags", "known ones", Number(header.flags));
  }
  if (!header.contributors.empty()) {
    return WrongPush("contributors", "none in a push", Number(header.contributors.size()));
  }
  // A worker's is an fp32 number; a node's is the sum of several, in double.
  if (!(header.weight >= 0 && header.weight <= kMaxWeight)) {
    return WrongPush("weight", "a number from 0 to " + std::to_string(kMaxWeight), std::to_string(header.weight));
  }
  return Status::Ok();
}

Status Owner::Impl::Validate(const Frame& frame) {
  const FrameHeader& header = frame.header;
  TALLY_RETURN_IF_ERROR(ValidateHeader(header));
  TALLY_RETURN_IF_ERROR(ValidateStep(header));
  TALLY_RETURN_IF_ERROR(owned_.Check(frame));
  TALLY_RETURN_IF_ERROR(ValidateVersion(header));
  return ValidateHeldBytes(header);
}

Status Owner::Impl::OnPush(Frame& frame, RecycledList<ReplyFrame>* replies) {
  TALLY_RETURN_IF_ERROR(Validate(frame));
  TALLY_CHECK(frame.hold || frame.payload.empty(), "a frame's payload is kept alive by its hold");
  const FrameHeader& header = frame.header;
  if (header.step.value != step_) EndStep((header.flags & kFlagPreviousCommitted) != 0);
  ++stats_.pushes;
  ++pushes_in_step_;

  completed_.clear();
  const bool non_finite = (header.flags & kFlagNonFinite) != 0;
  const bool keep = (header.flags & kFlagKeep) != 0;
  const bool whole_frame = header.slabs.size() == 1;
  std::span<std::byte> rest = frame.payload;
  for (const std::uint32_t u : header.slabs) {
    const std::uint32_t local = owned_.Local(u);
    const std::span<std::byte> payload = rest.first(non_finite || keep ? 0 : owned_[local].encoded_bytes);
    rest = rest.subspan(payload.size());
    if (Arrived(local, header.position)) {
      ++stats_.duplicates;
      if (states_[local].done) {
        ReplyFrame& again = replies->Add();
        MakeReply(local, &again);
        again.only_one = true;
        again.only = Position(header.position);
      }
      continue;
    }
    arrived_[local * arrived_words_ + header.position / 64] |= std::uint64_t{1} << (header.position % 64);
    states_[local].version = header.codec_version;
    BufferRef hold = whole_frame ? std::move(frame.hold) : frame.hold;
    Take(local, header.position, {payload, std::move(hold), header.weight, non_finite, keep, whole_frame});
    if (states_[local].added == options_.workers) completed_.push_back(local);
  }
  Reply(header, replies);
  return Status::Ok();
}

void Owner::Impl::Take(std::uint32_t local, std::uint32_t position, Contribution contribution) {
  SlabState& state = states_[local];
  const std::uint32_t place = options_.deterministic ? Place(local, position) : state.added;
  if (place != state.added) {
    Hold(state, place, std::move(contribution));
    return;
  }
  Apply(local, std::move(contribution));
  while (state.held != kNowhere && held_[state.held].place == state.added) Apply(local, TakeFirstHeld(state));
}

void Owner::Impl::Apply(std::uint32_t local, Contribution&& contribution) {
  SlabState& state = states_[local];
  state.weight += contribution.weight;
  ++state.added;
  if (contribution.non_finite) {
    state.non_finite = true;
    DropSum(local);
  }
  if (contribution.keep) ++state.kept;
  if (state.non_finite || contribution.keep) return;
  const Codec& codec = *owned_[local].codec;
  const OwnerSum* sum = owned_[local].sum;
  const std::size_t n = owned_[local].slab.elements;
  if (state.sum != nullptr) {
    if (sum != nullptr) return sum->Add(state.version, contribution.payload, n, state.sum);
    return codec.DecodeAdd(contribution.payload, n, reinterpret_cast<float*>(state.sum));
  }
  stats_.accumulator_bytes += SumBytes(local);
  // Bytes that nobody else needs become the accumulator where they lie.
  const auto address = reinterpret_cast<std::uintptr_t>(contribution.payload.data());
  if (codec.id() == kCodecNone && contribution.whole_frame && contribution.hold.unique() &&
      address % alignof(float) == 0) {
    state.sum = contribution.payload.data();
    state.sum_hold = std::move(contribution.hold);
    return;
  }
  state.sum_hold = pool_->Get(SumBytes(local));
  state.sum = state.sum_hold.data();
  if (sum != nullptr) return sum->Start(state.version, contribution.payload, n, state.sum);
  codec.Decode(contribution.payload, n, reinterpret_cast<float*>(state.sum));
}

std::size_t Owner::Impl::SumBytes(std::uint32_t local) const {
  const OwnedSlab& owned = owned_[local];
  const std::size_t n = owned.slab.elements;
  return owned.sum == nullptr ? n * sizeof(float) : owned.sum->SumBytes(states_[local].version, n);
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

Contribution Owner::Impl::TakeFirstHeld(SlabState& state) {
  const std::uint32_t index = state.held;
  Held& held = held_[index];
  stats_.held_bytes -= held.contribution.payload.size();
  state.held = std::exchange(held.next, free_held_);
  free_held_ = index;
  return std::exchange(held.contribution, {});
}

void Owner::Impl::DropSum(std::uint32_t local) {
  SlabState& state = states_[local];
  if (state.sum == nullptr) return;
  stats_.accumulator_bytes -= SumBytes(local);
  state.sum = nullptr;
  state.sum_hold.Reset();
}

// 0 if an OwnerSum cannot tell it in finite numbers.
std::size_t Owner::Impl::ReplyBytes(std::uint32_t local) const {
  const OwnedSlab& owned = owned_[local];
  const SlabState& state = states_[local];
  if (owned.sum == nullptr) return owned.encoded_bytes;
  if (state.sum == nullptr || state.non_finite || !std::isfinite(TotalWeight(state))) return 0;
  return owned.sum->ReplyBytes(state.version, state.sum, owned.slab.elements);
}

bool Owner::Impl::EncodeReply(std::uint32_t local, std::span<std::byte> out) {
  const SlabState& state = states_[local];
  if (state.non_finite || state.sum == nullptr) return false;
  const OwnedSlab& owned = owned_[local];
  if (owned.sum != nullptr) {
    owned.sum->Reply(state.version, state.sum, owned.slab.elements, out);
    return true;
  }
  const EncodeKey key{.seed = options_.seed,
                      .tensor = owned.slab.tensor,
                      .step = step_,
                      .position = kReplyPosition,
                      .offset = owned.slab.offset,
                      .stochastic = options_.stochastic};
  // As zeros that travelled would have done: a sum of nothing but -0 becomes +0.
  auto* sum = reinterpret_cast<float*>(state.sum);
  for (std::size_t i = 0; state.kept != 0 && i < owned.slab.elements; ++i) sum[i] += 0.0F;
  const Slab& residual = residual_layout_.slabs[local];
  if (!encoder_.Encode(*owned.codec, key, sum, owned.slab.elements, TotalWeight(state), residual_.Old(residual),
                       residual_.Next(residual), out.data())) {
    return false;
  }
  stats_.saturated += owned.codec->Saturated(out, owned.slab.elements);
  return true;
}

void Owner::Impl::MakeReply(std::uint32_t local, ReplyFrame* reply) const {
  const SlabState& state = states_[local];
  const OwnedSlab& owned = owned_[local];
  FrameHeader& header = reply->header;
  header.job_hash = options_.job_hash;
  header.epoch = options_.epoch;
  header.group = options_.group;
  header.step = StepId(step_);
  header.bucket = BucketId(owned.slab.bucket);
  header.position = options_.index;
  header.role = options_.role;
  header.kind = FrameKind::kReply;
  header.codec = owned.codec->id();
  header.codec_version = state.version;
  header.flags = state.non_finite ? kFlagNonFinite : AllKept(state) ? kFlagKeep : 0;
  header.weight = static_cast<double>(TotalWeight(state));
  header.slabs.assign(1, owned.number);
  reply->payload = state.result;
  reply->hold = state.result_hold;
  reply->only_one = false;
}

// The completed slabs' results lie one after another in one buffer and travel in one frame; a slab that turns out not
// finite, or that everybody keeps, takes no room and travels alone, as does one whose weight was added in another order
// to another number.
void Owner::Impl::Reply(const FrameHeader& push, RecycledList<ReplyFrame>* replies) {
  if (completed_.empty()) return;
  const bool in_place = completed_.size() == 1 && push.codec == kCodecNone;
  std::size_t room = 0;
  reply_bytes_.clear();
  for (const std::uint32_t local : completed_) room += reply_bytes_.emplace_back(ReplyBytes(local));
  BufferRef buffer;
  if (!in_place) buffer = pool_->Get(room);
  std::size_t used = 0;
  std::optional<std::size_t> open;  // the frame in `replies` that the next slab may join
  for (std::size_t i = 0; i < completed_.size(); ++i) {
    const std::uint32_t local = completed_[i];
    SlabState& state = states_[local];
    const std::size_t bytes = reply_bytes_[i];
    std::byte* out = in_place ? state.sum : buffer.data() + used;
    const bool kept = AllKept(state) && std::isfinite(TotalWeight(state));
    const bool finite = kept || (bytes != 0 && EncodeReply(local, {out, bytes}));
    state.done = true;
    ++done_;
    ++stats_.slabs_done;
    if (!finite) {
      state.non_finite = true;
      step_non_finite_ = true;
      ++stats_.non_finite_slabs;
      DropSum(local);
      MakeReply(local, &replies->Add());
      continue;
    }
    if (kept) {
      MakeReply(local, &replies->Add());
      continue;
    }
    state.result = {out, bytes};
    state.result_hold = in_place ? state.sum_hold : buffer;
    if (!in_place) DropSum(local);
    used += bytes;
    if (open && (*replies)[*open].header.weight == static_cast<double>(TotalWeight(state)) &&
        (*replies)[*open].payload.size() + bytes <= kMaxPayloadBytes) {
      ReplyFrame& frame = (*replies)[*open];
      frame.header.slabs.push_back(owned_[local].number);
      frame.payload = {frame.payload.data(), frame.payload.size() + bytes};
      continue;
    }
    open = replies->size();
    MakeReply(local, &replies->Add());
  }
}

void Owner::Impl::EndStep(bool commit) {
  // A step with a non-finite slab changes no residual, whatever the verdict claims.
  if (commit && !step_non_finite_) {
    residual_.Commit();
  } else {
    residual_.Drop();
  }
  for (std::uint32_t local = 0; local < owned_.size(); ++local) {
    DropSum(local);
    SlabState& state = states_[local];
    while (state.held != kNowhere) (void)TakeFirstHeld(state);
    state.result = {};
    state.result_hold.Reset();
    state.added = 0;
    state.weight = 0;
    state.kept = 0;
    state.non_finite = state.done = false;
    state.version = kNoVersion;
  }
  std::ranges::fill(arrived_, 0);
  done_ = 0;
  pushes_in_step_ = 0;
  step_non_finite_ = false;
  previous_committed_ = commit;
  ++step_;
}

Owner::Owner(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
             std::span<const Codec* const> tensor_codec, BufferPool* pool, Owner* former)
    : impl_(std::make_unique<Impl>(options, layout, slabs, tensor_codec, pool,
                                   former == nullptr ? nullptr : former->impl_.get())) {}

Owner::~Owner() = default;

Status Owner::OnPush(Frame& frame, RecycledList<ReplyFrame>* replies) { return impl_->OnPush(frame, replies); }

Status Owner::CheckHeader(const FrameHeader& header) const { return impl_->ValidateHeader(header); }
StepId Owner::step() const { return StepId(impl_->step_); }
bool Owner::all_done() const { return impl_->AllDone(); }

bool Owner::OnVerdict(StepId step, bool commit) {
  if (step.value != impl_->step_) return false;
  impl_->EndStep(commit);
  return true;
}

std::string Owner::Missing(std::size_t max_items) const {
  if (impl_->pushes_in_step_ == 0) return {};
  std::string text;
  std::size_t items = 0;
  for (std::uint32_t local = 0; local < impl_->states_.size(); ++local) {
    if (impl_->states_[local].done) continue;
    if (++items > max_items) continue;
    if (!text.empty()) text += "; ";
    const OwnedSlab& owned = impl_->owned_[local];
    text += "slab " + Number(owned.number) + " (" + impl_->layout_.tensors[owned.slab.tensor].name +
            ") misses ranks ";
    std::size_t listed = 0;
    for (std::uint32_t p = 0; p < impl_->options_.workers; ++p) {
      if (impl_->Arrived(local, p)) continue;
      if (listed == max_items) {
        text += ", ...";
        break;
      }
      const SpeakerOf& speaker = impl_->options_.speaker;
      text += (listed++ == 0 ? "" : ", ") + Number(speaker ? speaker(owned.number, Position(p)).value : p);
    }
  }
  if (items > max_items) text += "; and " + Number(items - max_items) + " more slabs";
  return text;
}

const Owner::Stats& Owner::stats() const { return impl_->stats_; }
double Owner::ResidualL1() const { return impl_->residual_.L1(); }

std::span<const float> Owner::Residual(SlabId slab) const {
  const std::uint32_t local = impl_->owned_.Local(slab.value);
  if (local == OwnedSlabs::kNotHere) return {};
  return impl_->residual_.Residual(local);
}

void Owner::RestoreResidual(SlabId slab, std::span<const float> values) {
  const std::uint32_t local = impl_->owned_.Local(slab.value);
  TALLY_CHECK(local != OwnedSlabs::kNotHere, "only of slabs owned here");
  impl_->residual_.Restore(local, values);
}

}  // namespace tally
