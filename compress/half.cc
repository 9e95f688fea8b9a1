// Codecs fp16 and bf16: the vector twins of the definitions in half_format.h.
#include "compress/half.h"

#include "compress/half_format.h"
#include "compress/simd_block_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/half.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "compress/simd_blocks.inc"

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

using Halves = hn::Rebind<std::uint16_t, Floats>;
using HalfV = hn::Vec<Halves>;

// The magnitude of a 16-bit code with the sign of fp32 bits. Demotion is one of signed numbers, which would saturate:
// shifted up and down the code becomes one.
HWY_INLINE HalfV WithSign(hn::Vec<Ints> magnitude, hn::Vec<Bits> bits) {
  const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(Bits(), 0x8000u));
  const auto code = hn::Or(magnitude, hn::BitCast(Ints(), sign));
  const hn::RebindToSigned<Halves> d16;
  return hn::BitCast(Halves(), hn::DemoteTo(d16, hn::ShiftRight<16>(hn::ShiftLeft<16>(code))));
}

#if HWY_TARGET <= HWY_AVX2
struct Half16Lanes : Half16 {
  using Lanes16 = hn::Rebind<hwy::float16_t, Floats>;

  static HWY_INLINE HalfV FromFloats(FloatV v) {
    const Floats d;
    const auto limit = hn::Set(d, 65504.0f);
    return hn::BitCast(Halves(), hn::DemoteTo(Lanes16(), hn::Min(hn::Max(v, hn::Neg(limit)), limit)));
  }
  static HWY_INLINE FloatV ToFloats(HalfV code) {
    return hn::PromoteTo(Floats(), hn::BitCast(Lanes16(), code));
  }
};
#else  // without instructions that round so: as Half16 does it
struct Half16Lanes : Half16 {
  static HWY_INLINE HalfV FromFloats(FloatV v) {
    const Floats d;
    const Bits du;
    const Ints di;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
    const auto up = hn::Sub(hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu)), odd), hn::Set(du, 112u << 23));
    const auto normal = hn::Min(hn::BitCast(di, hn::ShiftRight<13>(up)), hn::Set(di, 0x7BFF));
    const auto added = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
    const auto small = hn::Sub(hn::BitCast(di, added), hn::Set(di, 0x3F000000));
    const auto is_small = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 113 << 23));
    return WithSign(hn::IfThenElse(is_small, small, normal), bits);
  }
  static HWY_INLINE FloatV ToFloats(HalfV code) {
    const Floats d;
    const Bits du;
    const auto wide = hn::PromoteTo(du, code);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(du, 0x7FFFu)));
    const auto normal = hn::Add(magnitude, hn::Set(du, 112u << 23));
    const auto base = hn::Set(du, 113u << 23);
    const auto small = hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Add(magnitude, base)), hn::BitCast(d, base)));
    const auto is_small = hn::Eq(hn::And(wide, hn::Set(du, 0x7C00u)), hn::Zero(du));
    const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(du, 0x8000u)));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(is_small, small, normal)));
  }
};
#endif

struct BFloat16Lanes : BFloat16 {
  static HWY_INLINE HalfV FromFloats(FloatV v) {
    const Bits du;
    const Ints di;
    const auto bits = hn::BitCast(du, v);
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7FFFFFFFu));
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const auto up = hn::ShiftRight<16>(hn::Add(hn::Add(magnitude, hn::Set(du, 0x7FFFu)), odd));
    const auto rounded = hn::Min(hn::BitCast(di, up), hn::Set(di, 0x7F7F));
    const auto normal = hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x007FFFFF));
    return WithSign(hn::IfThenElseZero(normal, rounded), bits);
  }
  static HWY_INLINE FloatV ToFloats(HalfV code) {
    const Bits du;
    const Ints di;
    const auto bits = hn::ShiftLeft<16>(hn::PromoteTo(du, code));
    const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7FFFFFFFu)));
    const auto normal = hn::Gt(magnitude, hn::Set(di, 0x007FFFFF));
    const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
    return hn::BitCast(Floats(), hn::Or(sign, hn::BitCast(du, hn::IfThenElseZero(normal, magnitude))));
  }
};

template <typename HalfLanes, typename Half>
struct HalfBlock : HalfFormat<Half> {
  using HalfFormat<Half>::kBlock;

  template <typename Keep>
  static HWY_INLINE void Encode(const EncodeKey&, std::size_t /*first*/, std::size_t /*n*/, const float* p,
                                std::uint32_t /*largest*/, std::byte* out, const Keep& keep) {
    auto* codes = reinterpret_cast<std::uint16_t*>(out);
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      const auto v = hn::Load(Floats(), p + i);
      const auto code = HalfLanes::FromFloats(v);
      hn::StoreU(code, Halves(), codes + i);
      keep(i, v, HalfLanes::ToFloats(code));
    }
  }

  template <typename Sink>
  static HWY_INLINE void Decode(const std::byte* in, const Sink& sink) {
    const auto* codes = reinterpret_cast<const std::uint16_t*>(in);
    for (std::size_t i = 0; i < kBlock; i += kLanes) sink(i, HalfLanes::ToFloats(hn::LoadU(Halves(), codes + i)));
  }

  static HWY_INLINE bool IsValid(const std::byte* in) {
    const hn::CappedTag<std::uint16_t, kBlock> d;
    const auto infinity = hn::Set(d, Half::kInfinity);
    auto bad = hn::Zero(d);
    for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
      const auto v = hn::LoadU(d, reinterpret_cast<const std::uint16_t*>(in) + i);
      bad = hn::Or(bad, hn::VecFromMask(d, hn::Eq(hn::And(v, infinity), infinity)));
    }
    return hn::AllTrue(d, hn::Eq(bad, hn::Zero(d)));
  }
};

BlockLoops Fp16Loops() { return Loops<HalfBlock<Half16Lanes, Half16>>::Make(); }
BlockLoops Bf16Loops() { return Loops<HalfBlock<BFloat16Lanes, BFloat16>>::Make(); }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Fp16Loops);
HWY_EXPORT(Bf16Loops);

std::unique_ptr<Codec> MakeFp16Codec(const Config::Compression&) {
  return std::make_unique<SimdBlockCodec<HalfFormat<Half16>>>(HWY_DYNAMIC_DISPATCH(Fp16Loops)());
}
std::unique_ptr<Codec> MakeBf16Codec(const Config::Compression&) {
  return std::make_unique<SimdBlockCodec<HalfFormat<BFloat16>>>(HWY_DYNAMIC_DISPATCH(Bf16Loops)());
}

}  // namespace tally
#endif  // HWY_ONCE
