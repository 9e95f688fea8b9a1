// ReplyEncoder: turns a slab's sum into the bytes of its reply, with the owner's residual (DESIGN §5: who divides, in
// which units the residual is). Thread: one at a time. Two slabs of scratch are kept, so that a warm step
// allocates nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "compress/codec.h"

namespace tally {

class ReplyEncoder {
 public:
  // Encodes the reply of sum[0..n) with total weight W into out[0..codec.EncodedBytes(n)); writes the new residual to
  // e_out (e and e_out both null: no residual). out may be the bytes of `sum` for codec none.
  //   codecs that the owner divides for: fl(S / W); lossy ones fl(fl(S + e) / W), e' = fl(S + e) - fl(W * decoded).
  //   others: S + e, divided by the receivers.
  // W = 0 (every weight was 0) gives zeros, and the residual keeps S + e.
  // False, with out and e_out undefined, if the sum, the weight or the mean is not finite.
  bool Encode(const Codec& codec, const EncodeKey& key, const float* sum, std::size_t n, float weight, const float* e,
              float* e_out, std::byte* out);

 private:
  bool EncodeMean(const Codec& codec, const EncodeKey& key, const float* sum, std::size_t n, float weight,
                  const float* e, float* e_out, std::byte* out);

  std::vector<float> mean_, decoded_;
};

}  // namespace tally
