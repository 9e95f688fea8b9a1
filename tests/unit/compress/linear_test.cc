// Linear codecs: what they draw, what stays, what they deliver, and that vectors add up.
#include "compress/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "compress/codec.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

constexpr std::uint8_t kRandomk = 8;

Config::Compression Options(double ratio, bool feedback = true, std::string scale = "auto") {
  Config::Compression options;
  options.codec = "randomk";
  options.ratio = ratio;
  options.error_feedback = feedback;
  options.randomk_scale = std::move(scale);
  return options;
}

// One worker's randomk over a tensor.
struct Randomk {
  Randomk(std::uint64_t elements, std::uint64_t slab, const Config::Compression& options, std::uint64_t seed = 7,
          std::uint32_t tensor = 3)
      : codec(MakeLinearCodec(kRandomk, options).value()),
        spec{"w", ElementCount(elements)},
        state(codec->Make({.seed = seed, .tensor = tensor, .spec = spec, .slab_elements = slab})) {
    values.resize(codec->Vectors(spec, slab).front().elements.value);
  }
  // The places that a step draws, found by sending the place numbers.
  std::vector<std::uint64_t> Places(std::uint64_t step) {
    std::vector<float> p(spec.elements.value), e(p.size());
    std::iota(p.begin(), p.end(), 1.0F);
    EXPECT_TRUE(state->Encode(step, p.data(), 1.0F, e.data() + 0, e.data(), values.data()));
    std::vector<std::uint64_t> places;
    for (const float v : values) places.push_back(static_cast<std::uint64_t>(v) - 1);
    return places;
  }

  std::unique_ptr<LinearCodec> codec;
  TensorSpec spec;
  std::unique_ptr<LinearTensor> state;
  std::vector<float> values;
};

