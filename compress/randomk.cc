// Codec randomk: of each slab k values at places that all workers draw alike, one in each of k strata
// [floor(jn/k), floor((j+1)n/k)); k = max(1, ceil(n * ratio_ppm / 10^6)). No indices are sent, and values add up.
// Scale stratum (without error feedback): the value times its stratum's length, whose expectation is the gradient.
#include <algorithm>
#include <cmath>
#include <vector>

#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/linear.h"
#include "compress/philox.h"

namespace tally {
namespace {

std::uint64_t Kept(std::uint64_t n, std::uint64_t ratio_ppm) {
  return n == 0 ? 0 : std::max<std::uint64_t>(1, (n * ratio_ppm + 999'999) / 1'000'000);
}

class RandomkTensor final : public LinearTensor {
 public:
  RandomkTensor(const LinearPlace& place, std::uint64_t ratio_ppm, bool scaled)
      : place_(place), ratio_ppm_(ratio_ppm), scaled_(scaled) {}

  bool Encode(std::uint64_t step, const float* g, float w, const float* e, float* e_out, float* vector) override {
    step_ = step;
    const FlushDenormals flush;
    const std::uint64_t elements = place_.spec.elements.value;
    for (std::uint64_t offset = 0; offset < elements; offset += place_.slab_elements) {
      const std::uint64_t n = std::min(place_.slab_elements, elements - offset);
      float* p = e_out == nullptr ? Scratch() : e_out + offset;
      if (!WeightedSum(g == nullptr ? nullptr : g + offset, w, e == nullptr ? nullptr : e + offset, n, p)) return false;
      ForEachDraw(offset, n, [&](std::uint64_t i, std::uint64_t length) {
        *vector++ = scaled_ ? p[i] * static_cast<float>(length) : p[i];
        p[i] = 0.0F;
      });
    }
    return true;
  }

  void Keep(std::uint64_t step) override { step_ = step; }

  void Decode(const float* mean, float* out) override {
    const FlushDenormals flush;
    const std::uint64_t elements = place_.spec.elements.value;
    for (std::uint64_t offset = 0; offset < elements; offset += place_.slab_elements) {
      const std::uint64_t n = std::min(place_.slab_elements, elements - offset);
      std::fill_n(out + offset, n, 0.0F);
      ForEachDraw(offset, n, [&](std::uint64_t i, std::uint64_t) { out[offset + i] = *mean++; });
    }
  }

 private:
  // take(i, length): place and length of each stratum of the slab, rising. Four draws to a block of random words, the
  // probabilities within a stratum of L elements differ by at most L * 2^-32 of themselves.
  template <typename Take>
  void ForEachDraw(std::uint64_t offset, std::uint64_t n, const Take& take) const {
    const std::uint64_t k = Kept(n, ratio_ppm_);
    EncodeKey key{.seed = place_.seed, .tensor = place_.tensor, .step = step_};
    PhiloxBlock random{};
    std::uint64_t first = 0;
    for (std::uint64_t j = 0; j < k; ++j) {
      if (j % 4 == 0) {
        key.position = static_cast<std::uint32_t>(j / 4);
        random = RoundingBits(key, offset / 4);
      }
      const std::uint64_t end = (j + 1) * n / k;
      const std::uint64_t length = end - first;
      take(first + (length * random[j % 4] >> 32), length);
      first = end;
    }
  }

  float* Scratch() {
    scratch_.resize(place_.slab_elements);
    return scratch_.data();
  }

  const LinearPlace place_;
  const std::uint64_t ratio_ppm_;
  const bool scaled_;
  std::uint64_t step_ = 0;  // of the last encode: what decoding draws for
  std::vector<float> scratch_;
};

class RandomkCodec final : public LinearCodec {
 public:
  RandomkCodec(std::uint64_t ratio_ppm, bool scaled) : ratio_ppm_(ratio_ppm), scaled_(scaled) {}
  std::uint8_t id() const override { return 8; }
  std::string_view name() const override { return "randomk"; }

  std::vector<TensorSpec> Vectors(const TensorSpec& tensor, std::uint64_t slab_elements) const override {
    const std::uint64_t n = tensor.elements.value;
    if (n == 0) return {};
    const std::uint64_t values =
        n / slab_elements * Kept(slab_elements, ratio_ppm_) + Kept(n % slab_elements, ratio_ppm_);
    return {{tensor.name + "/values", ElementCount(values), DType::kFloat32}};
  }

  std::unique_ptr<LinearTensor> Make(const LinearPlace& place) const override {
    return std::make_unique<RandomkTensor>(place, ratio_ppm_, scaled_);
  }

 private:
  std::uint64_t ratio_ppm_;
  bool scaled_;
};

}  // namespace

std::unique_ptr<LinearCodec> MakeRandomkCodec(const Config::Compression& options) {
  const auto ratio_ppm = static_cast<std::uint64_t>(std::llround(options.ratio * 1e6));
  const bool scaled =
      options.randomk_scale == "stratum" || (options.randomk_scale == "auto" && !options.error_feedback);
  return std::make_unique<RandomkCodec>(ratio_ppm, scaled);
}

}  // namespace tally
