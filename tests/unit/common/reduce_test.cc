// Sums and checks against a scalar loop, on every target that this CPU can run, bit by bit.
#include "common/reduce/reduce.h"

#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace tally {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 97, 4095, 4096, 4097, 65536, 100003};

// Bit patterns over the whole range of finite floats, denormals included.
std::vector<float> Finite(std::size_t n, std::uint64_t seed) {
  std::vector<float> v(n);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (float& x : v) {
    do {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = std::bit_cast<float>(static_cast<std::uint32_t>(state >> 32));
    } while ((std::bit_cast<std::uint32_t>(x) & 0x7F800000u) == 0x7F800000u);
  }
  return v;
}

void ExpectSameBits(const std::vector<float>& expected, const float* got) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(expected[i]), std::bit_cast<std::uint32_t>(got[i])) << "element " << i;
  }
}

class ReduceOnTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(ReduceOnTarget, GivesTheBitsOfAScalarLoop) {
  for (const std::size_t n : kSizes) {
    const std::vector<float> a = Finite(n, 1), b = Finite(n, 2);
    const float w = 3.7f;
    std::vector<float> sum(n), scaled(n), divided(n);
    for (std::size_t i = 0; i < n; ++i) {
      sum[i] = a[i] + b[i];
      scaled[i] = w * a[i];
      divided[i] = a[i] / w;
    }
    // One float past a 64-byte boundary, to be unaligned, with a guard behind the end.
    std::vector<float> out(n + 2, 77.0f);
    Add(out.data() + 1, a.data(), b.data(), n);
    ExpectSameBits(sum, out.data() + 1);
    Scale(out.data() + 1, a.data(), w, n);
    ExpectSameBits(scaled, out.data() + 1);
    Divide(out.data() + 1, a.data(), w, n);
    ExpectSameBits(divided, out.data() + 1);
    std::copy(a.begin(), a.end(), out.begin() + 1);
    AddInto(out.data() + 1, b.data(), n);
    ExpectSameBits(sum, out.data() + 1);
    for (std::size_t shift = 0; shift < 4; ++shift) {
      std::vector<std::byte> received(shift + n * sizeof(float));
      if (n > 0) std::memcpy(received.data() + shift, b.data(), n * sizeof(float));
      std::copy(a.begin(), a.end(), out.begin() + 1);
      AddInto(out.data() + 1, received.data() + shift, n);
      ExpectSameBits(sum, out.data() + 1);
    }
    EXPECT_EQ(out.front(), 77.0f);
    EXPECT_EQ(out.back(), 77.0f);
  }
}

TEST_P(ReduceOnTarget, SumsOfTermsAreThoseOfAScalarLoopFromLeftToRight) {
  for (const std::size_t n : kSizes) {
    for (const std::size_t count : {1U, 2U, 3U, 7U}) {
      for (const bool scaled : {false, true}) {
        for (const float divisor : {1.0F, 3.7F}) {
          std::vector<std::vector<float>> values;
          std::vector<Term> terms;
          for (std::size_t t = 0; t < count; ++t) {
            values.push_back(Finite(n, 3 + t));
            for (float& v : values.back()) v *= 0x1p-8F;  // sums stay finite
            terms.push_back({values.back().data(), scaled ? 0.3F + static_cast<float>(t) : 1.0F});
          }
          std::vector<float> expected(n);
          for (std::size_t i = 0; i < n; ++i) {
            float sum = terms[0].factor * values[0][i];
            for (std::size_t t = 1; t < count; ++t) {
              const float next = terms[t].factor * values[t][i];
              sum = sum + next;
            }
            expected[i] = sum / divisor;
          }
          for (const bool stream : {false, true}) {
            for (const std::size_t shift : {0U, 1U}) {
              std::vector<float> memory(n + 34, 77.0F);
              const auto aligned = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64 / sizeof(float);
              float* out = memory.data() + aligned + shift;
              EXPECT_TRUE(SumTerms(out, terms, divisor, n, stream));
              ExpectSameBits(expected, out);
              EXPECT_EQ(out[n], 77.0F);
            }
          }
          std::vector<float> in_place = values.back();
          terms.back().values = in_place.data();
          EXPECT_TRUE(SumTerms(in_place.data(), terms, divisor, n, false));
          ExpectSameBits(expected, in_place.data());
        }
      }
    }
  }
}

