// Every codec with vector loops against the plain one that defines its bytes, on every instruction set that this
// machine has: bytes, residuals, decoded numbers and verdicts on payloads are the same.
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>

#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

struct TargetCase {
  CodecCase codec;
  std::int64_t target = 0;
};

void PrintTo(const TargetCase& c, std::ostream* out) { PrintTo(c.codec, out); }

std::vector<TargetCase> TargetCases() {
  std::vector<TargetCase> cases;
  for (const CodecCase& codec : CodecCases()) {
    if (codec.Make()->MakeReference() == nullptr) continue;
    for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) cases.push_back({codec, target});
  }
  return cases;
}

class CodecTarget : public testing::TestWithParam<TargetCase> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam().target);
    simd_ = GetParam().codec.Make();
    reference_ = simd_->MakeReference();
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  // Both encode w*g + e and decode the result; `shift` misaligns all buffers of the vector codec by elements and bytes.
  void Compare(const std::vector<float>& g, float w, const std::vector<float>& e, std::size_t shift) {
    const std::size_t n = g.size(), bytes = reference_->EncodedBytes(n);
    ASSERT_EQ(simd_->EncodedBytes(n), bytes);
    const EncodeKey key = GetParam().codec.Key();
    const auto shifted = [shift](const std::vector<float>& values) {
      std::vector<float> at(shift, -7.0f);
      at.insert(at.end(), values.begin(), values.end());
      return at;
    };
    const std::vector<float> g_at = shifted(g), e_at = shifted(e);
    std::vector<std::byte> expected(bytes), found(bytes + shift);
    std::vector<float> rest(n, -1.0f), rest_at(n + shift, -1.0f);
    const auto same = [shift, n](const std::vector<float>& a, const std::vector<float>& at) {
      return n == 0 || std::memcmp(a.data(), at.data() + shift, n * sizeof(float)) == 0;
    };
    const bool with_e = !e.empty();
    ASSERT_TRUE(reference_->EncodeWithFeedback(key, g.data(), w, with_e ? e.data() : nullptr, rest.data(), n,
                                               expected.data()));
    ASSERT_TRUE(simd_->EncodeWithFeedback(key, g_at.data() + shift, w, with_e ? e_at.data() + shift : nullptr,
                                          rest_at.data() + shift, n, found.data() + shift));
    const auto payload = std::span(found).subspan(shift);
    ASSERT_TRUE(std::ranges::equal(expected, payload)) << "encoded with feedback";
    ASSERT_TRUE(same(rest, rest_at)) << "rest";

    ASSERT_TRUE(simd_->Validate(payload, n).ok());
    std::vector<float> decoded(n, 3.0f), decoded_at(n + shift, 3.0f);
    reference_->Decode(expected, n, decoded.data());
    simd_->Decode(payload, n, decoded_at.data() + shift);
    ASSERT_TRUE(same(decoded, decoded_at)) << "decoded";
    std::vector<float> sum = g, sum_at = g_at;
    reference_->DecodeAdd(expected, n, sum.data());
    simd_->DecodeAdd(payload, n, sum_at.data() + shift);
    ASSERT_TRUE(same(sum, sum_at)) << "added";

    reference_->Encode(key, g.data(), n, expected.data(), decoded.data());
    simd_->Encode(key, g_at.data() + shift, n, found.data() + shift, decoded_at.data() + shift);
    ASSERT_TRUE(std::ranges::equal(expected, payload)) << "encoded";
    ASSERT_TRUE(same(decoded, decoded_at)) << "said to be decoded";
  }

  std::unique_ptr<Codec> simd_, reference_;
};

