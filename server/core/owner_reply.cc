#include "server/core/owner_reply.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/reduce/reduce.h"
#include "compress/flush_denormals.h"

namespace tally {
namespace {

constexpr std::size_t kChunk = 4096;  // elements: the check reads what the division left in L1

// out[i] = fl(sum[i] / weight), zeros for weight 0. out may be sum. False if the sum or the mean is not finite.
bool Mean(const float* sum, std::size_t n, float weight, float* out) {
  if (weight == 0) {
    if (!AllFinite(sum, n)) return false;
    std::fill_n(out, n, 0.0f);
    return true;
  }
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::size_t count = std::min(kChunk, n - first);
    Divide(out + first, sum + first, weight, count);
    if (!AllFinite(out + first, count)) return false;
  }
  return true;
}

}  // namespace

bool ReplyEncoder::Encode(const Codec& codec, const EncodeKey& key, const float* sum, std::size_t n, float weight,
                          const float* e, float* e_out, std::byte* out) {
  if (!std::isfinite(weight)) return false;
  if (codec.id() == kCodecNone) return Mean(sum, n, weight, reinterpret_cast<float*>(out));
  if (codec.traits().divided_by == DividedBy::kReceiver && weight != 0) {
    return codec.EncodeWithFeedback(key, sum, 1.0f, e, e_out, n, out);
  }
  return EncodeMean(codec, key, sum, n, weight, e, e_out, out);
}

bool ReplyEncoder::EncodeMean(const Codec& codec, const EncodeKey& key, const float* sum, std::size_t n, float weight,
                              const float* e, float* e_out, std::byte* out) {
  mean_.resize(std::max(mean_.size(), n));
  decoded_.resize(std::max(decoded_.size(), n));
  const FlushDenormals flush;
  const float* total = sum;
  if (e != nullptr) {
    Add(e_out, sum, e, n);
    total = e_out;
  }
  if (!AllFinite(total, n) || !Mean(total, n, weight, mean_.data())) return false;
  codec.Encode(key, mean_.data(), n, out, e == nullptr ? nullptr : decoded_.data());
  if (e == nullptr) return true;
  for (std::size_t i = 0; i < n; ++i) e_out[i] = e_out[i] - weight * decoded_[i];
  return AllFinite(e_out, n);
}

}  // namespace tally
