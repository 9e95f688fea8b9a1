// The law of conservation over the table of codecs: inputs (of one with momentum: its velocities) = delivered sums +
// residuals of workers and owners, element by element and after every step, over random schedules of commits, skips,
// values that are not finite, kept tensors, arrivals in any order, saving and reading back, other buckets, other owners,
// workers that come and go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/schedule/layout.h"
#include "compress/codec_state.h"
#include "compress/owner_sum.h"
#include "compress/residual_transfer.h"
#include "compress/saved_state.h"
#include "server/core/owner.h"

namespace tally {
namespace {

constexpr std::uint64_t kSizes[] = {9001, 1, 700};
constexpr std::uint64_t kAll = 9702;
constexpr std::uint64_t kSteps = 25;
constexpr std::uint32_t kOwners = 2;
constexpr float kMomentum = 0.5F;

class Job {
 public:
  Job(const std::string& codec, std::uint32_t seed) : random_(seed) {
    Config::Compression options;
    options.ratio = 0.05;
    options.dgc_momentum = kMomentum;
    codec_ = MakeCodec(codec, options).value();
    tensor_codec_.assign(std::size(kSizes), codec_.get());
    Begin(4);
  }

  const Codec& codec() const { return *codec_; }

  void Step() {
    const bool bad = Chance(6), skip = bad || Chance(5);
    const bool all_keep = Chance(6);
    struct Push {
      std::uint32_t position, slab;
      std::uint16_t flags;
      BufferRef payload;
    };
    std::vector<Push> pushes;
    std::vector<double> input(kAll);
    const std::uint8_t version = states_[0]->Version(*codec_);
    for (std::uint32_t p = 0; p < workers_; ++p) {
      std::vector<bool> keeps;
      for (std::size_t t = 0; t < std::size(kSizes); ++t) keeps.push_back((all_keep && t == 0) || Chance(4));
      for (std::uint32_t u = 0; u < layout_.slabs.size(); ++u) {
        const Slab& slab = layout_.slabs[u];
        if (keeps[slab.tensor]) {
          pushes.push_back({p, u, kFlagKeep, {}});
          continue;
        }
        std::vector<float> g(slab.elements);
        for (std::size_t i = 0; i < g.size(); ++i) {
          g[i] = static_cast<float>(static_cast<int>(random_() % 16'001) - 8000) / 64.0F;
          input[Start(slab) + i] += static_cast<double>(g[i]);
        }
        if (codec_->traits().momentum) {
          const auto velocity = states_[p]->velocity.Residual(slab.tensor).subspan(slab.offset, g.size());
          for (std::size_t i = 0; i < g.size(); ++i) input[Start(slab) + i] += static_cast<double>(kMomentum * velocity[i]);
        }
        if (bad && Chance(3)) g[random_() % g.size()] = std::numeric_limits<float>::infinity();
        BufferRef payload = pool_.Get(codec_->EncodedBytes(g.size()));
        const EncodeKey key{.seed = 1, .tensor = slab.tensor, .step = step_, .position = p, .offset = slab.offset};
        const bool finite = states_[p]->Encode(*codec_, key, slab, u, g.data(), 1, payload.data());
        const std::uint16_t flags = finite ? 0 : kFlagNonFinite;
        pushes.push_back({p, u, flags, finite ? std::move(payload) : BufferRef()});
        if (!finite) non_finite_ = true;
      }
    }
    std::ranges::shuffle(pushes, random_);
    RecycledList<ReplyFrame> replies;
    for (Push& push : pushes) {
      Frame frame;
      frame.header.epoch = EpochId(1);
      frame.header.group = GroupId(1);
      frame.header.step = StepId(step_);
      frame.header.position = push.position;
      frame.header.codec = codec_->id();
      frame.header.codec_version = version;
      frame.header.slabs = {push.slab};
      frame.header.flags = push.flags;
      if (verdict_known_) frame.header.flags |= last_committed_ ? kFlagPreviousCommitted : kFlagPreviousSkipped;
      frame.hold = std::move(push.payload);
      if (frame.hold) frame.payload = frame.hold.bytes();
      const Status status = owners_[owner_of_[push.slab]]->OnPush(frame, &replies);
      ASSERT_TRUE(status.ok()) << status.text();
    }
    const bool commit = !skip && !non_finite_;
    std::size_t answered = 0;
    for (const ReplyFrame& reply : replies) {
      std::size_t offset = 0;
      for (const std::uint32_t u : reply.header.slabs) {
        ++answered;
        const Slab& slab = layout_.slabs[u];
        if ((reply.header.flags & (kFlagNonFinite | kFlagKeep)) != 0 || !commit) continue;
        std::vector<float> sum(slab.elements);
        offset += Deliver(version, u, reply.payload.subspan(offset), &sum);
        const bool mean = codec_->traits().divided_by == DividedBy::kOwner;
        for (std::size_t i = 0; i < sum.size(); ++i) {
          open_[Start(slab) + i] -= static_cast<double>(sum[i]) * (mean ? reply.header.weight : 1);
        }
      }
    }
    ASSERT_EQ(answered, layout_.slabs.size());
    for (std::size_t i = 0; i < kAll && commit; ++i) open_[i] += input[i];
    for (const auto& state : states_) commit ? state->Commit() : state->Drop();
    // An owner hears it at once, or with the next step's frames.
    for (const auto& owner : owners_) {
      if (Chance(2)) owner->OnVerdict(StepId(step_), commit);
    }
    last_committed_ = commit;
    verdict_known_ = true;
    non_finite_ = false;
    ++step_;
    committed_ += commit;
  }

  // What is missing of the law, and what is kept as residuals. Owners have heard every verdict after it.
  double Missing() {
    HearVerdict();
    std::vector<double> rest = open_;
    kept_ = 0;
    const auto subtract = [&](std::uint64_t start, std::span<const float> residual) {
      for (std::size_t i = 0; i < residual.size(); ++i) {
        rest[start + i] -= static_cast<double>(residual[i]);
        kept_ += std::abs(static_cast<double>(residual[i]));
      }
    };
    for (const auto& state : states_) {
      for (std::uint32_t t = 0; t < std::size(kSizes); ++t) subtract(starts_[t], state->feedback.Residual(t));
    }
    for (std::uint32_t u = 0; u < layout_.slabs.size(); ++u) {
      subtract(Start(layout_.slabs[u]), owners_[owner_of_[u]]->Residual(SlabId(u)));
    }
    double missing = 0;
    for (const double x : rest) missing += std::abs(x);
    return missing;
  }

  // Between steps: another epoch. As many workers as before: residuals are saved and read back, owners' ones with them
  // where the owner stays, else they go to their heirs. Another number: the cut is another, leavers hand over.
  void Change() {
    HearVerdict();
    const std::uint32_t before = workers_, after = Chance(2) ? before : 1U << (random_() % 3);
    std::vector<std::vector<std::byte>> saved;
    for (std::uint32_t p = 0; p < before; ++p) {
      SavedState state;
      const ResidualOrigin origin{EpochId(1), before, Rank(p)};
      state.residuals = SaveResiduals(states_[p]->feedback, layout_, origin);
      state.velocities = SaveResiduals(states_[p]->velocity, layout_, origin).tensors;
      saved.push_back(EncodeState(state));
    }
    const Layout old_layout = layout_;
    const std::vector<std::uint32_t> old_owner = owner_of_;
    const std::vector<std::unique_ptr<Owner>> old_owners = std::move(owners_);
    Begin(after);
    for (std::uint32_t p = 0; p < before; ++p) {
      const SavedState state = DecodeState(saved[p]).value();
      const Status status = after == before ? RestoreResiduals(state.residuals, layout_,
                                                               {EpochId(2), before, Rank(p)}, &states_[p]->feedback)
                                            : HandOverResiduals(state.residuals, layout_, &states_[p % after]->feedback);
      ASSERT_TRUE(status.ok()) << status.text();
      // A velocity is not owed to anybody: workers of another number begin without.
      for (std::size_t t = 0; t < state.velocities.size() && after == before; ++t) {
        states_[p]->velocity.Restore(static_cast<std::uint32_t>(t), state.velocities[t].values);
      }
    }
    for (std::uint32_t u = 0; u < old_layout.slabs.size(); ++u) {
      const std::span<const float> residual = old_owners[old_owner[u]]->Residual(SlabId(u));
      if (residual.empty()) continue;
      if (after == before && owner_of_[u] == old_owner[u]) {
        owners_[owner_of_[u]]->RestoreResidual(SlabId(u), residual);
        continue;
      }
      // Element by element: slabs of the new layout may cut it.
      const Slab& from = old_layout.slabs[u];
      for (std::uint32_t v = layout_.first_slab[from.tensor]; v < layout_.first_slab[from.tensor + 1]; ++v) {
        const Slab& to = layout_.slabs[v];
        const std::uint64_t begin = std::max(from.offset, to.offset);
        const std::uint64_t end = std::min(from.offset + from.elements, to.offset + to.elements);
        if (begin >= end) continue;
        states_[HeirOfSlab(SlabId(v), after).value]->feedback.Add(from.tensor, begin,
                                                           residual.subspan(begin - from.offset, end - begin));
      }
    }
  }

  bool Chance(std::uint32_t one_in) { return random_() % one_in == 0; }
  double kept() const { return kept_; }
  std::uint64_t committed() const { return committed_; }

 private:
  void Begin(std::uint32_t workers) {
    workers_ = workers;
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<std::uint32_t>> buckets(1);
    starts_.clear();
    std::uint64_t start = 0;
    for (std::uint32_t t = 0; t < std::size(kSizes); ++t) {
      tensors.push_back({"t" + std::to_string(t), ElementCount(kSizes[t])});
      buckets[0].push_back(t);
      starts_.push_back(start);
      start += kSizes[t];
    }
    std::ranges::shuffle(buckets[0], random_);
    layout_ = MakeLayout(tensors, buckets, workers).value();
    states_.clear();
    const CodecTraits traits = codec_->traits();
    const auto all = [&](bool flag) { return std::vector<bool>(tensors.size(), flag); };
    for (std::uint32_t p = 0; p < workers; ++p) {
      states_.push_back(std::make_unique<CodecState>(CodecState{.feedback = {layout_, all(traits.lossy)},
                                                                .velocity = {layout_, all(traits.momentum)},
                                                                .scales = {layout_, all(traits.integer_sum)}}));
    }
    sum_ = codec_->MakeOwnerSum(workers);
    owner_of_.clear();
    std::vector<std::vector<std::uint32_t>> slabs(kOwners);
    for (std::uint32_t u = 0; u < layout_.slabs.size(); ++u) {
      owner_of_.push_back(static_cast<std::uint32_t>(random_() % kOwners));
      slabs[owner_of_[u]].push_back(u);
    }
    owners_.clear();
    owned_ = slabs;
    OwnerOptions options;
    options.epoch = EpochId(1);
    options.group = GroupId(1);
    options.first_step = StepId(step_);
    options.workers = workers;
    options.deterministic = Chance(2);
    for (std::uint32_t o = 0; o < kOwners; ++o) {
      options.index = o;
      owners_.push_back(std::make_unique<Owner>(options, layout_, owned_[o], tensor_codec_, &pool_));
    }
    verdict_known_ = false;
  }
  // The bytes that the reply for slab u takes of the payload's front.
  std::size_t Deliver(std::uint8_t version, std::uint32_t u, std::span<const std::byte> payload, std::vector<float>* out) {
    const std::size_t bytes = CheckReply(*codec_, sum_.get(), version, payload, out->size()).value();
    for (const auto& state : states_) {
      EXPECT_TRUE(state->Decode(*codec_, sum_.get(), payload.first(bytes), u, out->size(), out->data()));
    }
    return bytes;
  }
  void HearVerdict() {
    if (!verdict_known_) return;
    for (const auto& owner : owners_) owner->OnVerdict(StepId(step_ - 1), last_committed_);
  }
  std::uint64_t Start(const Slab& slab) const { return starts_[slab.tensor] + slab.offset; }

  std::mt19937 random_;
  std::unique_ptr<Codec> codec_;
  std::vector<const Codec*> tensor_codec_;
  BufferPool pool_;
  std::uint32_t workers_ = 0;
  Layout layout_;
  std::vector<std::uint64_t> starts_;
  std::vector<std::unique_ptr<CodecState>> states_;  // per worker
  std::unique_ptr<OwnerSum> sum_;
  std::vector<std::uint32_t> owner_of_;
  std::vector<std::vector<std::uint32_t>> owned_;
  std::vector<std::unique_ptr<Owner>> owners_;
  std::vector<double> open_ = std::vector<double>(kAll);  // inputs - delivered
  std::uint64_t step_ = 0, committed_ = 0;
  bool last_committed_ = false, verdict_known_ = false, non_finite_ = false;
  double kept_ = 0;
};

class Conservation : public testing::TestWithParam<std::string_view> {};

// Inputs are multiples of 1/64 below 2^7 and there are 1, 2 or 4 workers, so that a codec with exact residuals keeps
// every quantity exact in fp32; the others round each of some ten operations on an element and step by up to 2^-15, or
// where velocities make numbers eight times as large, 2^-12.
TEST_P(Conservation, OverRandomSchedules) {
  double kept = 0;
  std::uint64_t committed = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Job job(std::string(GetParam()), seed);
    const CodecTraits traits = job.codec().traits();
    const bool exact = !traits.momentum && (traits.exact_residual || !traits.lossy);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      job.Step();
      if (HasFatalFailure()) return;
      if (job.Chance(4)) job.Change();
      if (HasFatalFailure()) return;
      if (job.Chance(2) && step + 1 != kSteps) continue;  // owners hear the verdict from the next step's frames
      const double rounding = traits.momentum ? 0x1p-12 : 0x1p-15;
      const double allowed = exact ? 0 : static_cast<double>(kAll * (step + 1) * 10) * rounding;
      ASSERT_LE(job.Missing(), allowed) << "seed " << seed << ", step " << step;
    }
    kept += job.kept();
    committed += job.committed();
  }
  EXPECT_GT(committed, 30U);
  Job job(std::string(GetParam()), 1);
  if (job.codec().traits().lossy) {
    EXPECT_GT(kept, 0) << "the codec lost nothing: the test proves nothing";
  }
}

std::vector<std::string_view> Names() {
  std::vector<std::string_view> names;
  for (const CodecEntry& entry : Codecs()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Codecs, Conservation, testing::ValuesIn(Names()),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace tally
