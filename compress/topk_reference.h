// Codec topk, the definition: the k elements of largest magnitude, ties by the lowest index: k u16 indices, strictly
// rising, then k values (fp32 or fp16). k = max(1, ceil(n * ratio_ppm / 10^6)).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "common/check.h"
#include "compress/codec.h"
#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/half.h"
#include "compress/topk_union.h"
#include "compress/validate.h"

namespace tally {

inline constexpr std::size_t kMaxElements = 65536;  // u16 indices

// |p| as bits, in the order of the magnitudes; what counts as zero is 0.
inline std::uint32_t Magnitude(float p) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(p) & 0x7FFFFFFFu;
  return bits < 0x00800000u ? 0u : bits;
}

// What exactly k elements selects: all above `threshold` and the first `ties` equal to it.
struct Selection {
  std::uint32_t threshold = 0;
  std::size_t ties = 0;
};

// Radix selection from the top bits down: three counting passes over a slab that fits L2, no scratch memory.
inline Selection SelectLargest(const float* p, std::size_t n, std::size_t k) {
  std::array<std::uint32_t, 2048> counts;
  std::uint32_t prefix = 0, known = 0;  // bits of the k-th magnitude found so far, and which they are
  std::size_t wanted = k;               // of those that share the prefix
  for (const auto& [shift, width] : {std::pair{20u, 11u}, std::pair{10u, 10u}, std::pair{0u, 10u}}) {
    const std::uint32_t mask = (1u << width) - 1u;
    counts.fill(0);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t magnitude = Magnitude(p[i]);
      if ((magnitude & known) == prefix) ++counts[magnitude >> shift & mask];
    }
    std::uint32_t digit = mask;
    while (counts[digit] < wanted) wanted -= counts[digit--];
    prefix |= digit << shift;
    known |= mask << shift;
  }
  return {prefix, wanted};
}

// Calls take(rank, i) for each selected index, rising.
template <typename Take>
void ForEachSelected(const float* p, std::size_t n, Selection selection, const Take& take) {
  std::size_t rank = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t magnitude = Magnitude(p[i]);
    if (magnitude < selection.threshold) continue;
    if (magnitude == selection.threshold) {
      if (selection.ties == 0) continue;
      --selection.ties;
    }
    take(rank++, i);
  }
}

struct FullValue {
  static constexpr std::size_t kBytes = 4;
  static void Store(float value, std::byte* out) { std::memcpy(out, &value, kBytes); }
  static float Load(const std::byte* in) {
    float value = 0;
    std::memcpy(&value, in, kBytes);
    return value;
  }
  static bool IsFinite(const std::byte* in) { return std::isfinite(Load(in)); }
  static bool IsLargest(const std::byte*) { return false; }  // nothing is beyond it
};

struct HalfValue {
  static constexpr std::size_t kBytes = 2;
  static void Store(float value, std::byte* out) {
    const std::uint16_t code = Half16::FromFloat(value);
    std::memcpy(out, &code, kBytes);
  }
  static float Load(const std::byte* in) { return Half16::ToFloat(Code(in)); }
  static bool IsFinite(const std::byte* in) { return (Code(in) & Half16::kInfinity) != Half16::kInfinity; }
  static bool IsLargest(const std::byte* in) { return (Code(in) & 0x7FFFU) == Half16::kLargest; }

 private:
  static std::uint16_t Code(const std::byte* in) {
    std::uint16_t code = 0;
    std::memcpy(&code, in, kBytes);
    return code;
  }
};

template <typename Value>
class TopkCodec : public Codec {
 public:
  TopkCodec(std::uint64_t ratio_ppm, bool union_reply) : ratio_ppm_(ratio_ppm), union_reply_(union_reply) {}

  std::uint8_t id() const override { return 4; }
  std::string_view name() const override { return "topk"; }
  CodecTraits traits() const override {
    return {.lossy = true,
            .feedback_forced = true,
            .exact_reply = union_reply_,
            .exact_residual = true,
            .divided_by = DividedBy::kReceiver};
  }
  std::size_t EncodedBytes(std::size_t n) const override { return Kept(n) * (kIndexBytes + Value::kBytes); }

  std::size_t Saturated(std::span<const std::byte> payload, std::size_t n) const override {
    std::size_t count = 0;
    const std::byte* values = payload.data() + Kept(n) * kIndexBytes;
    for (std::size_t j = 0; j < Kept(n); ++j) count += Value::IsLargest(values + j * Value::kBytes) ? 1U : 0U;
    return count;
  }

