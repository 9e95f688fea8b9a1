// OwnerSum: how the owner of a slab sums and answers where it is not by Decode, DecodeAdd and Encode of the codec
// itself. The reply then is the sum without loss, in sum units, so that no residual is kept for it. Stateless: any
// thread, concurrently. `version` is that of the pushes (FrameHeader::codec_version), one for all of a slab in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "compress/codec.h"

namespace tally {

class OwnerSum {
 public:
  virtual ~OwnerSum() = default;
  virtual std::uint8_t versions() const { return 1; }  // how many there are

  // Room of the sum of n elements, which is aligned for numbers.
  virtual std::size_t SumBytes(std::uint8_t version, std::size_t n) const = 0;
  // The first push, then the others; they have passed Codec::Validate.
  virtual void Start(std::uint8_t version, std::span<const std::byte> push, std::size_t n, std::byte* sum) const = 0;
  virtual void Add(std::uint8_t version, std::span<const std::byte> push, std::size_t n, std::byte* sum) const = 0;

  // What replies take in the long run, at most; and what the reply of a sum does, 0 if the sum of n > 0 elements is not
  // finite.
  virtual std::size_t UsualReplyBytes(std::size_t n) const = 0;
  virtual std::size_t ReplyBytes(std::uint8_t version, const std::byte* sum, std::size_t n) const = 0;
  virtual void Reply(std::uint8_t version, const std::byte* sum, std::size_t n, std::span<std::byte> out) const = 0;

  // Bytes of the reply for n elements that `payload` begins with. Errors: kCorrupt, as Codec::Validate.
  virtual Result<std::size_t> Validate(std::uint8_t version, std::span<const std::byte> payload,
                                       std::size_t n) const = 0;
  // Of a payload that has passed. `scales` are those that the slab was encoded with, `next_scales` those of the next
  // step (SharedScales; null for codecs without). False if a sum is not finite.
  virtual bool Decode(std::uint8_t version, std::span<const std::byte> reply, std::size_t n, const float* scales,
                      float* out, float* next_scales) const = 0;
};

// Bytes of the reply for n elements, of a codec and its OwnerSum (null if it has none), that `payload` begins with.
// Errors: kCorrupt, as Codec::Validate.
inline Result<std::size_t> CheckReply(const Codec& codec, const OwnerSum* sum, std::uint8_t version,
                                      std::span<const std::byte> payload, std::size_t n) {
  if (sum != nullptr) return sum->Validate(version, payload, n);
  const std::size_t bytes = codec.EncodedBytes(n);
  if (bytes > payload.size()) {
    return Corrupt("its payload ends after " + std::to_string(payload.size()) + " of " + std::to_string(bytes) + " bytes");
  }
  TALLY_RETURN_IF_ERROR(codec.Validate(payload.first(bytes), n));
  return bytes;
}

// Those of a group's tensors, null where the codec sums and answers by itself.
class OwnerSums {
 public:
  OwnerSums(std::span<const Codec* const> tensor_codec, std::uint32_t workers) {
    for (const Codec* codec : tensor_codec) {
      const auto [made, is_new] = sums_.try_emplace(codec);
      if (is_new) made->second = codec->MakeOwnerSum(workers);
      of_tensor_.push_back(made->second.get());
    }
  }
  const OwnerSum* operator[](std::uint32_t tensor) const { return of_tensor_[tensor]; }

 private:
  std::map<const Codec*, std::unique_ptr<OwnerSum>> sums_;
  std::vector<const OwnerSum*> of_tensor_;
};

}  // namespace tally
