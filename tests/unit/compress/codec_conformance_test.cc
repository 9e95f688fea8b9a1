// The laws of compress/codec.h and CODECS.md, over every codec of the table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/reduce/reduce.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

constexpr std::byte kCanary{0xA5};
constexpr std::size_t kGuard = 64;

// A payload with canaries on both sides, at any misalignment.
class GuardedBytes {
 public:
  GuardedBytes(std::size_t size, std::size_t misalignment)
      : start_(kGuard + misalignment), size_(size), bytes_(start_ + size + kGuard, kCanary) {}
  std::byte* data() { return bytes_.data() + start_; }
  std::span<const std::byte> payload() const { return {bytes_.data() + start_, size_}; }
  bool Intact() const {
    const auto is_canary = [](std::byte b) { return b == kCanary; };
    const auto start = bytes_.begin() + static_cast<std::ptrdiff_t>(start_);
    return std::all_of(bytes_.begin(), start, is_canary) &&
           std::all_of(start + static_cast<std::ptrdiff_t>(size_), bytes_.end(), is_canary);
  }

 private:
  std::size_t start_, size_;
  std::vector<std::byte> bytes_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

class CodecConformance : public testing::TestWithParam<CodecCase> {
 protected:
  std::unique_ptr<Codec> codec_ = GetParam().Make();
  EncodeKey key_ = GetParam().Key();

  std::vector<std::byte> Encode(const std::vector<float>& p, std::vector<float>* decoded = nullptr) const {
    std::vector<std::byte> out(codec_->EncodedBytes(p.size()));
    if (decoded != nullptr) decoded->assign(p.size(), -99.0f);
    codec_->Encode(key_, p.data(), p.size(), out.data(), decoded == nullptr ? nullptr : decoded->data());
    return out;
  }
  std::vector<float> Decode(std::span<const std::byte> payload, std::size_t n) const {
    std::vector<float> out(n, -99.0f);
    codec_->Decode(payload, n, out.data());
    return out;
  }

