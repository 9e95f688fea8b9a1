// The input is a history of pushes and verdicts that reach one owner: mostly right ones, each with some fields and bytes
// hostile. A refusal changes nothing, a reply is complete, valid and finite, and comes once per slab and step.
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>

#include "common/check.h"
#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/owner_sum.h"
#include "compress/shared_scales.h"
#include "server/core/owner.h"
#include "tests/fuzz/target.h"

namespace tally {
namespace {

constexpr std::uint32_t kNumberedCodecs = 2;  // tensors per codec of the table
constexpr std::size_t kMaxPushes = 64;

class OwnerHistory {
 public:
  explicit OwnerHistory(FuzzInput* in) : in_(*in) {
    const std::uint8_t switches = in_.Byte();
    options_.job_hash = 77;
    options_.epoch = EpochId(5);
    options_.group = GroupId(2);
    options_.workers = 1 + switches % 4;
    options_.deterministic = (switches & 4) != 0;
    options_.error_feedback = (switches & 8) != 0;
    options_.stochastic = (switches & 16) != 0;
    options_.held_bytes_cap = (switches & 32) != 0 ? 3000 : 0;
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<std::uint32_t>> buckets(2);
    std::vector<Config::Compression> settings(Codecs().size() + 1);
    for (std::size_t i = 0; i < Codecs().size(); ++i) settings[i].codec = Codecs()[i].name;
    settings.back().codec = "topk";
    settings.back().reply = "union";
    for (const Config::Compression& setting : settings) {
      codecs_.push_back(MakeCodec(setting.codec, setting).value());
      for (std::uint32_t i = 0; i < kNumberedCodecs; ++i) {
        const auto tensor = static_cast<std::uint32_t>(tensors.size());
        buckets[tensor < 2 * kNumberedCodecs ? 0 : 1].push_back(tensor);
        tensors.push_back({setting.codec + setting.reply + std::to_string(i), ElementCount(i == 0 ? 300 : 3)});
        tensor_codec_.push_back(codecs_.back().get());
      }
    }
    layout_ = MakeLayout(tensors, buckets, options_.workers).value();
    owned_.resize(layout_.slabs.size() - 1);  // the last slab is somebody else's
    std::iota(owned_.begin(), owned_.end(), 0u);
    sums_ = std::make_unique<OwnerSums>(tensor_codec_, options_.workers);
    owner_ = std::make_unique<Owner>(options_, layout_, owned_, tensor_codec_, &pool_);
  }

  void Run() {
    for (std::size_t i = 0; i < kMaxPushes && !in_.empty(); ++i) {
      const std::uint8_t what = in_.Byte();
      if (what < 200) {
        Push(what % 2 != 0);
      } else {
        Verdict(what % 4);
      }
      (void)owner_->Missing(2);
      TALLY_CHECK(std::isfinite(owner_->ResidualL1()), "a residual that is not finite");
    }
  }

 private:
  const Codec& codec(std::uint32_t u) const { return *tensor_codec_[layout_.slabs[u].tensor]; }

  void Verdict(std::uint32_t kind) {
    const std::uint64_t step = step_ + (kind == 2 ? 1 : kind == 3 ? ~std::uint64_t{0} : 0);
    owner_->OnVerdict(StepId(step), kind != 1);
    if (step == step_) Advance();
  }

  void Advance() {
    ++step_;
    replied_.clear();
    TALLY_CHECK(owner_->stats().held_bytes == 0 && owner_->stats().accumulator_bytes == 0, "memory left over");
  }

