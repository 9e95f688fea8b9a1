// Codec int8_shared: int8 whose block scales all workers share, so that owners add codes as integers and never decode.
// Version 0 of a push is int8 with the block's own scale, the reply fp32 sums; version 1 is encoded with shared scales,
// the reply integer sums. Each reply ends with a byte per block, the largest exponent of the pushes: the shared scale
// of the next step.
#include "compress/int8_shared_format.h"

#include <limits>

#include "common/reduce/reduce.h"
#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/simd_block_codec.h"
#include "compress/wrapped_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/int8_shared.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_blocks.inc"
#include "compress/simd_quantize.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

// Whole blocks; false if any p is not finite.
template <typename Keep>
bool EncodeBlocks(const float* g, float w, const float* e, const float* scales, std::size_t blocks,
                  std::byte* out, float* rest) {
  using Scale = Int8Shared::Scale;
  constexpr std::size_t kBlock = Int8Shared::kBlock;
  const Floats d;
  const auto most = hn::Set(d, 127.0f), least = hn::Set(d, -127.0f);
  HWY_ALIGN_MAX float p[kBlock];
  for (std::size_t b = 0; b < blocks; ++b, out += Int8Shared::Own::Bytes(kBlock)) {
    const std::size_t first = b * kBlock;
    const std::uint32_t largest = WeightAndAddBlock(g + first, w, e == nullptr ? nullptr : e + first, kBlock, p);
    if (largest >= kInfinityBits) return false;
    const float own = Scale::Choose(largest, false);
    Scale::Store(own, out);
    const float scale = Int8Shared::Usable(scales[b], own);
    auto* codes = reinterpret_cast<std::int8_t*>(out + Scale::kBytes);
    const auto shared = hn::Set(d, scale);
    const Keep keep{rest == nullptr ? nullptr : rest + first};
    const auto by = hn::Set(d, scale == 0.0f ? 0.0f : Scale::Multiplier(scale));
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      const auto v = hn::Load(d, p + i);
      const auto q = hn::NearestInt(hn::Min(hn::Max(hn::Mul(v, by), least), most));
      hn::StoreU(hn::DemoteTo(Codes(), q), Codes(), codes + i);
      keep(i, v, hn::Mul(hn::ConvertTo(d, q), shared));
    }
  }
  return true;
}

bool EncodeSharedBlocks(const float* g, float w, const float* e, const float* scales, std::size_t blocks,
                        std::byte* out, float* rest) {
  if (!CanStream(rest, blocks * Int8Shared::kBlock)) return EncodeBlocks<KeepRest>(g, w, e, scales, blocks, out, rest);
  const bool finite = EncodeBlocks<StreamRest>(g, w, e, scales, blocks, out, rest);
  hwy::FlushStream();
  return finite;
}

auto SharedLoopOfTarget() { return &EncodeSharedBlocks; }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(SharedLoopOfTarget);

std::unique_ptr<Codec> MakeInt8Codec(const Config::Compression& options);

namespace {

using Scale = Int8Shared::Scale;
using SharedLoop = decltype(&HWY_STATIC_DISPATCH(EncodeSharedBlocks));
constexpr std::size_t kBlock = Int8Shared::kBlock;

// Calls visit(block, first element, elements, the block's bytes in a push) for each block.
template <typename Visit>
void ForEachPushedBlock(std::span<const std::byte> push, std::size_t n, const Visit& visit) {
  ForEachBlock<Int8Shared::Own>(n, [&](std::size_t first, std::size_t count) {
    visit(first / kBlock, first, count, push.data() + BlockStart<Int8Shared::Own>(first));
  });
}

// A sum, and a reply: n numbers (fp32, int16 or int32), then a byte per block. Lane is the integer.
template <typename Lane>
class Int8SharedSum final : public OwnerSum {
 public:
  Int8SharedSum(std::unique_ptr<Codec> int8, std::uint32_t workers) : int8_(std::move(int8)), workers_(workers) {}

