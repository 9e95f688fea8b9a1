// Codec int8: the vector twin of the definition in int8_format.h.
#include "compress/int8_format.h"

#include "compress/simd_block_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/int8.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_blocks.inc"
#include "compress/simd_quantize.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

template <typename Scale>
struct Int8Block : Int8<Scale> {
  using Format = Int8<Scale>;
  using Format::kBlock;

  template <typename Keep>
  static HWY_INLINE void Encode(const EncodeKey& key, std::size_t first, std::size_t /*n*/, const float* p,
                                std::uint32_t largest, std::byte* out, const Keep& keep) {
    const float scale = Scale::Choose(largest, key.stochastic);
    if (key.stochastic || scale == 0.0f) return EncodeAsDefined<Int8Block>(key, first, p, out, keep);
    Scale::Store(scale, out);
    QuantizeBlock<Scale, kBlock>(p, scale, reinterpret_cast<std::int8_t*>(out + Scale::kBytes), keep);
  }

  template <typename Sink>
  static HWY_INLINE void Decode(const std::byte* in, const Sink& sink) {
    DecodeCodes<kBlock>(reinterpret_cast<const std::int8_t*>(in + Scale::kBytes), Scale::Load(in), sink);
  }

  static HWY_INLINE bool IsValid(const std::byte* in) {
    const hn::CappedTag<std::int8_t, kBlock> d;
    const auto* codes = reinterpret_cast<const std::int8_t*>(in + Scale::kBytes);
    const auto forbidden = hn::Set(d, std::int8_t{-128});
    auto least = hn::Zero(d), used = hn::Zero(d);
    for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, codes + i);
      least = hn::Min(least, v);
      used = hn::Or(used, v);
    }
    return Scale::IsValid(in) && hn::AllFalse(d, hn::Eq(least, forbidden)) &&
           (Scale::Load(in) != 0.0f || hn::AllTrue(d, hn::Eq(used, hn::Zero(d))));
  }
};

BlockLoops Pow2Loops() { return Loops<Int8Block<Pow2Scale<8>>>::Make(); }
BlockLoops AbsmaxLoops() { return Loops<Int8Block<AbsmaxScale>>::Make(); }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Pow2Loops);
HWY_EXPORT(AbsmaxLoops);

std::unique_ptr<Codec> MakeInt8Codec(const Config::Compression& options) {
  if (options.scale == "absmax") {
    return std::make_unique<SimdBlockCodec<Int8<AbsmaxScale>>>(HWY_DYNAMIC_DISPATCH(AbsmaxLoops)());
  }
  return std::make_unique<SimdBlockCodec<Int8<Pow2Scale<8>>>>(HWY_DYNAMIC_DISPATCH(Pow2Loops)());
}

}  // namespace tally
#endif  // HWY_ONCE
