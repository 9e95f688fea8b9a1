#include "compress/codec_state.h"

namespace tally {

bool CodecState::Encode(const Codec& codec, const EncodeKey& key, const Slab& slab, std::uint32_t slab_number,
                        const float* g, float w, std::byte* out) {
  const std::size_t n = slab.elements;
  const CodecTraits traits = codec.traits();
  // A lossless one before the codec begins leaves the residual alone.
  const float* e = traits.lossy ? feedback.Old(slab) : nullptr;
  float* e_out = traits.lossy ? feedback.Next(slab) : nullptr;
  const bool finite =
      traits.momentum ? codec.EncodeWithMomentum(key, g, w, velocity.Old(slab), velocity.Next(slab), e, e_out, n, out)
      : Version(codec) != 0 ? codec.EncodeShared(g, w, e, scales.Old(slab_number), e_out, n, out)
                            : codec.EncodeWithFeedback(key, g, w, e, e_out, n, out);
  if (finite) saturated += codec.Saturated({out, codec.EncodedBytes(n)}, n);
  return finite;
}

bool CodecState::Decode(const Codec& codec, const OwnerSum* sum, std::span<const std::byte> reply,
                        std::uint32_t slab_number, std::size_t n, float* out) {
  if (sum == nullptr) {
    codec.Decode(reply, n, out);
    return true;
  }
  return sum->Decode(Version(codec), reply, n, scales.Old(slab_number), out, scales.Next(slab_number));
}

}  // namespace tally