  std::uint8_t versions() const override { return 2; }
  std::size_t SumBytes(std::uint8_t version, std::size_t n) const override {
    return n * NumberBytes(version) + SharedBlocks(n);
  }

  void Start(std::uint8_t version, std::span<const std::byte> push, std::size_t n, std::byte* sum) const override {
    std::fill_n(sum + n * NumberBytes(version), SharedBlocks(n), std::byte{0});
    if (version == 0) {
      int8_->Decode(push, n, reinterpret_cast<float*>(sum));
    } else {
      auto* sums = reinterpret_cast<Lane*>(sum);
      ForEachCode(push, n, [sums](std::size_t i, std::int8_t code) { sums[i] = code; });
    }
    RaiseExponents(push, n, sum + n * NumberBytes(version));
  }
  void Add(std::uint8_t version, std::span<const std::byte> push, std::size_t n, std::byte* sum) const override {
    if (version == 0) {
      int8_->DecodeAdd(push, n, reinterpret_cast<float*>(sum));
    } else {
      auto* sums = reinterpret_cast<Lane*>(sum);
      ForEachCode(push, n, [sums](std::size_t i, std::int8_t code) { sums[i] = static_cast<Lane>(sums[i] + code); });
    }
    RaiseExponents(push, n, sum + n * NumberBytes(version));
  }

  std::size_t UsualReplyBytes(std::size_t n) const override { return SumBytes(1, n); }
  std::size_t ReplyBytes(std::uint8_t version, const std::byte* sum, std::size_t n) const override {
    if (version == 0 && !AllFinite(reinterpret_cast<const float*>(sum), n)) return 0;
    return SumBytes(version, n);
  }
  void Reply(std::uint8_t, const std::byte* sum, std::size_t, std::span<std::byte> out) const override {
    std::memcpy(out.data(), sum, out.size());
  }

  Result<std::size_t> Validate(std::uint8_t version, std::span<const std::byte> payload,
                               std::size_t n) const override {
    const std::size_t bytes = SumBytes(version, n);
    if (payload.size() < bytes) {
      return Corrupt("int8_shared reply of " + std::to_string(n) + " elements: expected " + std::to_string(bytes) +
                     " bytes, got " + std::to_string(payload.size()));
    }
    if (version != 0) TALLY_RETURN_IF_ERROR(CheckSums(payload, n));
    const std::byte* exponents = payload.data() + n * NumberBytes(version);
    for (std::size_t b = 0; b < SharedBlocks(n); ++b) {
      TALLY_RETURN_IF_ERROR(Scale::Check("int8_shared", b, exponents + b));
    }
    return bytes;
  }

  bool Decode(std::uint8_t version, std::span<const std::byte> reply, std::size_t n, const float* scales, float* out,
              float* next_scales) const override {
    const FlushDenormals flush;
    const std::byte* exponents = reply.data() + n * NumberBytes(version);
    for (std::size_t b = 0; b < SharedBlocks(n); ++b) next_scales[b] = Scale::Load(exponents + b);
    if (version == 0) {
      std::memcpy(out, reply.data(), n * sizeof(float));
      return AllFinite(out, n);
    }
    // Only beyond this scale may a sum that has passed be more than fp32 holds.
    const float largest_safe = std::numeric_limits<float>::max() / static_cast<float>(Scale::kMaxCode) /
                               static_cast<float>(workers_) / 2;
    bool finite = true;
    Lane sums[kBlock];
    ForEachBlock<Int8Shared::Own>(n, [&](std::size_t first, std::size_t count) {
      std::memcpy(sums, reply.data() + first * sizeof(Lane), count * sizeof(Lane));
      const float scale = scales[first / kBlock];
      for (std::size_t i = 0; i < count; ++i) out[first + i] = static_cast<float>(sums[i]) * scale;
      if (scale > largest_safe) finite = AllFinite(out + first, count) && finite;
    });
    return finite;
  }

 private:
  static std::size_t NumberBytes(std::uint8_t version) { return version == 0 ? sizeof(float) : sizeof(Lane); }