TEST(Randomk, SendsExactlyOneValueOfEachStratum) {
  for (const std::uint64_t n : {1U, 2U, 63U, 4096U, 4097U, 10007U}) {
    for (const double ratio : {0.001, 0.01, 0.3, 0.5, 1.0}) {
      Randomk randomk(n, 4096, Options(ratio));
      const std::vector<std::uint64_t> places = randomk.Places(5);
      std::size_t next = 0;
      for (std::uint64_t offset = 0; offset < n; offset += 4096) {
        const std::uint64_t m = std::min<std::uint64_t>(4096, n - offset);
        const auto ppm = static_cast<std::uint64_t>(std::llround(ratio * 1e6));
        const std::uint64_t k = std::max<std::uint64_t>(1, (m * ppm + 999'999) / 1'000'000);
        for (std::uint64_t j = 0; j < k; ++j, ++next) {
          ASSERT_LT(next, places.size());
          EXPECT_GE(places[next], offset + j * m / k);
          EXPECT_LT(places[next], offset + (j + 1) * m / k);
        }
      }
      EXPECT_EQ(next, places.size()) << n << " elements, ratio " << ratio;
    }
  }
}

TEST(Randomk, PlacesDependOnSeedTensorStepAndSlabOnly) {
  Randomk randomk(8192, 4096, Options(0.01));
  const auto places = randomk.Places(5);
  EXPECT_EQ(randomk.Places(5), places) << "a redo draws the same";
  EXPECT_NE(randomk.Places(6), places);
  EXPECT_EQ(Randomk(8192, 4096, Options(0.01)).Places(5), places) << "another worker draws the same";
  EXPECT_NE(Randomk(8192, 4096, Options(0.01), 8).Places(5), places);
  EXPECT_NE(Randomk(8192, 4096, Options(0.01), 7, 4).Places(5), places);
  const auto half = places.begin() + static_cast<std::ptrdiff_t>(places.size() / 2);
  std::vector<std::uint64_t> second(half, places.end());
  for (std::uint64_t& place : second) place -= 4096;
  EXPECT_NE(std::vector<std::uint64_t>(places.begin(), half), second) << "each slab has draws of its own";
}

TEST(Randomk, GoldenPlacesAndPayload) {
  Randomk randomk(1000, 4096, Options(0.008));
  EXPECT_EQ(randomk.Places(1), (std::vector<std::uint64_t>{91, 131, 353, 392, 620, 645, 763, 953}));
}

// Every place of a stratum is equally likely: chi-square over all strata, whose 99.99 % point for 40 degrees is 83.
TEST(Randomk, PlacesAreUniform) {
  constexpr std::uint64_t kElements = 41 * 20, kSteps = 4000;
  Randomk randomk(kElements, 4096, Options(20.0 / kElements));
  std::vector<double> hits(41);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    const auto places = randomk.Places(step);
    ASSERT_EQ(places.size(), 20U);
    for (std::size_t j = 0; j < 20; ++j) ++hits[places[j] - j * 41];
  }
  const double expected = 20.0 * kSteps / 41;
  double chi_square = 0;
  for (const double h : hits) chi_square += (h - expected) * (h - expected) / expected;
  EXPECT_LT(chi_square, 83);
}

TEST(Randomk, LawPerEncodeAndExactConservation) {
  constexpr std::uint64_t kElements = 5000;
  Randomk randomk(kElements, 4096, Options(0.01));
  std::vector<float> e(kElements), next(kElements), g(kElements), decoded(kElements);
  std::vector<double> given(kElements), delivered(kElements);
  std::mt19937 random(9);
  for (std::uint64_t step = 0; step < 300; ++step) {
    for (float& x : g) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 0.125F;
    const float* given_g = step % 7 == 3 ? nullptr : g.data();  // a missing gradient flushes the residual
    ASSERT_TRUE(randomk.state->Encode(step, given_g, 2.0F, e.data(), next.data(), randomk.values.data()));
    if (step % 5 == 1) {
      randomk.state->Drop();
      continue;
    }
    randomk.state->Decode(randomk.values.data(), decoded.data());
    for (std::size_t i = 0; i < kElements; ++i) {
      const float p = (given_g == nullptr ? 0.0F : 2.0F * g[i]) + e[i];
      ASSERT_EQ(p, decoded[i] + next[i]);
      ASSERT_TRUE(decoded[i] == 0 || next[i] == 0);
      given[i] += given_g == nullptr ? 0.0 : 2.0 * static_cast<double>(g[i]);
      delivered[i] += static_cast<double>(decoded[i]);
    }
    e.swap(next);
    randomk.state->Commit();
  }
  for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(given[i], delivered[i] + static_cast<double>(e[i])) << i;
}

TEST(Randomk, VectorsAddUp) {
  constexpr std::uint64_t kElements = 3000;
  std::vector<float> sum(kElements), total, decoded(kElements);
  Randomk randomk(kElements, 4096, Options(0.02));
  total.resize(randomk.values.size());
  for (int worker = 0; worker < 3; ++worker) {
    std::vector<float> g(kElements);
    for (std::size_t i = 0; i < kElements; ++i) g[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(worker)) % 101);
    Randomk own(kElements, 4096, Options(0.02));
    ASSERT_TRUE(own.state->Encode(4, g.data(), 1.0F, nullptr, nullptr, own.values.data()));
    for (std::size_t j = 0; j < total.size(); ++j) total[j] += own.values[j];
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += g[i];
  }
  ASSERT_TRUE(randomk.state->Encode(4, sum.data(), 1.0F, nullptr, nullptr, randomk.values.data()));
  EXPECT_EQ(randomk.values, total) << "the encoding of the sum is the sum of the encodings";
}

// Without feedback the expectation of what is delivered is the gradient: z-score per element and of the weighted whole.
TEST(Randomk, UnbiasedWithoutFeedback) {
  constexpr std::uint64_t kElements = 1000, kSteps = 4000;
  Randomk randomk(kElements, 4096, Options(0.01, false));
  std::vector<float> g(kElements), decoded(kElements);
  for (std::size_t i = 0; i < kElements; ++i) g[i] = static_cast<float>(i % 17) - 7.5F;
  std::vector<double> sum(kElements);
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(randomk.state->Encode(step, g.data(), 1.0F, nullptr, nullptr, randomk.values.data()));
    randomk.state->Decode(randomk.values.data(), decoded.data());
    for (std::size_t i = 0; i < kElements; ++i) sum[i] += static_cast<double>(decoded[i]);
  }
  // Each element is g*L with probability 1/L, L = 100: variance g^2 (L-1) a step.
  double chi_square = 0;
  for (std::size_t i = 0; i < kElements; ++i) {
    const double x = static_cast<double>(g[i]);
    const double z = (sum[i] - kSteps * x) / std::sqrt(kSteps * x * x * 99);
    EXPECT_LT(std::abs(z), 5.0) << i;
    chi_square += z * z;
  }
  EXPECT_NEAR(chi_square, kElements, 5 * std::sqrt(2.0 * kElements));
}