TEST_P(ReduceOnTarget, SumsOfTermsTellWhatIsNotFinite) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{97}, std::size_t{4097}}) {
    const std::vector<float> ones(n, 1.0F), most(n, std::numeric_limits<float>::max());
    std::vector<float> out(n);
    for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
        std::vector<float> spoilt = ones;
        spoilt[at] = bad;
        const Term terms[] = {{ones.data(), 1}, {spoilt.data(), 1}};
        EXPECT_FALSE(SumTerms(out.data(), terms, 2, n, false)) << n << " at " << at;
      }
    }
    const Term too_much[] = {{most.data(), 1}, {most.data(), 1}};
    EXPECT_FALSE(SumTerms(out.data(), too_much, 2, n, true));
  }
}

TEST_P(ReduceOnTarget, CopiesEveryBitFromAnywhereToAnywhere) {
  for (const std::size_t n : kSizes) {
    std::vector<float> a = Finite(n, 9);
    if (n > 2) a[1] = std::numeric_limits<float>::signaling_NaN();
    for (std::size_t shift = 0; shift < 18; shift += 3) {
      std::vector<float> out(n + 20, 77.0F);
      for (const bool stream : {false, true}) {
        Copy(out.data() + shift, a.data(), n, stream);
        ExpectSameBits(a, out.data() + shift);
        EXPECT_EQ(out[n + shift], 77.0F);
      }
      std::vector<std::byte> bytes(shift + n * sizeof(float));
      if (n > 0) std::memcpy(bytes.data() + shift, a.data(), n * sizeof(float));
      std::fill(out.begin(), out.end(), 77.0F);
      Copy(out.data() + 1, bytes.data() + shift, n);
      ExpectSameBits(a, out.data() + 1);
      EXPECT_EQ(out[n + 1], 77.0F);
      std::vector<std::byte> sent(shift + n * sizeof(float) + 1, std::byte{7});
      Copy(sent.data() + shift, a.data(), n);
      EXPECT_TRUE(n == 0 || std::memcmp(sent.data() + shift, a.data(), n * sizeof(float)) == 0);
      EXPECT_EQ(sent.back(), std::byte{7});
    }
  }
}

TEST_P(ReduceOnTarget, CopiesBytesFromAndToAnyAddress) {
  for (const std::size_t n : {0U, 1U, 3U, 4U, 5U, 63U, 64U, 1021U, 100003U}) {
    for (std::size_t from = 0; from < 5; ++from) {
      for (std::size_t to = 0; to < 5; ++to) {
        std::vector<std::byte> in(n + from), out(n + to + 1, std::byte{9});
        for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + i / 251);
        CopyBytes(out.data() + to, in.data() + from, n);
        ASSERT_TRUE(std::equal(in.begin() + static_cast<std::ptrdiff_t>(from), in.end(),
                               out.begin() + static_cast<std::ptrdiff_t>(to)))
            << n << " " << from << " " << to;
        EXPECT_EQ(out.back(), std::byte{9});
        for (std::size_t i = 0; i < to; ++i) EXPECT_EQ(out[i], std::byte{9});
      }
    }
  }
}

TEST_P(ReduceOnTarget, WorksInPlace) {
  std::vector<float> a = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 3};
  const std::vector<float> before = a;
  Divide(a.data(), a.data(), 4, a.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], before[i] / 4);
  Scale(a.data(), a.data(), 8, a.size());
  Add(a.data(), a.data(), a.data(), a.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i], before[i] * 4);
}

TEST_P(ReduceOnTarget, KeepsDenormals) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  std::vector<float> a(37, tiny);
  AddInto(a.data(), a.data(), a.size());
  for (const float x : a) EXPECT_EQ(x, 2 * tiny);
  Divide(a.data(), a.data(), 2, a.size());
  for (const float x : a) EXPECT_EQ(x, tiny);
}

TEST_P(ReduceOnTarget, FindsANonFiniteValueAnywhere) {
  const float bad[] = {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN(), std::bit_cast<float>(0xFF800001u)};
  for (const std::size_t n : kSizes) {
    std::vector<float> v = Finite(n, 3);
    if (n > 0) v[n / 2] = std::numeric_limits<float>::max();
    EXPECT_TRUE(AllFinite(v.data(), n)) << n;
    const std::size_t stride = n < 200 ? 1 : n / 61;
    for (std::size_t at = 0; at < n; at += stride) {
      const float kept = v[at];
      v[at] = bad[at % 4];
      EXPECT_FALSE(AllFinite(v.data(), n)) << n << " at " << at;
      v[at] = kept;
    }
    if (n > 0) {
      v[n - 1] = bad[n % 4];
      EXPECT_FALSE(AllFinite(v.data(), n)) << n << " at the end";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ReduceOnTarget, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

}  // namespace
}  // namespace tally
