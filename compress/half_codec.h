// HalfCodec: a codec that rounds each number to a 16-bit format (half.h). Sums are fp32 and the owner takes the mean
// before the reply is rounded, so no order of division overflows or underflows.
// The residual is exact for |p| < 2^29 in fp16 (beyond, the saturated rest is rounded to fp32), always in bf16.
#pragma once

#include <cstring>

#include "compress/codec.h"
#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/validate.h"

namespace tally {

template <typename Half>
class HalfCodec final : public Codec {
 public:
  std::uint8_t id() const override { return Half::kId; }
  std::string_view name() const override { return Half::kName; }
  CodecTraits traits() const override {
    return {.lossy = true, .exact_residual = true, .divided_by = DividedBy::kOwner};
  }
  std::size_t EncodedBytes(std::size_t n) const override { return n * sizeof(std::uint16_t); }

  void Encode(const EncodeKey&, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    for (std::size_t first = 0; first < n; first += kFeedbackBlock) {
      const std::size_t count = std::min(kFeedbackBlock, n - first);
      EncodeRun(p + first, count, out + EncodedBytes(first), decoded == nullptr ? nullptr : decoded + first);
    }
  }

  bool EncodeWithFeedback(const EncodeKey&, const float* g, float w, const float* e, float* e_out, std::size_t n,
                          std::byte* out) const override {
    const FlushDenormals flush;
    return EncodeBlocksWithFeedback(
        g, w, e, e_out, n, [this, out](const float* p, std::size_t first, std::size_t count, float* decoded) {
          EncodeRun(p, count, out + EncodedBytes(first), decoded);
        });
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    TALLY_RETURN_IF_ERROR(CheckPayloadBytes(name(), n, EncodedBytes(n), payload.size()));
    std::uint32_t bad = 0;
    for (std::size_t i = 0; i < n; ++i) bad |= IsFinite(Code(payload.data(), i)) ? 0u : 1u;
    if (bad == 0) return Status::Ok();
    std::size_t i = 0;
    while (IsFinite(Code(payload.data(), i))) ++i;
    return CorruptAt(name(), "value", i, "a finite number", "code " + std::to_string(Code(payload.data(), i)));
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    for (std::size_t i = 0; i < n; ++i) out[i] = Half::ToFloat(Code(payload.data(), i));
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    for (std::size_t i = 0; i < n; ++i) acc[i] = acc[i] + Half::ToFloat(Code(payload.data(), i));
  }

 private:
  static std::uint16_t Code(const std::byte* payload, std::size_t i) {
    std::uint16_t code = 0;
    std::memcpy(&code, payload + i * sizeof code, sizeof code);
    return code;
  }
  static bool IsFinite(std::uint16_t code) { return (code & Half::kInfinity) != Half::kInfinity; }

  // At most kFeedbackBlock elements.
  static void EncodeRun(const float* p, std::size_t n, std::byte* out, float* decoded) {
    std::uint16_t codes[kFeedbackBlock];
    for (std::size_t i = 0; i < n; ++i) codes[i] = Half::FromFloat(p[i]);
    std::memcpy(out, codes, n * sizeof(std::uint16_t));
    if (decoded == nullptr) return;
    for (std::size_t i = 0; i < n; ++i) decoded[i] = Half::ToFloat(codes[i]);
  }
};

}  // namespace tally
