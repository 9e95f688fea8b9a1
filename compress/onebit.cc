// Codec onebit: the vector twin of the definition in onebit_format.h.
#include "compress/onebit_format.h"

#include "compress/simd_block_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/onebit.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_blocks.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

struct OneBitBlock : OneBit {
  static constexpr std::size_t kWord = 32;  // signs handled at a time

  // Sum of rne(|p| * multiplier): integers up to 2^24, of which 32-bit lanes hold 128.
  static HWY_INLINE std::uint64_t SumMagnitudes(const float* p, float multiplier) {
    const Floats d;
    const Bits du;
    const auto by = hn::Set(d, multiplier);
    constexpr std::size_t kRun = std::min(kBlock, 128 * kLanes);
    std::uint64_t sum = 0;
    for (std::size_t first = 0; first < kBlock; first += kRun) {
      auto lanes = hn::Zero(du);
      for (std::size_t i = first; i < first + kRun; i += kLanes) {
        const auto m = hn::NearestInt(hn::Mul(hn::Abs(hn::Load(d, p + i)), by));
        lanes = hn::Add(lanes, hn::BitCast(du, m));
      }
      HWY_ALIGN_MAX std::uint32_t parts[kLanes];
      hn::Store(lanes, du, parts);
      for (const std::uint32_t part : parts) sum += part;
    }
    return sum;
  }

  template <typename Keep>
  static HWY_INLINE void Encode(const EncodeKey&, std::size_t /*first*/, std::size_t n, const float* p,
                                std::uint32_t largest, std::byte* out, const Keep& keep) {
    const Floats d;
    const Ints di;
    const float multiplier = Multiplier(largest);
    const float scale = Mean(SumMagnitudes(p, multiplier), n, multiplier);
    std::memcpy(out, &scale, kScaleBytes);
    const auto value = hn::Set(d, scale);
    const std::uint32_t used = scale == 0.0f ? 0u : ~0u;
    const auto sign_bit = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<Floats>(), used & 0x80000000u));
    for (std::size_t first = 0; first < kBlock; first += kWord) {
      std::uint32_t signs = 0;
      for (std::size_t i = 0; i < kWord; i += kLanes) {
        const auto v = hn::Load(d, p + first + i);
        std::uint8_t bits[8] = {};
        hn::StoreMaskBits(di, hn::Lt(hn::BitCast(di, v), hn::Zero(di)), bits);
        std::uint32_t word = 0;
        std::memcpy(&word, bits, sizeof word);
        signs |= word << i;
        keep(first + i, v, hn::Or(value, hn::And(v, sign_bit)));
      }
      signs &= used;
      // What fills the last block up may be -0, where the weight is negative.
      if (n < first + kWord) signs &= n <= first ? 0u : ~0u >> (first + kWord - n);
      std::memcpy(out + kScaleBytes + first / 8, &signs, sizeof signs);
    }
  }

  template <typename Sink>
  static HWY_INLINE void Decode(const std::byte* in, const Sink& sink) {
    const Floats d;
    const Bits du;
    const auto value = hn::BitCast(du, hn::Set(d, Scale(in)));
    const auto sign_bit = hn::Set(du, 0x80000000u);
    for (std::size_t first = 0; first < kBlock; first += kWord) {
      std::uint32_t signs = 0;
      std::memcpy(&signs, in + kScaleBytes + first / 8, sizeof signs);
      const auto word = hn::Set(du, signs);
      for (std::size_t i = 0; i < kWord; i += kLanes) {
        const auto to_top = hn::Sub(hn::Set(du, static_cast<std::uint32_t>(31 - i)), hn::Iota(du, 0));
        const auto sign = hn::And(hn::Shl(word, to_top), sign_bit);
        sink(first + i, hn::BitCast(d, hn::Or(value, sign)));
      }
    }
  }

  // Only zero blocks have more to check than their scale.
  static HWY_INLINE bool IsValid(const std::byte* in) { return Check(0, in, kBlock).ok(); }
};

BlockLoops OneBitLoops() { return Loops<OneBitBlock>::Make(); }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(OneBitLoops);

std::unique_ptr<Codec> MakeOnebitCodec(const Config::Compression&) {
  return std::make_unique<SimdBlockCodec<OneBit>>(HWY_DYNAMIC_DISPATCH(OneBitLoops)());
}

}  // namespace tally
#endif  // HWY_ONCE
