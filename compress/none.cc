// Codec none: the fp32 numbers as they are, denormals included. Values are not checked here: a non-finite one shows in
// the sum, which every owner checks.
#include <algorithm>
#include <cstring>

#include "common/reduce/reduce.h"
#include "compress/codec.h"
#include "compress/validate.h"

namespace tally {
namespace {

constexpr std::size_t kChunk = 2048;  // elements: 8 KiB of stack that stay in L1

class NoneCodec final : public Codec {
 public:
  std::uint8_t id() const override { return kCodecNone; }
  std::string_view name() const override { return "none"; }
  CodecTraits traits() const override {
    return {.lossy = false, .linear = true, .exact_residual = true, .divided_by = DividedBy::kOwner};
  }
  std::size_t EncodedBytes(std::size_t n) const override { return n * sizeof(float); }

  void Encode(const EncodeKey&, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    Copy(out, p, n);
    if (decoded != nullptr) Copy(decoded, p, n, false);
  }

  bool EncodeWithFeedback(const EncodeKey&, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    float p[kChunk];
    for (std::size_t first = 0; first < n; first += kChunk) {
      const std::size_t count = std::min(kChunk, n - first);
      Scale(p, g + first, w, count);
      if (e != nullptr) AddInto(p, e + first, count);
      if (!AllFinite(p, count)) return false;
      std::memcpy(out + EncodedBytes(first), p, EncodedBytes(count));
    }
    if (e_out != nullptr) std::fill_n(e_out, n, 0.0f);
    return true;
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    return CheckPayloadBytes(name(), n, EncodedBytes(n), payload.size());
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    Copy(out, payload.data(), n);
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    AddInto(acc, payload.data(), n);
  }
};

}  // namespace

std::unique_ptr<Codec> MakeNoneCodec(const Config::Compression&) { return std::make_unique<NoneCodec>(); }

}  // namespace tally