  // One encode with feedback; checks the law per element and returns e'.
  std::vector<float> CheckLaw(const std::vector<float>& g, float w, const std::vector<float>& e) {
    const std::size_t n = g.size();
    std::vector<float> rest(n, -99.0f);
    std::vector<std::byte> out(codec_->EncodedBytes(n));
    const float* old = e.empty() ? nullptr : e.data();
    EXPECT_TRUE(codec_->EncodeWithFeedback(key_, g.data(), w, old, rest.data(), n, out.data()));
    EXPECT_TRUE(codec_->Validate(out, n).ok()) << codec_->Validate(out, n).ToString();
    const std::vector<float> decoded = Decode(out, n);
    const bool flush = codec_->traits().lossy;
    std::vector<float> p(n);
    for (std::size_t i = 0; i < n; ++i) p[i] = ReferenceP(g[i], w, old == nullptr ? nullptr : old + i, flush);
    for (std::size_t i = 0; i < n; ++i) {
      const float difference = flush ? Flushed(p[i] - decoded[i]) : 0.0f;
      const double sum = static_cast<double>(decoded[i]) + static_cast<double>(rest[i]);
      const double lost = std::abs(sum - static_cast<double>(p[i]));
      const bool exact = !GetParam().Exact() || lost == 0 || (std::abs(p[i]) <= 0x1p-100f && lost < 0x1p-126);
      if (rest[i] == difference && exact) continue;
      ADD_FAILURE() << i << ": p " << p[i] << " decoded " << decoded[i] << " rest " << rest[i];
      break;
    }
    // One pass and two passes give the same bytes, with and without a place for the residual.
    EXPECT_EQ(out, Encode(p));
    std::vector<std::byte> again(out.size());
    EXPECT_TRUE(codec_->EncodeWithFeedback(key_, g.data(), w, old, nullptr, n, again.data()));
    EXPECT_EQ(out, again);
    return rest;
  }
};

TEST_P(CodecConformance, DecodesWhatItSaysAtEverySize) {
  for (const std::size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const std::vector<float> p = RandomSlab(n, static_cast<std::uint32_t>(n));
    std::vector<float> decoded;
    const std::vector<std::byte> out = Encode(p, &decoded);
    ASSERT_TRUE(codec_->Validate(out, n).ok()) << codec_->Validate(out, n).ToString();
    EXPECT_TRUE(SameBits(decoded, Decode(out, n)));
    if (!codec_->traits().lossy) {
      EXPECT_TRUE(SameBits(p, decoded));
    }
  }
}

TEST_P(CodecConformance, EncodedBytesAreNothingForNothing) { EXPECT_EQ(codec_->EncodedBytes(0), 0u); }

TEST_P(CodecConformance, WritesNothingBeyondItsBytesAtAnyAlignment) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{255}, std::size_t{257},
                              std::size_t{4099}}) {
    const std::vector<float> storage = RandomSlab(n + 8, 5);
    std::vector<std::byte> first;
    for (std::size_t shift = 0; shift < 8; ++shift) {
      SCOPED_TRACE(testing::Message() << n << " elements, shifted by " << shift);
      const std::vector<float> p(storage.begin(), storage.begin() + static_cast<std::ptrdiff_t>(n));
      std::vector<float> shifted(n + shift + 1, -5.0f);
      std::copy(p.begin(), p.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
      GuardedBytes out(codec_->EncodedBytes(n), shift);
      std::vector<float> decoded(n + shift + 1, -5.0f);
      codec_->Encode(key_, shifted.data() + shift, n, out.data(), decoded.data() + shift);
      EXPECT_TRUE(out.Intact());
      EXPECT_EQ(decoded.back(), -5.0f);
      const std::vector<std::byte> bytes(out.payload().begin(), out.payload().end());
      if (shift == 0) first = bytes;
      EXPECT_EQ(bytes, first);

      std::vector<float> rest(n + shift + 1, -5.0f);
      GuardedBytes again(codec_->EncodedBytes(n), shift);
      ASSERT_TRUE(codec_->EncodeWithFeedback(key_, shifted.data() + shift, 1.0f, nullptr, rest.data() + shift, n,
                                             again.data()));
      EXPECT_TRUE(again.Intact());
      EXPECT_EQ(rest.back(), -5.0f);

      std::vector<float> result(n + shift + 1, -5.0f);
      codec_->Decode(out.payload(), n, result.data() + shift);
      EXPECT_EQ(result.back(), -5.0f);
      codec_->DecodeAdd(out.payload(), n, result.data() + shift);
      EXPECT_EQ(result.back(), -5.0f);
    }
  }
}

TEST_P(CodecConformance, DecodeAddIsDecodeThenAdd) {
  for (const std::size_t n : Sizes()) {
    SCOPED_TRACE(n);
    const std::vector<std::byte> out = Encode(RandomSlab(n, 21));
    std::vector<float> sum = RandomSlab(n, 22);
    std::vector<float> expected = sum;
    codec_->DecodeAdd(out, n, sum.data());
    AddInto(expected.data(), Decode(out, n).data(), n);
    EXPECT_TRUE(SameBits(sum, expected));
  }
}

TEST_P(CodecConformance, KeepsTheRestAtEverySize) {
  for (const std::size_t n : Sizes()) {
    if (n > 60000 && n != 65536) continue;  // one large slab is enough, it is slow under sanitizers
    SCOPED_TRACE(n);
    const std::vector<float> e = CheckLaw(RandomSlab(n, 31), 1.0f, {});
    CheckLaw(RandomSlab(n, 32), 0.25f, e);
    if (HasFailure()) return;
  }
}

TEST_P(CodecConformance, KeepsTheRestOfHardSlabs) {
  for (const NamedSlab& slab : AdversarialSlabs()) {
    SCOPED_TRACE(slab.name);
    const std::vector<float> e = CheckLaw(slab.values, 1.0f, {});
    CheckLaw(std::vector<float>(slab.values.size(), 0.0f), 1.0f, e);
    for (const float x : e) ASSERT_TRUE(std::isfinite(x));
    if (HasFailure()) return;
  }
}