  // A push as an honest worker would send it; `hostile` lets the input change it.
  void Push(bool hostile) {
    Frame frame;
    FrameHeader& header = frame.header;
    header.job_hash = options_.job_hash;
    header.epoch = options_.epoch;
    header.group = options_.group;
    header.position = in_.Byte() % options_.workers;
    const std::uint8_t choice = in_.Byte();
    header.step = StepId(step_ + (choice & 1));
    header.flags = (choice & 1) != 0 ? ((choice & 2) != 0 ? kFlagPreviousCommitted : kFlagPreviousSkipped) : 0;
    const auto u = static_cast<std::uint32_t>((choice >> 2) % owned_.size());
    header.slabs.push_back(u);
    const std::uint8_t numbers = in_.Byte();
    if ((numbers & 1) != 0 && u + 1 < owned_.size() && &codec(u + 1) == &codec(u)) header.slabs.push_back(u + 1);
    if ((numbers & 14) == 14 && header.slabs.size() == 1) header.flags |= kFlagNonFinite;
    header.bucket = BucketId(layout_.slabs[u].bucket);
    header.codec = codec(u).id();
    if (codec(u).traits().integer_sum) header.codec_version = (numbers & 16) != 0 ? 1 : 0;  // the bytes may be the same
    std::vector<std::byte> payload;
    if ((header.flags & kFlagNonFinite) == 0) payload = Encoded(header.slabs, numbers);
    if (hostile) Spoil(&header, &payload);
    frame.hold = pool_.Get(payload.size());
    frame.payload = frame.hold.bytes();
    std::ranges::copy(payload, frame.payload.begin());
    Send(std::move(frame));
  }

  std::vector<std::byte> Encoded(const std::vector<std::uint32_t>& slabs, std::uint8_t numbers) const {
    constexpr float kScales[] = {1.0f, 0.0f, 1e-38f, 3e38f};
    std::vector<std::byte> payload;
    for (const std::uint32_t u : slabs) {
      const std::size_t n = layout_.slabs[u].elements;
      std::vector<float> values(n);
      for (std::size_t i = 0; i < n; ++i) {
        values[i] = kScales[numbers >> 6] * (static_cast<float>((i * 7 + numbers) % 16) - 8.0f) / 8.0f;
      }
      std::vector<std::byte> bytes(codec(u).EncodedBytes(n));
      codec(u).Encode({}, values.data(), n, bytes.data(), nullptr);
      payload.insert(payload.end(), bytes.begin(), bytes.end());
    }
    return payload;
  }

  void Spoil(FrameHeader* header, std::vector<std::byte>* payload) {
    const std::uint8_t value = in_.Byte();
    switch (in_.Byte() % 20) {
      case 0: header->job_hash ^= value; break;
      case 1: header->epoch = EpochId(value); break;
      case 2: header->group = GroupId(value); break;
      case 3: header->position = value; break;
      case 4: header->step = StepId(step_ + value - 2); break;
      case 5: header->flags = value; break;
      case 6: header->bucket = BucketId(value); break;
      case 7: header->codec = value; break;
      case 8: header->codec_version = value; break;
      case 9: header->kind = static_cast<FrameKind>(value % 8); break;
      case 10: header->role = static_cast<Role>(value % 2); break;
      case 11: header->contributors.assign(value, 0); break;
      case 12: header->slabs.clear(); break;
      case 13: header->slabs.push_back(value); break;
      case 14: header->slabs.assign(2, value); break;
      case 15: header->weight = in_.Take<double>(); break;
      case 16: header->weight = static_cast<double>(in_.Take<float>()); break;
      case 17: payload->resize(payload->size() + value); break;
      case 18: payload->resize(payload->size() - std::min<std::size_t>(payload->size(), value)); break;
      default:
        for (int i = 0; i < value % 8 && !payload->empty(); ++i) {
          (*payload)[in_.Take<std::uint16_t>() % payload->size()] ^= static_cast<std::byte>(in_.Byte());
        }
    }
  }

  void Send(Frame frame) {
    const FrameHeader header = frame.header;
    const Owner::Stats before = owner_->stats();
    RecycledList<ReplyFrame> replies;
    const Status status = owner_->OnPush(frame, &replies);
    const Owner::Stats& after = owner_->stats();
    if (!status.ok()) {
      const StatusKind kind = status.kind();
      TALLY_CHECK(kind == StatusKind::kCorrupt || kind == StatusKind::kMismatch || kind == StatusKind::kInvalidArgument,
                  status.ToString());
      TALLY_CHECK(replies.empty() && after.pushes == before.pushes && after.held_bytes == before.held_bytes &&
                      after.accumulator_bytes == before.accumulator_bytes && after.slabs_done == before.slabs_done,
                  "a refused push changed something");
      return;
    }
    if (header.step.value != step_) {
      TALLY_CHECK(header.step.value == step_ + 1, "a push of a distant step was taken");
      ++step_;
      replied_.clear();
    }
    TALLY_CHECK(options_.held_bytes_cap == 0 || after.held_bytes <= options_.held_bytes_cap, "more held than the cap");
    for (const ReplyFrame& reply : replies) CheckReply(reply);
  }

