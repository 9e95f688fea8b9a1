// CodecState: what one worker's codecs carry from step to step, for all slabs of a group; taken over or forgotten by
// the step's verdict as a whole. Thread: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/error_feedback.h"
#include "compress/owner_sum.h"
#include "compress/shared_scales.h"

namespace tally {

struct CodecState {
  ErrorFeedback feedback;
  ErrorFeedback velocity;  // of codecs with momentum
  SharedScales scales;     // of codecs whose codes add up as integers
  std::uint64_t saturated = 0;  // numbers encoded so far that were beyond their codec's range (Codec::Saturated)

  // Of what Encode makes in this step (FrameHeader::codec_version).
  std::uint8_t Version(const Codec& codec) const { return codec.traits().integer_sum && scales.known() ? 1 : 0; }
  // The slab's weighted gradient with what is carried -> out[0..EncodedBytes(n)), and what is carried on. False, with
  // out undefined, if anything is not finite.
  bool Encode(const Codec& codec, const EncodeKey& key, const Slab& slab, std::uint32_t slab_number, const float* g,
              float w, std::byte* out);

  // A reply of the slab that has passed CheckReply -> out, and the scales of the next step. False if a sum is not finite.
  bool Decode(const Codec& codec, const OwnerSum* sum, std::span<const std::byte> reply, std::uint32_t slab_number,
              std::size_t n, float* out);

  void Commit() {
    feedback.Commit();
    velocity.Commit();
    scales.Commit();
  }
  void Drop() {
    feedback.Drop();
    velocity.Drop();
    scales.Drop();
  }
};

}  // namespace tally