TEST(Randomk, WithoutFeedbackAndScaleItIsBiased) {
  Randomk randomk(1000, 4096, Options(0.01, false, "none"));
  std::vector<float> g(1000, 4.0F);
  ASSERT_TRUE(randomk.state->Encode(0, g.data(), 1.0F, nullptr, nullptr, randomk.values.data()));
  EXPECT_EQ(randomk.values, std::vector<float>(10, 4.0F));
}

// Teeth: two coordinates, one sent a step. Without feedback (unscaled) half of what is given is lost, with it nothing is.
TEST(Randomk, FeedbackHasTeeth) {
  Randomk randomk(2, 4096, Options(0.5));
  std::vector<float> e(2), next(2), decoded(2);
  double with = 0, without = 0;
  constexpr int kSteps = 1000;
  const std::vector<float> g = {100.0F, 1.0F};
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(randomk.state->Encode(step, g.data(), 1.0F, e.data(), next.data(), randomk.values.data()));
    randomk.state->Decode(randomk.values.data(), decoded.data());
    with += static_cast<double>(decoded[1]);
    e.swap(next);
    ASSERT_TRUE(randomk.state->Encode(step, g.data(), 1.0F, nullptr, nullptr, randomk.values.data()));
    randomk.state->Decode(randomk.values.data(), decoded.data());
    without += static_cast<double>(decoded[1]);
  }
  EXPECT_EQ(with + static_cast<double>(e[1]), kSteps);
  EXPECT_GT(with, 0.95 * kSteps);
  EXPECT_LT(without, 0.6 * kSteps);
}

TEST(Randomk, RefusesWhatIsNotFinite) {
  for (const std::uint64_t n : {1U, 300U, 5000U}) {
    Randomk randomk(n, 4096, Options(0.01));
    std::vector<float> g(n, 1.0F), e(n), next(n);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      g[n - 1] = bad;
      EXPECT_FALSE(randomk.state->Encode(0, g.data(), 1.0F, e.data(), next.data(), randomk.values.data()));
      EXPECT_FALSE(randomk.state->Encode(0, g.data(), 0.0F, nullptr, nullptr, randomk.values.data()));
    }
    g[n - 1] = std::numeric_limits<float>::max();
    EXPECT_FALSE(randomk.state->Encode(0, g.data(), 2.0F, e.data(), next.data(), randomk.values.data()));
  }
}

TEST(LinearCodecs, TraitsAndBytes) {
  Config::Compression options = Options(0.01);
  const CodecTraits traits = TraitsOfCodec("randomk", options).value();
  EXPECT_TRUE(traits.linear && traits.lossy && !traits.feedback_forced);
  EXPECT_TRUE(TraitsOfCodec("randomk", Options(0.01, false, "none"))->feedback_forced);
  EXPECT_TRUE(TraitsOfCodec("powersgd", options)->feedback_forced);
  EXPECT_EQ(MakeLinearCodec(kRandomk, options).value()->name(), "randomk");
  EXPECT_EQ(MakeLinearCodec(0, options).value(), nullptr);
  EXPECT_EQ(TensorBytes({"w", ElementCount(100'000)}, 2, options).value().push, 4U * (502 + 499));
  EXPECT_EQ(TensorBytes({"w", ElementCount(1000)}, 2, options).value().push, 4000U) << "below min_compress_bytes";
  options.randomk_scale = "stratum";
  EXPECT_EQ(TraitsOfCodec("randomk", options).status().kind(), StatusKind::kInvalidArgument);
  options.error_feedback = false;
  EXPECT_TRUE(TraitsOfCodec("randomk", options).ok());
  options.randomk_scale = "big";
  EXPECT_FALSE(MakeLinearCodec(kRandomk, options).ok());
}

}  // namespace
}  // namespace tally