  std::unique_ptr<OwnerSum> MakeOwnerSum(std::uint32_t workers) const override {
    if (!union_reply_) return nullptr;
    return MakeTopkUnionSum(this, workers);
  }

  void Encode(const EncodeKey&, const float* p, std::size_t n, std::byte* out, float* decoded) const override {
    const FlushDenormals flush;
    EncodeAll(p, n, out, decoded);
  }

  Status Validate(std::span<const std::byte> payload, std::size_t n) const override {
    TALLY_RETURN_IF_ERROR(CheckPayloadBytes(name(), n, EncodedBytes(n), payload.size()));
    const std::size_t k = Kept(n);
    std::size_t lowest = 0;  // that the next index may be
    for (std::size_t j = 0; j < k; ++j) {
      const std::size_t i = Index(payload.data(), j);
      if (i >= n) return CorruptAt(name(), "index", j, "below " + std::to_string(n), std::to_string(i));
      if (i < lowest) return CorruptAt(name(), "index", j, "at least " + std::to_string(lowest), std::to_string(i));
      if (!Value::IsFinite(ValueAt(payload.data(), k, j))) {
        return CorruptAt(name(), "value", j, "a finite number", "infinity or NaN");
      }
      lowest = i + 1;
    }
    return Status::Ok();
  }

  void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const override {
    std::fill_n(out, n, 0.0f);
    const std::size_t k = Kept(n);
    for (std::size_t j = 0; j < k; ++j) out[Index(payload.data(), j)] = Decoded(payload.data(), k, j);
  }

  void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const override {
    const std::size_t k = Kept(n);
    for (std::size_t j = 0; j < k; ++j) {
      float& sum = acc[Index(payload.data(), j)];
      sum = sum + Decoded(payload.data(), k, j);
    }
  }

 protected:
  // The definition: every element is a candidate.
  void EncodeAll(const float* p, std::size_t n, std::byte* out, float* decoded) const {
    TALLY_CHECK(n <= kMaxElements, "topk encodes at most one slab");
    if (decoded != nullptr) std::fill_n(decoded, n, 0.0f);
    EncodeLargest(p, n, Kept(n), out, std::identity(), [decoded](std::size_t i, float, float value) {
      if (decoded != nullptr) decoded[i] = value;
    });
  }

  // Encodes the k largest of `count` candidates, in the order of the slab, which place(i) gives their index in. Calls
  // taken(index, p, value) with what receivers decode.
  template <typename Place, typename Taken>
  static void EncodeLargest(const float* candidates, std::size_t count, std::size_t k, std::byte* out,
                            const Place& place, const Taken& taken) {
    if (k == 0) return;
    ForEachSelected(candidates, count, SelectLargest(candidates, count, k), [&](std::size_t j, std::size_t i) {
      const auto index = static_cast<std::uint16_t>(place(i));
      std::memcpy(out + j * kIndexBytes, &index, sizeof index);
      std::byte* slot = out + k * kIndexBytes + j * Value::kBytes;
      Value::Store(FlushToZero(candidates[i]), slot);
      taken(place(i), candidates[i], FlushToZero(Value::Load(slot)));
    });
  }

  std::uint64_t ratio_ppm() const { return ratio_ppm_; }
  bool union_reply() const { return union_reply_; }

  std::size_t Kept(std::size_t n) const {
    if (n == 0) return 0;
    return std::max<std::size_t>(1, (n * ratio_ppm_ + 999'999) / 1'000'000);
  }

 private:
  static constexpr std::size_t kIndexBytes = 2;

  static std::size_t Index(const std::byte* payload, std::size_t j) {
    std::uint16_t index = 0;
    std::memcpy(&index, payload + j * kIndexBytes, sizeof index);
    return index;
  }
  static const std::byte* ValueAt(const std::byte* payload, std::size_t k, std::size_t j) {
    return payload + k * kIndexBytes + j * Value::kBytes;
  }
  static float Decoded(const std::byte* payload, std::size_t k, std::size_t j) {
    return FlushToZero(Value::Load(ValueAt(payload, k, j)));
  }
  // +0 for whatever counts as zero, so that a sum of decoded values never holds a negative zero.
  static float FlushToZero(float value) { return Magnitude(value) == 0 ? 0.0f : value; }

  std::uint64_t ratio_ppm_;
  bool union_reply_;
};

}  // namespace tally
