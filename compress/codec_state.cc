#include "compress/codec_state.h"

namespace tally {

bool CodecState::Encode(const Codec& codec, const EncodeKey& key, const Slab& slab, std::uint32_t slab_number,
                        const float* g, float w, std::byte* out) {
  if (!EncodeUncounted(codec, key, slab, slab_number, g, w, out)) return false;
  saturated += codec.Saturated({out, codec.EncodedBytes(slab.elements)}, slab.elements);
  return true;
}

bool CodecState::EncodeUncounted(const Codec& codec, const EncodeKey& key, const Slab& slab,
                                 std::uint32_t slab_number, const float* g, float w, std::byte* out) {
  const std::size_t n = slab.elements;
  const CodecTraits traits = codec.traits();
  if (!traits.lossy) return codec.EncodeWithFeedback(key, g, w, nullptr, nullptr, n, out);  // before the codec begins
  const float* e = feedback.Old(slab);
  float* e_out = feedback.Next(slab);
  if (traits.momentum) {
    return codec.EncodeWithMomentum(key, g, w, velocity.Old(slab), velocity.Next(slab), e, e_out, n, out);
  }
  if (Version(codec) != 0) return codec.EncodeShared(g, w, e, scales.Old(slab_number), e_out, n, out);
  return codec.EncodeWithFeedback(key, g, w, e, e_out, n, out);
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
