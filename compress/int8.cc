// Codec int8: blocks of 256 elements, each with its scale followed by one signed code per element.
// scale pow2: one byte k+127 (0 = all codes zero), value q*2^k. scale absmax: fp32 s = fl(max/127), value fl(q*s).
// Definitions: CODECS.md §1. With pow2 and nearest rounding p - q*2^k is exact.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "compress/codec.h"
#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/philox.h"
#include "compress/validate.h"

namespace tally {
namespace {

constexpr std::size_t kBlock = 256;
static_assert(kBlock == kFeedbackBlock);
constexpr float kMaxCode = 127.0f;
constexpr std::uint32_t kMinNormalBits = 0x00800000;

// The largest |p| of a block as fp32 bits, whose order is that of the magnitudes.
std::uint32_t LargestMagnitude(const float* p, std::size_t n) {
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::bit_cast<std::int32_t>(p[i]) & 0x7FFFFFFF);
  return static_cast<std::uint32_t>(largest);
}

// Scale 2^k, stored as the biased exponent k+127, which is also the exponent field of 2^k as fp32.
struct Pow2Scale {
  static constexpr std::size_t kBytes = 1;
  static constexpr std::uint32_t kMaxByte = 248;  // k = 121: 127 * 2^121 is still finite
  static constexpr bool kExact = true;

  // Largest magnitude of a block -> its scale; 0 for a block that counts as zero.
  static float Choose(std::uint32_t largest, bool stochastic) {
    if (largest < kMinNormalBits) return 0.0f;
    const std::uint32_t fraction = largest & 0x007FFFFFu;
    const int exponent = static_cast<int>(largest >> 23) - 127;
    const bool rounds_to_128 = stochastic ? fraction > 0x7E0000u : fraction >= 0x7F0000u;
    const int k = std::clamp(exponent - 6 + (rounds_to_128 ? 1 : 0), -126, 121);
    return FromByte(static_cast<std::uint32_t>(k + 127));
  }
  // p/scale; the reciprocal of a power of two is exact.
  static float Multiplier(float scale) {
    return std::bit_cast<float>((254u << 23) - std::bit_cast<std::uint32_t>(scale));
  }
  static float Quotient(float p, float multiplier) { return p * multiplier; }

  static void Store(float scale, std::byte* out) {
    *out = static_cast<std::byte>(std::bit_cast<std::uint32_t>(scale) >> 23);
  }
  static float Load(const std::byte* in) { return FromByte(std::to_integer<std::uint32_t>(*in)); }
  static Status Check(std::size_t block, const std::byte* in) {
    const auto byte = std::to_integer<std::uint32_t>(*in);
    if (byte <= kMaxByte) return Status::Ok();
    return CorruptAt("int8", "exponent of block", block, "at most 248", std::to_string(byte));
  }

 private:
  static float FromByte(std::uint32_t byte) { return std::bit_cast<float>(byte << 23); }
};

struct AbsmaxScale {
  static constexpr std::size_t kBytes = 4;
  static constexpr bool kExact = false;

  // The largest scale for which 127*s does not overflow: fl(FLT_MAX/127) may be one step beyond it.
  static constexpr float kMaxScale = [] {
    constexpr float kMax = std::numeric_limits<float>::max();
    const auto guess = static_cast<float>(static_cast<double>(kMax) / 127.0);
    if (static_cast<double>(guess) * 127.0 <= static_cast<double>(kMax)) return guess;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(guess) - 1u);
  }();

  static float Choose(std::uint32_t largest, bool /*stochastic*/) {
    return std::min(std::bit_cast<float>(largest) / kMaxCode, kMaxScale);
  }
  static float Multiplier(float scale) { return scale; }
  static float Quotient(float p, float scale) { return p / scale; }

  static void Store(float scale, std::byte* out) { std::memcpy(out, &scale, kBytes); }
  static float Load(const std::byte* in) {
    float scale = 0;
    std::memcpy(&scale, in, kBytes);
    return scale;
  }
  static Status Check(std::size_t block, const std::byte* in) {
    const float scale = Load(in);
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    if (bits == 0 || (bits >= kMinNormalBits && bits <= std::bit_cast<std::uint32_t>(kMaxScale))) return Status::Ok();
    return CorruptAt("int8", "scale of block", block, "0 or a normal number up to FLT_MAX/127", std::to_string(scale));
  }
};

// codes[i] = q of quotients x[i], |x| <= 128, nearest even.
void RoundNearest(const float* x, std::size_t n, std::int8_t* codes) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, which its low bits then hold
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t q = std::bit_cast<std::int32_t>(x[i] + kMagic) - std::bit_cast<std::int32_t>(kMagic);
    codes[i] = static_cast<std::int8_t>(std::clamp(q, -127, 127));
  }
}