// Sum of what was given = sum of what was delivered + residual, over any schedule of commits and drops.
TEST_P(CodecConformance, ConservesOverCommitsAndDrops) {
  constexpr std::size_t kElements = 700;
  std::mt19937 random(99);
  std::vector<double> given(kElements, 0.0), delivered(kElements, 0.0);
  std::vector<float> e(kElements, 0.0f), next(kElements), g(kElements), decoded(kElements);
  std::vector<std::byte> out(codec_->EncodedBytes(kElements));
  constexpr int kSteps = 60;
  for (int step = 0; step < kSteps; ++step) {
    for (float& x : g) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 0.125f;
    EncodeKey key = key_;
    key.step = static_cast<std::uint64_t>(step);
    const float w = static_cast<float>(1 << random() % 3);
    ASSERT_TRUE(codec_->EncodeWithFeedback(key, g.data(), w, e.data(), next.data(), kElements, out.data()));
    if (random() % 4 == 0) continue;  // the step is skipped
    codec_->Decode(out, kElements, decoded.data());
    for (std::size_t i = 0; i < kElements; ++i) {
      given[i] += static_cast<double>(w) * static_cast<double>(g[i]);
      delivered[i] += static_cast<double>(decoded[i]);
    }
    e.swap(next);
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    const double found = delivered[i] + static_cast<double>(e[i]);
    if (GetParam().Exact()) {
      ASSERT_EQ(given[i], found) << i;
    } else {
      ASSERT_NEAR(given[i], found, kSteps * 0x1p-12) << i;  // ulp/2 of numbers up to 8192, twice a step
    }
  }
}

TEST_P(CodecConformance, RefusesWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float huge = std::numeric_limits<float>::max();
  for (const std::size_t n : {std::size_t{1}, std::size_t{257}, std::size_t{5000}}) {
    for (const std::size_t at : {std::size_t{0}, n / 2, n - 1}) {
      std::vector<float> g(n, 1.0f), e(n, 1.0f), rest(n);
      std::vector<std::byte> out(codec_->EncodedBytes(n));
      const auto encodes = [&](float w, float* e_out) {
        return codec_->EncodeWithFeedback(key_, g.data(), w, e.data(), e_out, n, out.data());
      };
      EXPECT_TRUE(encodes(1.0f, rest.data()));
      for (const float bad : {infinity, -infinity, nan, -nan}) {
        g[at] = bad;
        EXPECT_FALSE(encodes(1.0f, rest.data()));
        EXPECT_FALSE(encodes(1.0f, nullptr));
        EXPECT_FALSE(encodes(0.0f, rest.data()));
      }
      g[at] = huge;
      EXPECT_FALSE(encodes(2.0f, rest.data())) << "the product overflows";
      e[at] = huge;
      EXPECT_FALSE(encodes(1.0f, rest.data())) << "p overflows";
    }
  }
}

TEST_P(CodecConformance, RefusesWrongLengths) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{256}, std::size_t{257}, std::size_t{3000}}) {
    std::vector<std::byte> out = Encode(RandomSlab(n, 4));
    const std::size_t right = out.size();
    out.resize(right + 300);
    for (const std::size_t wrong : {std::size_t{0}, right - 1, right + 1, right + 300, right / 2}) {
      const Status status = codec_->Validate(std::span(out).first(wrong), n);
      EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
      EXPECT_NE(status.text().find(std::to_string(right)), std::string::npos) << status.text();
    }
    EXPECT_EQ(codec_->Validate({}, n).kind(), StatusKind::kCorrupt);
  }
  EXPECT_TRUE(codec_->Validate({}, 0).ok());
  EXPECT_FALSE(codec_->Validate(std::vector<std::byte>(1), 0).ok());
}

// Whatever passes Validate decodes without harm, and (but for `none`, which leaves that to the sum) to finite numbers.
TEST_P(CodecConformance, SurvivesHostileBytes) {
  std::mt19937 random(1);
  for (const std::size_t n : {std::size_t{1}, std::size_t{5}, std::size_t{256}, std::size_t{600}}) {
    const std::vector<std::byte> good = Encode(RandomSlab(n, 8));
    for (int trial = 0; trial < 2000; ++trial) {
      std::vector<std::byte> bytes = good;
      if (trial % 2 == 0) {
        for (std::byte& b : bytes) b = static_cast<std::byte>(random());
      } else {
        for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      }
      if (!codec_->Validate(bytes, n).ok()) continue;
      const std::vector<float> decoded = Decode(bytes, n);
      std::vector<float> sum(n, 1.0f);
      codec_->DecodeAdd(bytes, n, sum.data());
      if (codec_->traits().lossy) {
        EXPECT_TRUE(AllFinite(decoded.data(), n));
      }
    }
  }
}

