// The exchange through owners (PS, direct, hybrid): each slab is encoded once and pushed to its owner, the owner's reply
// is decoded into the output. Credit bounds what this worker has outstanding with all owners together, so that neither
// their queues nor ours overflow; a reply gives it back. Frames go in one order, so the lowest unfinished has credit.

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "common/reduce/reduce.h"
#include "compress/owner_sum.h"
#include "worker/exchange.h"

namespace tally {
namespace {

// Encoding is the long part of a turn; after this many bytes of input the loop gets to read what has arrived.
constexpr std::uint64_t kTurnBytes = 2u << 20;

class OwnersExchange final : public Exchange {
 public:
  OwnersExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables, const FramePlan* plan,
                 CodecState* state, BufferPool* pool, ExchangeEnvironment* environment)
      : options_(options),
        tables_(std::move(tables)),
        sums_(tables_->tensor_codec, options.positions),
        plan_(plan),
        state_(state),
        pool_(pool),
        environment_(environment),
        remaining_(plan->frames.size()),
        done_(tables_->layout.slabs.size()) {
    queue_.reserve(plan->frames.size());
  }

  void BeginStep(StepId step, std::uint16_t verdict_flags, double declared_weight,
                 const CollectiveShape& collective) override {
    header_ = options_.header;
    header_.kind = FrameKind::kPush;
    header_.role = Role::kWorker;
    header_.position = options_.self.value;
    header_.step = step;
    header_.flags = verdict_flags;
    header_.collective = collective;
    header_.weight = declared_weight;
    queue_.clear();
    next_ = 0;
    outstanding_ = 0;
    for (std::size_t f = 0; f < remaining_.size(); ++f) {
      remaining_[f] = static_cast<std::uint32_t>(plan_->frames[f].slabs.size());
    }
    std::fill(done_.begin(), done_.end(), false);
  }

  Status StartBucket(std::uint32_t bucket) override {
    for (std::uint32_t f = plan_->bucket_begin[bucket]; f < plan_->bucket_begin[bucket + 1]; ++f) {
      queue_.push_back(f);
    }
    return Continue();
  }

  Status Continue() override {
    std::uint64_t turn = 0;
    while (next_ < queue_.size()) {
      const PlannedFrame& frame = plan_->frames[queue_[next_]];
      if (outstanding_ != 0 && outstanding_ + frame.payload_bytes > options_.limits.credit_bytes) return Status::Ok();
      if (turn >= kTurnBytes) {
        environment_->ContinueSoon();
        return Status::Ok();
      }
      turn += frame.elements * sizeof(float);
      ++next_;
      outstanding_ += frame.payload_bytes;
      TALLY_RETURN_IF_ERROR(Push(frame));
    }
    return Status::Ok();
  }

  Status OnFrame(Frame& frame) override {
    const FrameHeader& header = frame.header;
    if (header.kind != FrameKind::kReply) return Corrupt("expected a reply in an exchange through owners");
    const bool flagged = (header.flags & kFlagNonFinite) != 0;
    const bool kept = (header.flags & kFlagKeep) != 0;
    if (flagged && kept) return Corrupt("a reply flagged non-finite and keep at once");
    TALLY_RETURN_IF_ERROR(CheckReply(frame, flagged || kept));
    const float total_weight = static_cast<float>(header.weight);
    delivered_.clear();
    for (std::size_t i = 0; i < header.slabs.size(); ++i) {
      const std::uint32_t u = header.slabs[i];
      const auto payload = flagged || kept ? std::span<const std::byte>() : reply_payloads_[i];
      delivered_.push_back(Deliver(u, payload, flagged, kept, total_weight));
      done_[u] = true;
      const std::uint32_t f = plan_->frame_of_slab[u];
      if (--remaining_[f] == 0) outstanding_ -= plan_->frames[f].payload_bytes;
    }
    for (std::size_t i = 0; i < header.slabs.size(); ++i) environment_->SlabDone(header.slabs[i], delivered_[i]);
    return Continue();
  }

  bool Draining() override { return false; }  // only inputs are sent from, and replies have read them