  void CheckReply(const ReplyFrame& reply) {
    const FrameHeader& header = reply.header;
    TALLY_CHECK(header.kind == FrameKind::kReply && header.step.value == step_, "not a reply of this step");
    TALLY_CHECK(std::isfinite(header.weight) || (header.flags & kFlagNonFinite) != 0, "a total that is not finite");
    std::span<const std::byte> rest = reply.payload;
    for (const std::uint32_t u : header.slabs) {
      TALLY_CHECK(replied_.insert(u).second != reply.only_one, "a slab replied twice, or again before the first time");
      if ((header.flags & kFlagNonFinite) != 0) continue;
      const std::size_t n = layout_.slabs[u].elements;
      const OwnerSum* sum = (*sums_)[layout_.slabs[u].tensor];
      const std::uint8_t version = header.codec_version;
      const Result<std::size_t> bytes = sum == nullptr ? codec(u).EncodedBytes(n) : sum->Validate(version, rest, n);
      TALLY_CHECK(bytes.ok(), bytes.status().ToString());
      TALLY_CHECK(*bytes <= rest.size(), "a reply too short");
      std::vector<float> values(n);
      if (sum == nullptr) {
        const Status status = codec(u).Validate(rest.first(*bytes), n);
        TALLY_CHECK(status.ok(), status.ToString());
        codec(u).Decode(rest.first(*bytes), n, values.data());
      } else {
        const std::vector<float> scales(SharedBlocks(n), 0.5F);
        std::vector<float> next(scales.size());
        (void)sum->Decode(version, rest.first(*bytes), n, scales.data(), values.data(), next.data());
      }
      for (const float value : values) TALLY_CHECK(std::isfinite(value), "a reply that is not finite");
      rest = rest.subspan(*bytes);
    }
    TALLY_CHECK(rest.empty(), "a reply too long");
  }

  FuzzInput& in_;
  OwnerOptions options_;
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<const Codec*> tensor_codec_;
  std::unique_ptr<OwnerSums> sums_;
  Layout layout_;
  std::vector<std::uint32_t> owned_;
  BufferPool pool_;
  std::unique_ptr<Owner> owner_;
  std::uint64_t step_ = 0;
  std::set<std::uint32_t> replied_;
};

}  // namespace

void FuzzOwner(std::span<const std::byte> input) {
  FuzzInput in(input);
  OwnerHistory(&in).Run();
}

// Whole steps of every slab from every position, then one with each field spoiled.
std::vector<FuzzBytes> OwnerSeeds() {
  std::vector<FuzzBytes> seeds;
  const auto slabs = static_cast<int>(Codecs().size() * kNumberedCodecs) - 1;
  for (const int switches : {0, 1, 5, 13, 31, 44, 63}) {
    for (const int numbers : {0x00, 0x0E, 0x55, 0xC3}) {
      FuzzBytes seed;
      Append(static_cast<std::uint8_t>(switches), &seed);
      for (int position = 0; position <= switches % 4; ++position) {
        for (int u = 0; u < slabs; ++u) {
          for (const int byte : {0, position, u << 2, numbers}) Append(static_cast<std::uint8_t>(byte), &seed);
        }
      }
      Append(std::uint8_t{200}, &seed);
      seeds.push_back(std::move(seed));
    }
  }
  FuzzBytes seed;
  Append(std::uint8_t{5}, &seed);
  for (std::uint8_t field = 0; field < 20; ++field) {
    for (const int byte : {1, 0, field << 2, 0x40, 3, int{field}}) Append(static_cast<std::uint8_t>(byte), &seed);
    if (field == 15) Append(2.5, &seed);
    if (field == 16) Append(0.1f, &seed);
    if (field == 19) seed.resize(seed.size() + 9);
  }
  seeds.push_back(std::move(seed));
  return seeds;
}

}  // namespace tally
