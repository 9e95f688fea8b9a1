#include "compress/topk_union.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/reduce/reduce.h"
#include "compress/validate.h"

namespace tally {
namespace {

constexpr std::uint32_t kDense = std::numeric_limits<std::uint32_t>::max();  // as count
constexpr std::size_t kIndexBytes = sizeof(std::uint16_t), kValueBytes = sizeof(float);

template <typename T>
T Load(const std::byte* from, std::size_t index = 0) {
  T value;
  std::memcpy(&value, from + index * sizeof value, sizeof value);
  return value;
}
template <typename T>
void Store(T value, std::byte* to, std::size_t index = 0) {
  std::memcpy(to + index * sizeof value, &value, sizeof value);
}

class TopkUnionSum final : public OwnerSum {
 public:
  TopkUnionSum(const Codec* codec, std::uint32_t workers)
      : codec_(codec), bytes_per_kept_(codec->EncodedBytes(1)), workers_(workers) {}

  std::size_t SumBytes(std::uint8_t, std::size_t n) const override { return n * kValueBytes; }
  void Start(std::uint8_t, std::span<const std::byte> push, std::size_t n, std::byte* sum) const override {
    codec_->Decode(push, n, reinterpret_cast<float*>(sum));
  }
  void Add(std::uint8_t, std::span<const std::byte> push, std::size_t n, std::byte* sum) const override {
    codec_->DecodeAdd(push, n, reinterpret_cast<float*>(sum));
  }

  std::size_t UsualReplyBytes(std::size_t n) const override { return Bytes(MostNonZeros(n), n); }
  std::size_t ReplyBytes(std::uint8_t, const std::byte* sum, std::size_t n) const override {
    const auto* values = reinterpret_cast<const float*>(sum);
    if (!AllFinite(values, n)) return 0;
    return Bytes(NonZeros(values, n), n);
  }
  void Reply(std::uint8_t, const std::byte* sum, std::size_t n, std::span<std::byte> out) const override {
    const auto* values = reinterpret_cast<const float*>(sum);
    std::byte* indices = out.data() + sizeof kDense;
    const std::size_t count = NonZeros(values, n);
    if (IsDense(count, n)) {
      Store(kDense, out.data());
      std::memcpy(indices, values, n * kValueBytes);
      return;
    }
    Store(static_cast<std::uint32_t>(count), out.data());
    std::size_t j = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (values[i] == 0.0F) continue;
      Store(static_cast<std::uint16_t>(i), indices, j);
      Store(values[i], indices + count * kIndexBytes, j++);
    }
  }

  Result<std::size_t> Validate(std::uint8_t, std::span<const std::byte> payload, std::size_t n) const override {
    if (payload.size() < sizeof kDense) return TooShort(n, sizeof kDense, payload.size());
    const auto count = Load<std::uint32_t>(payload.data());
    if (count != kDense && count > MostNonZeros(n)) {
      return CorruptAt("topk union reply", "count of slab", 0, "at most " + std::to_string(MostNonZeros(n)),
                       std::to_string(count));
    }
    const std::size_t values = count == kDense ? n : count;
    const std::size_t index_bytes = count == kDense ? 0 : values * kIndexBytes;
    const std::size_t bytes = sizeof kDense + index_bytes + values * kValueBytes;
    if (payload.size() < bytes) return TooShort(n, bytes, payload.size());
    const std::byte* indices = payload.data() + sizeof kDense;
    std::size_t lowest = 0;
    for (std::size_t j = 0; j < values && index_bytes != 0; ++j) {
      const std::size_t i = Load<std::uint16_t>(indices, j);
      if (i < lowest || i >= n) {
        return CorruptAt("topk union reply", "index", j,
                         "from " + std::to_string(lowest) + " and below " + std::to_string(n), std::to_string(i));
      }
      lowest = i + 1;
    }
    for (std::size_t j = 0; j < values; ++j) {
      if (!std::isfinite(Load<float>(indices + index_bytes, j))) {
        return CorruptAt("topk union reply", "value", j, "a finite number", "infinity or NaN");
      }
    }
    return bytes;
  }

  bool Decode(std::uint8_t, std::span<const std::byte> reply, std::size_t n, const float*, float* out,
              float*) const override {
    const auto count = Load<std::uint32_t>(reply.data());
    const std::byte* indices = reply.data() + sizeof kDense;
    if (count == kDense) {
      std::memcpy(out, indices, n * kValueBytes);
      return true;
    }
    std::fill_n(out, n, 0.0F);
    for (std::size_t j = 0; j < count; ++j) {
      out[Load<std::uint16_t>(indices, j)] = Load<float>(indices + count * kIndexBytes, j);
    }
    return true;
  }

 private:
  static std::size_t NonZeros(const float* sum, std::size_t n) {
    return n - static_cast<std::size_t>(std::count(sum, sum + n, 0.0F));
  }
  std::size_t MostNonZeros(std::size_t n) const {
    return std::min(n, workers_ * (codec_->EncodedBytes(n) / bytes_per_kept_));
  }
  static bool IsDense(std::size_t count, std::size_t n) {
    return count * (kIndexBytes + kValueBytes) > n * kValueBytes;
  }
  static std::size_t Bytes(std::size_t count, std::size_t n) {
    return sizeof kDense + (IsDense(count, n) ? n * kValueBytes : count * (kIndexBytes + kValueBytes));
  }
  static Status TooShort(std::size_t n, std::size_t expected, std::size_t got) {
    return Corrupt("topk union reply of " + std::to_string(n) + " elements: expected at least " +
                   std::to_string(expected) + " bytes, got " + std::to_string(got));
  }

  const Codec* codec_;
  std::size_t bytes_per_kept_;
  std::size_t workers_;
};

}  // namespace

std::unique_ptr<OwnerSum> MakeTopkUnionSum(const Codec* codec, std::uint32_t workers) {
  return std::make_unique<TopkUnionSum>(codec, workers);
}

}  // namespace tally