// Away from zero with the probability of the fraction, in steps of 2^-24; element `offset + i` of the tensor.
void RoundStochastic(const EncodeKey& key, std::uint64_t offset, const float* x, std::size_t n, std::int8_t* codes) {
  PhiloxBlock random{};
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint64_t element = offset + i;
    if (i == 0 || element % 4 == 0) random = RoundingBits(key, element / 4);
    const float magnitude = std::min(std::bit_cast<float>(std::bit_cast<std::uint32_t>(x[i]) & 0x7FFFFFFFu), kMaxCode);
    const auto whole = static_cast<std::int32_t>(magnitude);
    const float draw = static_cast<float>(random[element % 4] >> 8) * 0x1p-24f;
    const std::int32_t q = whole + (draw < magnitude - static_cast<float>(whole) ? 1 : 0);
    codes[i] = static_cast<std::int8_t>(x[i] < 0 ? -q : q);
  }
}

template <typename Scale>
class Int8Codec final : public Codec {
 public:
  std::uint8_t id() const override { return 3; }
  std::string_view name() const override { return "int8"; }
  CodecTraits traits() const override {
    return {.lossy = true, .exact_residual = Scale::kExact, .divided_by = DividedBy::kReceiver};
  }
  std::size_t EncodedBytes(std::size_t n) const override { return n + (n + kBlock - 1) / kBlock * Scale::kBytes; }

  void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    for (std::size_t first = 0; first < n; first += kBlock) {
      EncodeBlock(key, p + first, first, std::min(kBlock, n - first), out,
                  decoded == nullptr ? nullptr : decoded + first);
    }
  }

  bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    const FlushDenormals flush;
    return EncodeBlocksWithFeedback(
        g, w, e, e_out, n, [&key, out](const float* p, std::size_t first, std::size_t count, float* decoded) {
          EncodeBlock(key, p, first, count, out, decoded);
        });
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    TALLY_RETURN_IF_ERROR(CheckPayloadBytes(name(), n, EncodedBytes(n), payload.size()));
    for (std::size_t first = 0; first < n; first += kBlock) {
      const std::byte* block = payload.data() + BlockStart(first);
      TALLY_RETURN_IF_ERROR(Scale::Check(first / kBlock, block));
      const std::size_t count = std::min(kBlock, n - first);
      std::uint32_t refused = 0, used = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const auto code = std::to_integer<std::uint32_t>(block[Scale::kBytes + i]);
        refused |= code == 0x80u ? 1u : 0u;
        used |= code;
      }
      if (refused != 0) return CorruptAt(name(), "a code of block", first / kBlock, "-127..127", "-128");
      if (used != 0 && Scale::Load(block) == 0.0f) {
        return CorruptAt(name(), "a code of zero block", first / kBlock, "0", "another");
      }
    }
    return Status::Ok();
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    for (std::size_t first = 0; first < n; first += kBlock) {
      const std::byte* block = payload.data() + BlockStart(first);
      DecodeCodes(block + Scale::kBytes, Scale::Load(block), std::min(kBlock, n - first), out + first);
    }
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    for (std::size_t first = 0; first < n; first += kBlock) {
      const std::byte* block = payload.data() + BlockStart(first);
      const float scale = Scale::Load(block);
      const auto* codes = reinterpret_cast<const std::int8_t*>(block + Scale::kBytes);
      const std::size_t count = std::min(kBlock, n - first);
      float* sum = acc + first;
      for (std::size_t i = 0; i < count; ++i) sum[i] = sum[i] + static_cast<float>(codes[i]) * scale;
    }
  }

 private:
  static std::size_t BlockStart(std::size_t first) { return first + first / kBlock * Scale::kBytes; }

  static void DecodeCodes(const std::byte* bytes, float scale, std::size_t n, float* out) {
    const auto* codes = reinterpret_cast<const std::int8_t*>(bytes);
    for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<float>(codes[i]) * scale;
  }

  static void EncodeBlock(const EncodeKey& key, const float* p, std::size_t first, std::size_t count,
                          std::byte* payload, float* decoded) {
    std::byte* block = payload + BlockStart(first);
    std::byte* bytes = block + Scale::kBytes;
    const float scale = Scale::Choose(LargestMagnitude(p, count), key.stochastic);
    Scale::Store(scale, block);
    if (scale == 0.0f) {
      std::memset(bytes, 0, count);
      if (decoded != nullptr) std::fill_n(decoded, count, 0.0f);
      return;
    }
    float x[kBlock];
    std::int8_t codes[kBlock];
    const float by = Scale::Multiplier(scale);
    for (std::size_t i = 0; i < count; ++i) x[i] = Scale::Quotient(p[i], by);
    if (key.stochastic) {
      RoundStochastic(key, key.offset + first, x, count, codes);
    } else {
      RoundNearest(x, count, codes);
    }
    std::memcpy(bytes, codes, count);
    if (decoded != nullptr) DecodeCodes(bytes, scale, count, decoded);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeInt8Codec(const Config::Compression& options) {
  if (options.scale == "absmax") return std::make_unique<Int8Codec<AbsmaxScale>>();
  return std::make_unique<Int8Codec<Pow2Scale>>();
}

}  // namespace tally