  // visit(element, code) for each.
  template <typename Visit>
  static void ForEachCode(std::span<const std::byte> push, std::size_t n, const Visit& visit) {
    ForEachPushedBlock(push, n, [&visit](std::size_t, std::size_t first, std::size_t count, const std::byte* block) {
      const auto* codes = reinterpret_cast<const std::int8_t*>(block + Scale::kBytes);
      for (std::size_t i = 0; i < count; ++i) visit(first + i, codes[i]);
    });
  }
  static void RaiseExponents(std::span<const std::byte> push, std::size_t n, std::byte* exponents) {
    ForEachPushedBlock(push, n, [exponents](std::size_t b, std::size_t, std::size_t, const std::byte* block) {
      exponents[b] = std::max(exponents[b], *block);
    });
  }

  // |sum| <= 127 N.
  Status CheckSums(std::span<const std::byte> payload, std::size_t n) const {
    const auto most = static_cast<std::int64_t>(Scale::kMaxCode) * workers_;
    for (std::size_t i = 0; i < n; ++i) {
      Lane sum = 0;
      std::memcpy(&sum, payload.data() + i * sizeof sum, sizeof sum);
      if (sum < -most || sum > most) {
        return CorruptAt("int8_shared", "sum", i, "at most " + std::to_string(most) + " in magnitude", std::to_string(sum));
      }
    }
    return Status::Ok();
  }

  std::unique_ptr<Codec> int8_;
  std::uint32_t workers_;
};

// Rounds to nearest, with and without feedback: version 1 does.
EncodeKey Nearest(EncodeKey key) {
  key.stochastic = false;
  return key;
}

class Int8SharedCodec final : public WrappedCodec {
 public:
  explicit Int8SharedCodec(SharedLoop loop) : WrappedCodec(MakeInt8Codec({})), loop_(loop) {}

  std::uint8_t id() const override { return 10; }
  std::string_view name() const override { return "int8_shared"; }
  CodecTraits traits() const override {
    CodecTraits traits = WrappedCodec::traits();
    traits.feedback_forced = traits.integer_sum = traits.exact_reply = true;
    return traits;
  }

  void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    WrappedCodec::Encode(Nearest(key), p, n, out, decoded);
  }
  bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    return WrappedCodec::EncodeWithFeedback(Nearest(key), g, w, e, e_out, n, out);
  }

  bool EncodeShared(const float* g, float w, const float* e, const float* scales, float* e_out, std::size_t n,
                    std::byte* out) const override {
    const FlushDenormals flush;
    const std::size_t whole = n / kBlock, first = whole * kBlock;
    if (!loop_(g, w, e, scales, whole, out, e_out)) return false;
    if (first == n) return true;
    float p[kBlock];
    if (!WeightAndAdd(g + first, w, e == nullptr ? nullptr : e + first, n - first, p)) return false;
    Int8Shared::Encode(p, n - first, scales[whole], out + BlockStart<Int8Shared::Own>(first), p);
    if (e_out != nullptr) std::copy_n(p, n - first, e_out + first);
    return true;
  }

  std::unique_ptr<OwnerSum> MakeOwnerSum(std::uint32_t workers) const override {
    constexpr std::uint32_t kMostInInt16 = 32767 / Scale::kMaxCode;  // 258
    auto int8 = MakeInt8Codec({});
    if (workers > kMostInInt16) return std::make_unique<Int8SharedSum<std::int32_t>>(std::move(int8), workers);
    return std::make_unique<Int8SharedSum<std::int16_t>>(std::move(int8), workers);
  }

 private:
  SharedLoop loop_;
};

}  // namespace

std::unique_ptr<Codec> MakeInt8SharedCodec(const Config::Compression&) {
  return std::make_unique<Int8SharedCodec>(HWY_DYNAMIC_DISPATCH(SharedLoopOfTarget)());
}

}  // namespace tally
#endif  // HWY_ONCE