TEST_P(CodecTarget, SameAtEverySize) {
  for (const std::size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const auto seed = static_cast<std::uint32_t>(n);
    Compare(RandomSlab(n, seed), 1.0f, {}, n % 5);
    Compare(RandomSlab(n, seed + 1), 0.3f, RandomSlab(n, seed + 2), 0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CodecTarget, SameAtEveryAlignment) {
  for (const std::size_t n : {std::size_t{9}, std::size_t{1000}, std::size_t{20000}}) {
    for (std::size_t shift = 0; shift < 17; ++shift) {
      SCOPED_TRACE(testing::Message() << n << " elements, shifted by " << shift);
      Compare(RandomSlab(n, 1), 2.0f, RandomSlab(n, 2), shift);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CodecTarget, SameOnHardSlabs) {
  for (const std::size_t n : {std::size_t{600}, std::size_t{20000}}) {
    for (const NamedSlab& slab : AdversarialSlabs(n)) {
      SCOPED_TRACE(testing::Message() << n << " elements, " << slab.name);
      Compare(slab.values, 1.0f, {}, 0);
      Compare(slab.values, 1.5f, RandomSlab(n, 4), 1);
      Compare(std::vector<float>(n, -0.0f), 1.0f, slab.values, 3);
      if (HasFatalFailure()) return;
    }
  }
}

// All magnitudes there are: each exponent with fractions at and beside those where a code changes.
TEST_P(CodecTarget, SameOnEveryExponent) {
  std::vector<float> p;
  for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const std::uint32_t step : {0x0u, 0x1000u, 0x3000u, 0x8000u, 0x10000u, 0x600000u, 0x700000u, 0x7E0000u, 0x7F0000u}) {
      for (const std::uint32_t beside : {0x7FFFFFu, 0u, 1u}) {
        const std::uint32_t bits = exponent << 23 | ((step + beside) & 0x7FFFFFu);
        p.push_back(std::bit_cast<float>(p.size() % 2 == 0 ? bits : bits | 0x80000000u));
      }
    }
  }
  Compare(p, 1.0f, {}, 0);
  // And each one as the largest of its block.
  for (std::size_t i = 0; i < p.size(); i += 29) {
    std::vector<float> block(260, p[i] / 3);
    block[100] = p[i];
    SCOPED_TRACE(testing::Message() << "largest " << p[i]);
    Compare(block, 1.0f, {}, 0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(CodecTarget, SameVerdictOnDamagedPayloads) {
  std::mt19937 random(5);
  for (const std::size_t n : {std::size_t{1}, std::size_t{128}, std::size_t{600}, std::size_t{8200}}) {
    std::vector<float> p = RandomSlab(n, 6);
    for (std::size_t i = 0; i < n; ++i) p[i] = i / 256 % 2 == 0 ? p[i] : 0.0f;
    std::vector<std::byte> good(simd_->EncodedBytes(n));
    simd_->Encode(GetParam().codec.Key(), p.data(), n, good.data(), nullptr);
    for (int trial = 0; trial < 500; ++trial) {
      std::vector<std::byte> bytes = good;
      bytes[random() % bytes.size()] = static_cast<std::byte>(trial % 3 == 0 ? 0x80u : random());
      ASSERT_EQ(simd_->Validate(bytes, n).text(), reference_->Validate(bytes, n).text());
    }
  }
}

TEST_P(CodecTarget, RefusesWhatIsNotFinite) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{300}, std::size_t{20000}}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> g = RandomSlab(n, 9), rest(n);
        g[at] = bad;
        std::vector<std::byte> out(simd_->EncodedBytes(n));
        EXPECT_FALSE(simd_->EncodeWithFeedback({}, g.data(), 1.0f, nullptr, rest.data(), n, out.data()));
        EXPECT_FALSE(simd_->EncodeWithFeedback({}, g.data(), 0.0f, g.data(), rest.data(), n, out.data()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Table, CodecTarget, testing::ValuesIn(TargetCases()), [](const auto& tested) {
  return tested.param.codec.name + "_" + tested.param.codec.label + "_" + hwy::TargetName(tested.param.target);
});

}  // namespace
}  // namespace tally