  std::string Missing(std::size_t max_items) const override {
    std::string text;
    std::size_t items = 0, count = 0;
    for (std::size_t f = 0; f < remaining_.size(); ++f) {
      if (remaining_[f] == 0) continue;
      for (const std::uint32_t u : plan_->frames[f].slabs) {
        if (done_[u]) continue;
        ++count;
        if (items == max_items) continue;
        ++items;
        const OwnerRef owner = tables_->owner(u);
        text += (text.empty() ? "" : ", ") + ("slab " + std::to_string(u)) + " (" +
                tables_->layout.tensors[tables_->layout.slabs[u].tensor].name + ") from " +
                (owner.role == Role::kServer ? "server " + std::to_string(owner.index)
                                             : NameOf(options_.speaker, u, Position(owner.index)));
      }
    }
    return count == 0 ? "" : std::to_string(count) + " replies missing: " + text + (count > items ? ", …" : "");
  }

 private:
  Status Push(const PlannedFrame& frame) {
    header_.bucket = BucketId(frame.bucket);
    header_.codec = frame.codec->id();
    header_.codec_version = state_->Version(*frame.codec);
    const OwnerRef to = tables_->message.owner_list[frame.owner];
    if (std::ranges::none_of(frame.slabs, [this](std::uint32_t u) { return environment_->Kept(u); })) {
      return PushEncoded(frame, to);
    }
    TALLY_RETURN_IF_ERROR(PushKept(frame, to));
    return others_.slabs.empty() ? Status::Ok() : PushEncoded(others_, to);
  }

  Status PushEncoded(const PlannedFrame& frame, OwnerRef to) {
    header_.slabs = frame.slabs;
    const std::uint32_t key = frame.slabs.front();
    if (!frame.codec->traits().lossy && frame.slabs.size() == 1 && environment_->Factor(key) == 1.0F) {
      // The gradient itself is the payload: no copy. A non-finite value is noticed in the sum.
      const auto bytes = AsBytes(environment_->Input(key), frame.elements);
      return environment_->Send(to, key, header_, bytes, pool_->WrapConst(bytes, {}));
    }
    BufferRef buffer = pool_->Get(frame.payload_bytes);
    std::size_t offset = 0;
    bool finite = true;
    for (const std::uint32_t u : frame.slabs) {
      finite = Encode(*frame.codec, u, buffer.data() + offset) && finite;
      offset += frame.codec->EncodedBytes(tables_->layout.slabs[u].elements);
    }
    if (finite) return environment_->Send(to, key, header_, buffer.bytes(), buffer);
    return PushSingly(frame, to);
  }

  bool Encode(const Codec& codec, std::uint32_t u, std::byte* out) {
    const Slab& slab = tables_->layout.slabs[u];
    EncodeKey key;
    key.seed = options_.seed;
    key.tensor = slab.tensor;
    key.step = header_.step.value;
    key.position = options_.self.value;
    key.offset = slab.offset;
    key.stochastic = options_.stochastic;
    return state_->Encode(codec, key, slab, u, environment_->Input(u), environment_->Factor(u), out);
  }

  // Each slab travels alone, those that are not finite flagged and empty.
  Status PushSingly(const PlannedFrame& frame, OwnerRef to) {
    const std::uint16_t flags = header_.flags;
    for (const std::uint32_t u : frame.slabs) {
      const std::size_t bytes = frame.codec->EncodedBytes(tables_->layout.slabs[u].elements);
      BufferRef buffer = pool_->Get(bytes);
      const bool finite = Encode(*frame.codec, u, buffer.data());
      header_.slabs.assign(1, u);
      header_.flags = finite ? flags : static_cast<std::uint16_t>(flags | kFlagNonFinite);
      const Status status =
          environment_->Send(to, u, header_, buffer.bytes().first(finite ? bytes : 0), buffer);
      header_.flags = flags;
      TALLY_RETURN_IF_ERROR(status);
    }
    return Status::Ok();
  }

  // A checked reply of slab u -> its mean in the output.
  Delivered Deliver(std::uint32_t u, std::span<const std::byte> payload, bool flagged, bool kept, float total_weight) {
    const Slab& slab = tables_->layout.slabs[u];
    const std::size_t n = slab.elements;
    const Codec& codec = *tables_->tensor_codec[slab.tensor];
    const OwnerSum* sum = sums_[slab.tensor];
    float* out = environment_->Output(u);
    if (kept) {
      std::fill(out, out + n, 0.0F);
      return total_weight == 0 ? Delivered::kNothing : Delivered::kMean;
    }
    if (flagged || !state_->Decode(codec, sum, payload, u, n, out)) {
      std::fill(out, out + n, std::numeric_limits<float>::quiet_NaN());
      return Delivered::kNonFinite;
    }
    if (total_weight == 0) {
      std::fill(out, out + n, 0.0F);
      // What was sent reached nobody, and an owner that answers with the sum has kept nothing of it.
      if (sum != nullptr) {
        state_->feedback.Keep(slab.tensor);
        state_->velocity.Keep(slab.tensor);
      }
      return Delivered::kNothing;
    }
    if (codec.traits().divided_by == DividedBy::kReceiver) Divide(out, out, total_weight, n);
    return Delivered::kMean;
  }

