// SimdBlockCodec: a BlockCodec whose loops run on vectors: the same bytes, at the speed of memory. The loops are made
// from a per-target twin of the Format by simd_blocks.inc; which target's, is decided when the codec is made.
#pragma once

#include "compress/block_codec.h"

namespace tally {

// The loops of one codec for one instruction set. Called with FlushDenormals set, but for the decoders.
struct BlockLoops {
  // As Codec::EncodeWithFeedback, but that `kept`, unless null, receives the rest or what receivers decode.
  bool (*encode_keep_rest)(const EncodeKey& key, const float* g, float w, const float* e, std::size_t n,
                           std::byte* out, float* kept) = nullptr;
  bool (*encode_keep_decoded)(const EncodeKey& key, const float* g, float w, const float* e, std::size_t n,
                              std::byte* out, float* kept) = nullptr;
  bool (*is_valid)(const std::byte* in, std::size_t n) = nullptr;
  void (*decode)(const std::byte* in, std::size_t n, float* out) = nullptr;
  void (*decode_add)(const std::byte* in, std::size_t n, float* acc) = nullptr;
};

template <typename Format>
class SimdBlockCodec final : public BlockCodec<Format> {
 public:
  explicit SimdBlockCodec(const BlockLoops& loops) : loops_(loops) {}

  std::unique_ptr<Codec> MakeReference() const override { return std::make_unique<BlockCodec<Format>>(); }

  void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    loops_.encode_keep_decoded(key, p, 1.0f, nullptr, n, out, decoded);
  }

  bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    const FlushDenormals flush;
    return loops_.encode_keep_rest(key, g, w, e, n, out, e_out);
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    if (payload.size() == this->EncodedBytes(n) && loops_.is_valid(payload.data(), n)) return Status::Ok();
    return BlockCodec<Format>::Validate(payload, n);  // finds out what is wrong
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    loops_.decode(payload.data(), n, out);
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    loops_.decode_add(payload.data(), n, acc);
  }

 private:
  BlockLoops loops_;
};

}  // namespace tally
