// BlockCodec: a codec whose payload is a row of blocks, each encoded by itself, from a Format that says how one block
// is. These plain loops define the bytes. A Format has, besides Saturated(in, n) if its range is narrow,
//   kId, kName, kTraits, kBlock (elements of a block), Bytes(n) of a block of n elements, 0 for none, and
//   Encode(key, first, p, n, out), Decode(in, n, out), Check(block number, in, n), where p is the slab's from `first`.
#pragma once

#include <algorithm>

#include "compress/codec.h"
#include "compress/flush_denormals.h"
#include "compress/validate.h"

namespace tally {

// Calls visit(first, count) for each block of n elements.
template <typename Format, typename Visit>
void ForEachBlock(std::size_t n, const Visit& visit) {
  for (std::size_t first = 0; first < n; first += Format::kBlock) visit(first, std::min(Format::kBlock, n - first));
}

// Where the block that begins with element `first` begins in the payload.
template <typename Format>
constexpr std::size_t BlockStart(std::size_t first) {
  return first / Format::kBlock * Format::Bytes(Format::kBlock);
}

template <typename Format>
class BlockCodec : public Codec {
 public:
  std::uint8_t id() const final { return Format::kId; }
  std::string_view name() const final { return Format::kName; }
  CodecTraits traits() const final { return Format::kTraits; }
  std::size_t EncodedBytes(std::size_t n) const final {
    return BlockStart<Format>(n) + Format::Bytes(n % Format::kBlock);
  }

  void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    ForEachBlock<Format>(n, [&](std::size_t first, std::size_t count) {
      std::byte* block = out + BlockStart<Format>(first);
      Format::Encode(key, first, p + first, count, block);
      if (decoded != nullptr) Format::Decode(block, count, decoded + first);
    });
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    TALLY_RETURN_IF_ERROR(CheckPayloadBytes(name(), n, EncodedBytes(n), payload.size()));
    for (std::size_t first = 0; first < n; first += Format::kBlock) {
      TALLY_RETURN_IF_ERROR(Format::Check(first / Format::kBlock, payload.data() + BlockStart<Format>(first),
                                          std::min(Format::kBlock, n - first)));
    }
    return Status::Ok();
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    ForEachBlock<Format>(n, [&](std::size_t first, std::size_t count) {
      Format::Decode(payload.data() + BlockStart<Format>(first), count, out + first);
    });
  }

  std::size_t Saturated(std::span<const std::byte> payload, std::size_t n) const final {
    std::size_t count = 0;
    if constexpr (requires { Format::Saturated(payload.data(), n); }) {
      ForEachBlock<Format>(n, [&](std::size_t first, std::size_t of) {
        count += Format::Saturated(payload.data() + BlockStart<Format>(first), of);
      });
    }
    return count;
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    ForEachBlock<Format>(n, [&](std::size_t first, std::size_t count) {
      float decoded[Format::kBlock];
      Format::Decode(payload.data() + BlockStart<Format>(first), count, decoded);
      for (std::size_t i = 0; i < count; ++i) acc[first + i] = acc[first + i] + decoded[i];
    });
  }
};

}  // namespace tally