  // The kept slabs in one frame, flagged and empty; the others are left in others_.
  Status PushKept(const PlannedFrame& frame, OwnerRef to) {
    others_.codec = frame.codec;
    others_.elements = others_.payload_bytes = 0;
    others_.slabs.clear();
    header_.slabs.clear();
    for (const std::uint32_t u : frame.slabs) {
      if (environment_->Kept(u)) {
        header_.slabs.push_back(u);
        continue;
      }
      const std::size_t n = tables_->layout.slabs[u].elements;
      others_.slabs.push_back(u);
      others_.elements += n;
      others_.payload_bytes += frame.codec->EncodedBytes(n);
    }
    header_.flags |= kFlagKeep;
    const Status status = environment_->Send(to, header_.slabs.front(), header_, {}, {});
    header_.flags &= static_cast<std::uint16_t>(~kFlagKeep);
    return status;
  }

  // Fills reply_payloads_, per slab of the frame, unless they carry none.
  Status CheckReply(const Frame& frame, bool empty) {
    const FrameHeader& header = frame.header;
    std::size_t expected = 0;
    reply_payloads_.clear();
    for (const std::uint32_t u : header.slabs) {
      if (u >= done_.size()) return Corrupt("reply for slab " + std::to_string(u) + " of " + std::to_string(done_.size()));
      const Slab& slab = tables_->layout.slabs[u];
      const Codec& codec = *tables_->tensor_codec[slab.tensor];
      if (done_[u]) return Corrupt("second reply for slab " + std::to_string(u));
      if (next_ == 0 || plan_->frame_of_slab[u] > queue_[next_ - 1]) {
        return Corrupt("reply for slab " + std::to_string(u) + ", which was not pushed yet");
      }
      if (tables_->owner(u) != OwnerRef{header.role, header.position}) {
        return Corrupt("reply for slab " + std::to_string(u) + " from a member that does not own it");
      }
      if (codec.id() != header.codec) {
        return Corrupt("reply for slab " + std::to_string(u) + ": expected codec " + std::to_string(codec.id()) +
                       ", got " + std::to_string(header.codec));
      }
      if (header.codec_version != state_->Version(codec)) {
        return Corrupt("reply for slab " + std::to_string(u) + ": expected codec version " +
                       std::to_string(state_->Version(codec)) + ", got " + std::to_string(header.codec_version));
      }
      if (empty) continue;
      const Result<std::size_t> bytes = tally::CheckReply(codec, sums_[slab.tensor], state_->Version(codec),
                                                           frame.payload.subspan(expected), slab.elements);
      if (!bytes.ok()) return bytes.status().WithContext("reply for slab " + std::to_string(u));
      reply_payloads_.push_back(frame.payload.subspan(expected, *bytes));
      expected += *bytes;
    }
    if (header.slabs.empty() || expected != frame.payload.size()) {
      return Corrupt("reply with " + std::to_string(frame.payload.size()) + " payload bytes, expected " +
                     std::to_string(expected));
    }
    return Status::Ok();
  }

  ExchangeOptions options_;
  std::shared_ptr<const GroupTables> tables_;
  OwnerSums sums_;
  const FramePlan* plan_;
  CodecState* state_;
  BufferPool* pool_;
  ExchangeEnvironment* environment_;
  std::vector<std::uint32_t> queue_;      // frames of started buckets; numbers rise, as plan and buckets do
  std::size_t next_ = 0;                  // first one not pushed
  std::vector<std::uint32_t> remaining_;  // per planned frame: slabs not yet answered
  std::vector<bool> done_;                // per slab
  std::vector<std::span<const std::byte>> reply_payloads_;  // of the frame at hand, and what came of them
  std::vector<Delivered> delivered_;
  std::uint64_t outstanding_ = 0;         // encoded bytes sent and not yet answered
  FrameHeader header_;
  PlannedFrame others_;                   // slabs of a frame that are not kept
};

}  // namespace

std::unique_ptr<Exchange> MakeOwnersExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables,
                                             const FramePlan* plan, CodecState* state, BufferPool* pool,
                                             ExchangeEnvironment* environment) {
  return std::make_unique<OwnersExchange>(options, std::move(tables), plan, state, pool, environment);
}

}  // namespace tally
