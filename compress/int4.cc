// Codec int4: the vector twin of the definition in int4_format.h.
#include "compress/int4_format.h"

#include "compress/simd_block_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/int4.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_blocks.inc"
#include "compress/simd_quantize.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

// Codes are packed from and unpacked to one byte each, in L1; two of them are one 16-bit number here.
struct Int4Block : Int4 {
  using Format = Int4;
  static constexpr std::size_t kPairs = kBlock / 2;
  using Pairs = hn::CappedTag<std::uint16_t, kPairs>;
  using Packed = hn::Rebind<std::uint8_t, Pairs>;

  static HWY_INLINE void Pack(const std::int8_t* codes, std::byte* out) {
    const Pairs d;
    for (std::size_t i = 0; i < kPairs; i += hn::Lanes(d)) {
      const auto two = hn::And(hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(codes) + i), hn::Set(d, 0x0F0F));
      const auto byte = hn::And(hn::Or(two, hn::ShiftRight<4>(two)), hn::Set(d, 0x00FF));
      const hn::RebindToSigned<Pairs> di;
      hn::StoreU(hn::DemoteTo(Packed(), hn::BitCast(di, byte)), Packed(), reinterpret_cast<std::uint8_t*>(out) + i);
    }
  }

  static HWY_INLINE void Unpack(const std::byte* in, std::int8_t* codes) {
    const Pairs d;
    for (std::size_t i = 0; i < kPairs; i += hn::Lanes(d)) {
      const auto byte = hn::PromoteTo(d, hn::LoadU(Packed(), reinterpret_cast<const std::uint8_t*>(in) + i));
      const auto two = hn::And(hn::Or(byte, hn::ShiftLeft<4>(byte)), hn::Set(d, 0x0F0F));
      // 0xF0 above each half whose sign is set: 8 * 30 = 0xF0, in both bytes at once.
      const auto sign = hn::And(two, hn::Set(d, 0x0808));
      const auto above = hn::Sub(hn::ShiftLeft<5>(sign), hn::ShiftLeft<1>(sign));
      hn::StoreU(hn::Or(two, above), d, reinterpret_cast<std::uint16_t*>(codes) + i);
    }
  }

  template <typename Keep>
  static HWY_INLINE void Encode(const EncodeKey& key, std::size_t first, std::size_t /*n*/, const float* p,
                                std::uint32_t largest, std::byte* out, const Keep& keep) {
    const float scale = Scale::Choose(largest, key.stochastic);
    if (key.stochastic || scale == 0.0f) return EncodeAsDefined<Int4Block>(key, first, p, out, keep);
    HWY_ALIGN_MAX std::int8_t codes[kBlock];
    QuantizeBlock<Scale, kBlock>(p, scale, codes, keep);
    Scale::Store(scale, out);
    Pack(codes, out + Scale::kBytes);
  }

  template <typename Sink>
  static HWY_INLINE void Decode(const std::byte* in, const Sink& sink) {
    HWY_ALIGN_MAX std::int8_t codes[kBlock];
    Unpack(in + Scale::kBytes, codes);
    DecodeCodes<kBlock>(codes, Scale::Load(in), sink);
  }

  static HWY_INLINE bool IsValid(const std::byte* in) {
    HWY_ALIGN_MAX std::int8_t codes[kBlock];
    Unpack(in + Scale::kBytes, codes);
    const hn::CappedTag<std::int8_t, kBlock> d;
    auto least = hn::Zero(d), used = hn::Zero(d);
    for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
      const auto v = hn::Load(d, codes + i);
      least = hn::Min(least, v);
      used = hn::Or(used, v);
    }
    return Scale::IsValid(in) && hn::AllFalse(d, hn::Eq(least, hn::Set(d, std::int8_t{-8}))) &&
           (Scale::Load(in) != 0.0f || hn::AllTrue(d, hn::Eq(used, hn::Zero(d))));
  }
};

BlockLoops Int4Loops() { return Loops<Int4Block>::Make(); }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Int4Loops);

std::unique_ptr<Codec> MakeInt4Codec(const Config::Compression&) {
  return std::make_unique<SimdBlockCodec<Int4>>(HWY_DYNAMIC_DISPATCH(Int4Loops)());
}

}  // namespace tally
#endif  // HWY_ONCE