// Every lossy codec gets small numbers beside large ones wrong without feedback and delivers them with it.
TEST_P(CodecConformance, FeedbackHasTeeth) {
  // One block. Three large elements, as many as topk keeps by default, go back and forth; element 1 only ever moves up.
  // A rounding that acts on each number alone would keep 0.25, so there the small part rides on a 1.
  constexpr std::size_t kElements = 256;
  constexpr int kSteps = 1000;
  std::vector<float> alone(kElements, 0.0f), among(kElements, 100.0f);
  alone[1] = among[1] = 0.25f;
  const bool rounds_alone =
      codec_->traits().lossy && Decode(Encode(alone), kElements)[1] == Decode(Encode(among), kElements)[1];
  const float small = rounds_alone ? 0x1p-12f : 0.25f;
  const float carrier = rounds_alone ? 1.0f : 0.0f;
  std::vector<float> g(kElements, 0.0f), e(kElements, 0.0f), next(kElements), decoded(kElements);
  std::vector<std::byte> out(codec_->EncodedBytes(kElements));
  g[1] = carrier + small;
  double with = 0, without = 0;
  for (int step = 0; step < kSteps; ++step) {
    for (const std::size_t i : {0u, 2u, 3u}) g[i] = step % 2 == 0 ? 100.0f : -100.0f;
    key_.step = static_cast<std::uint64_t>(step);
    ASSERT_TRUE(codec_->EncodeWithFeedback(key_, g.data(), 1.0f, e.data(), next.data(), kElements, out.data()));
    codec_->Decode(out, kElements, decoded.data());
    with += static_cast<double>(decoded[1]) - static_cast<double>(carrier);
    e.swap(next);
    codec_->Encode(key_, g.data(), kElements, out.data(), decoded.data());
    without += static_cast<double>(decoded[1]) - static_cast<double>(carrier);
  }
  const double given = kSteps * static_cast<double>(small);
  EXPECT_NEAR(with + static_cast<double>(e[1]), given, kSteps * 0x1p-20);
  EXPECT_GE(with, given * 0.5);
  if (!codec_->traits().lossy) {
    EXPECT_EQ(without, given);
  } else if (GetParam().label == "default") {
    EXPECT_GT(std::abs(without - given), given / 2);
  }
}

// |e'|^2 <= (1 - delta)|p|^2 with delta > 0: repeated feedback of zeros empties the residual or keeps it bounded.
TEST_P(CodecConformance, ResidualIsAContraction) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const std::vector<float> p = RandomSlab(1000, seed);
    std::vector<float> decoded;
    const std::vector<std::byte> out = Encode(p, &decoded);
    double before = 0, after = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      before += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      after += std::pow(static_cast<double>(p[i]) - static_cast<double>(decoded[i]), 2);
    }
    const double kept = static_cast<double>(out.size()) / (1000.0 * 6.0);  // topk's k/n, or far below 1 for the others
    EXPECT_LE(after, before * (1.0 - kept) + 1e-30);
  }
}

TEST_P(CodecConformance, ZeroInZeroOut) {
  const std::vector<float> decoded = Decode(Encode(std::vector<float>(777, 0.0f)), 777);
  for (const float x : decoded) ASSERT_EQ(x, 0.0f);
}

TEST_P(CodecConformance, SameKeySameBytesOtherStepOtherDraws) {
  const std::vector<float> p = RandomSlab(5000, 77);
  const std::vector<std::byte> first = Encode(p);
  EXPECT_EQ(first, Encode(p));
  key_.step += 1;
  const bool draws = GetParam().stochastic && GetParam().name.starts_with("int");
  EXPECT_EQ(first != Encode(p), draws);
}

INSTANTIATE_TEST_SUITE_P(Table, CodecConformance, testing::ValuesIn(CodecCases()),
                         [](const auto& tested) { return tested.param.name + "_" + tested.param.label; });

}  // namespace
}  // namespace tally
