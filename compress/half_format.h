// HalfFormat, the definition of fp16 and bf16: each number rounded to a 16-bit format (half.h). Sums are fp32 and the
// owner takes the mean before the reply is rounded, so no order of division overflows or underflows.
// The residual is exact for |p| < 2^29 in fp16 (beyond, the saturated rest is rounded to fp32), always in bf16.
#pragma once

#include <cstring>

#include "compress/codec.h"
#include "compress/validate.h"

namespace tally {

template <typename HalfType>
struct HalfFormat {
  using Half = HalfType;
  static constexpr std::uint8_t kId = Half::kId;
  static constexpr std::string_view kName = Half::kName;
  static constexpr CodecTraits kTraits{.lossy = true, .exact_residual = true, .divided_by = DividedBy::kOwner};
  static constexpr std::size_t kBlock = 256;  // elements have nothing in common: as many as L1 holds well
  static constexpr std::size_t Bytes(std::size_t n) { return n * sizeof(std::uint16_t); }

  static void Encode(const EncodeKey&, std::size_t /*first*/, const float* p, std::size_t n, std::byte* out) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint16_t code = Half::FromFloat(p[i]);
      std::memcpy(out + Bytes(i), &code, sizeof code);
    }
  }

  static void Decode(const std::byte* in, std::size_t n, float* out) {
    for (std::size_t i = 0; i < n; ++i) out[i] = Half::ToFloat(Code(in, i));
  }

  static Status Check(std::size_t block, const std::byte* in, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint16_t code = Code(in, i);
      if ((code & Half::kInfinity) != Half::kInfinity) continue;
      return CorruptAt(kName, "value", block * kBlock + i, "a finite number", "code " + std::to_string(code));
    }
    return Status::Ok();
  }

  static std::size_t Saturated(const std::byte* in, std::size_t n) {
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < n; ++i) count += (Code(in, i) & 0x7FFFu) == Half::kLargest ? 1U : 0U;
    return count;
  }

 private:
  static std::uint16_t Code(const std::byte* in, std::size_t i) {
    std::uint16_t code = 0;
    std::memcpy(&code, in + Bytes(i), sizeof code);
    return code;
  }
};

}  // namespace tally
