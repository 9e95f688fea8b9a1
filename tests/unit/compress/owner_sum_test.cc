// What owners sum and answer without decoding or loss: int8_shared's integers and topk's unions.
#include "compress/owner_sum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstring>
#include <numeric>

#include "common/reduce/reduce.h"
#include "compress/flush_denormals.h"
#include "compress/int8_shared_format.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;

Bytes SumOf(const OwnerSum& sum, std::uint8_t version, const std::vector<Bytes>& pushes, std::size_t n) {
  std::vector<float> room((sum.SumBytes(version, n) + 3) / 4);  // aligned
  auto* bytes = reinterpret_cast<std::byte*>(room.data());
  for (std::size_t w = 0; w < pushes.size(); ++w) {
    if (w == 0) {
      sum.Start(version, pushes[w], n, bytes);
    } else {
      sum.Add(version, pushes[w], n, bytes);
    }
  }
  Bytes reply(sum.ReplyBytes(version, bytes, n));
  if (!reply.empty()) sum.Reply(version, bytes, n, reply);
  if (version + 1 == sum.versions()) {
    EXPECT_LE(reply.size(), sum.UsualReplyBytes(n));
  }
  return reply;
}

// Small integers, so that sums are exact.
std::vector<float> Gradient(std::size_t n, std::uint32_t worker, std::uint32_t step) {
  std::vector<float> g(n);
  for (std::size_t i = 0; i < n; ++i) {
    g[i] = static_cast<float>(static_cast<int>((i * 37 + worker * 101 + step * 13) % 509) - 254);
  }
  return g;
}

class Int8SharedTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(Int8SharedTarget, DoesWhatTheDefinitionSays) {
  const auto codec = MakeCodec("int8_shared", {}).value();
  for (const std::size_t n : Sizes()) {
    std::vector<float> g = RandomSlab(n, 5), e = RandomSlab(n, 6), scales(SharedBlocks(n));
    for (std::size_t b = 0; b < scales.size(); ++b) {
      // Too small, right, too large, none.
      scales[b] = b % 4 == 3 ? 0.0F : std::ldexp(1.0F, -10 + static_cast<int>(b % 4) * 6);
    }
    std::vector<float> rest(n), expected_rest(n);
    Bytes out(codec->EncodedBytes(n)), expected(out.size());
    ASSERT_TRUE(codec->EncodeShared(g.data(), 0.75F, e.data(), scales.data(), rest.data(), n, out.data()));
    const FlushDenormals flush;
    for (std::size_t b = 0; b < scales.size(); ++b) {
      const std::size_t first = b * kSharedBlock, count = std::min(kSharedBlock, n - first);
      for (std::size_t i = first; i < first + count; ++i) expected_rest[i] = 0.75F * g[i] + e[i];
      Int8Shared::Encode(expected_rest.data() + first, count, scales[b], expected.data() + b * (1 + kSharedBlock),
                         expected_rest.data() + first);
    }
    ASSERT_EQ(out, expected) << n;
    ASSERT_EQ(0, n == 0 ? 0 : std::memcmp(rest.data(), expected_rest.data(), n * sizeof(float))) << n;
    EXPECT_TRUE(codec->Validate(out, n).ok());
  }
}

TEST_P(Int8SharedTarget, TheRestIsExactHoweverMuchABlockGrew) {
  const auto codec = MakeCodec("int8_shared", {}).value();
  constexpr std::size_t n = 300;
  const std::vector<float> g = RandomSlab(n, 8);
  for (int exponent = -60; exponent < 20; ++exponent) {
    const std::vector<float> scales(SharedBlocks(n), std::ldexp(1.0F, exponent));
    std::vector<float> rest(n);
    Bytes out(codec->EncodedBytes(n));
    ASSERT_TRUE(codec->EncodeShared(g.data(), 1, nullptr, scales.data(), rest.data(), n, out.data()));
    for (std::size_t i = 0; i < n; ++i) {
      const auto code = static_cast<std::int8_t>(out[i / kSharedBlock * (1 + kSharedBlock) + 1 + i % kSharedBlock]);
      const double sent = static_cast<double>(code) * static_cast<double>(scales[0]);
      // A block whose codes are all 0 sends nothing.
      ASSERT_EQ(sent + static_cast<double>(rest[i]), static_cast<double>(g[i])) << exponent << ", element " << i;
    }
  }
}

TEST_P(Int8SharedTarget, NonFiniteIsNoticed) {
  const auto codec = MakeCodec("int8_shared", {}).value();
  for (const std::size_t at : {0U, 255U, 256U, 300U}) {
    std::vector<float> g(301, 1.0F), rest(301), scales(2, 1.0F);
    g[at] = std::numeric_limits<float>::quiet_NaN();
    Bytes out(codec->EncodedBytes(301));
    EXPECT_FALSE(codec->EncodeShared(g.data(), 1, nullptr, scales.data(), rest.data(), 301, out.data())) << at;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Int8SharedTarget, testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& tested) { return hwy::TargetName(tested.param); });

// Inputs = delivered + residuals, exactly, over steps of which the first has no scales yet, with a block that grows
// beyond its scale, one that was zero, and large and small worlds (int16 and int32 lanes).
TEST(Int8Shared, NothingIsLostAndCodesAddUpAsIntegers) {
  constexpr std::size_t n = 1000;
  for (const std::uint32_t workers : {1U, 3U, 258U, 259U}) {
    const auto codec = MakeCodec("int8_shared", {}).value();
    const auto sum = codec->MakeOwnerSum(workers);
    std::vector<std::vector<float>> residuals(workers, std::vector<float>(n));
    std::vector<double> open(n);
    std::vector<float> scales;
    for (std::uint32_t step = 0; step < 5; ++step) {
      const std::uint8_t version = step == 0 ? 0 : 1;
      std::vector<Bytes> pushes;
      for (std::uint32_t w = 0; w < workers; ++w) {
        std::vector<float> g = Gradient(n, w, step);
        for (std::size_t i = 0; i < kSharedBlock; ++i) g[i] = step < 2 ? 0 : g[i];
        if (step == 3) g[700] = 60000;
        for (std::size_t i = 0; i < n; ++i) open[i] += static_cast<double>(g[i]);
        Bytes out(codec->EncodedBytes(n));
        std::vector<float> rest(n);
        const bool finite =
            version == 0
                ? codec->EncodeWithFeedback({}, g.data(), 1, residuals[w].data(), rest.data(), n, out.data())
                : codec->EncodeShared(g.data(), 1, residuals[w].data(), scales.data(), rest.data(), n, out.data());
        ASSERT_TRUE(finite);
        residuals[w] = rest;
        pushes.push_back(std::move(out));
      }
      const Bytes reply = SumOf(*sum, version, pushes, n);
      const std::size_t number = version == 0 ? 4 : workers <= 258 ? 2 : 4;
      EXPECT_EQ(reply.size(), n * number + 4);
      ASSERT_EQ(sum->Validate(version, reply, n).value(), reply.size());
      std::vector<float> out(n), next(SharedBlocks(n));
      ASSERT_TRUE(sum->Decode(version, reply, n, version == 0 ? nullptr : scales.data(), out.data(), next.data()));
      if (step > 0 && step < 2) {
        for (std::size_t i = 0; i < kSharedBlock; ++i) EXPECT_EQ(out[i], 0);
      }
      scales = next;
      for (std::size_t i = 0; i < n; ++i) open[i] -= static_cast<double>(out[i]);
    }
    for (const auto& residual : residuals) {
      for (std::size_t i = 0; i < n; ++i) open[i] -= static_cast<double>(residual[i]);
    }
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(open[i], 0) << workers << " workers, element " << i;
  }
}

// Codes that are fine each add up to more than fp32 holds: a sum that is not finite, for everybody alike.
TEST(Int8Shared, ASumBeyondFp32IsNoticed) {
  const auto codec = MakeCodec("int8_shared", {}).value();
  const auto sum = codec->MakeOwnerSum(3);
  const std::vector<float> g = {127 * 0x1p121F}, scales = {0x1p121F};
  std::vector<float> rest(1), out(1), next(1);
  Bytes push(codec->EncodedBytes(1));
  ASSERT_TRUE(codec->EncodeShared(g.data(), 1, nullptr, scales.data(), rest.data(), 1, push.data()));
  const Bytes one = SumOf(*sum, 1, {push}, 1), three = SumOf(*sum, 1, {push, push, push}, 1);
  ASSERT_TRUE(sum->Validate(1, three, 1).ok());
  EXPECT_TRUE(sum->Decode(1, one, 1, scales.data(), out.data(), next.data()));
  EXPECT_EQ(out[0], g[0]);
  EXPECT_FALSE(sum->Decode(1, three, 1, scales.data(), out.data(), next.data()));
}

TEST(Int8Shared, HostileRepliesAreRefused) {
  constexpr std::size_t n = 300;
  const auto codec = MakeCodec("int8_shared", {}).value();
  const auto sum = codec->MakeOwnerSum(2);
  Bytes reply(sum->SumBytes(1, n));
  EXPECT_TRUE(sum->Validate(1, reply, n).ok());
  EXPECT_THAT(sum->Validate(1, std::span(reply).first(reply.size() - 1), n).status().text(), HasSubstr("602 bytes"));
  const auto lane = static_cast<std::int16_t>(255);
  std::memcpy(reply.data() + 2 * 299, &lane, 2);
  EXPECT_THAT(sum->Validate(1, reply, n).status().text(), HasSubstr("sum 299: expected at most 254 in magnitude, got 255"));
  std::memset(reply.data() + 2 * 299, 0, 2);
  reply.back() = std::byte{249};
  EXPECT_EQ(sum->Validate(1, reply, n).status().kind(), StatusKind::kCorrupt);
}

TEST(TopkUnion, AnswersEveryNonZeroOfTheSum) {
  for (const char* name : {"topk", "dgc"}) {
    for (const std::size_t n : {1U, 2U, 1000U, 65536U}) {
      for (const double ratio : {0.01, 0.2, 1.0}) {
        Config::Compression options;
        options.ratio = ratio;
        options.reply = "union";
        options.codec = name;
        const auto codec = MakeCodec(name, options).value();
        const auto sum = codec->MakeOwnerSum(3);
        ASSERT_NE(sum, nullptr);
        EXPECT_FALSE(HasLossyReply(*codec));
        std::vector<Bytes> pushes;
        std::vector<float> expected(n);
        for (std::uint32_t w = 0; w < 3; ++w) {
          const std::vector<float> g = Gradient(n, w, 0);
          Bytes out(codec->EncodedBytes(n));
          std::vector<float> decoded(n);
          codec->Encode({}, g.data(), n, out.data(), decoded.data());
          AddInto(expected.data(), decoded.data(), n);
          pushes.push_back(std::move(out));
        }
        const Bytes reply = SumOf(*sum, 0, pushes, n);
        const auto zeros = static_cast<std::size_t>(std::count(expected.begin(), expected.end(), 0.0F));
        EXPECT_EQ(reply.size(), 4 + std::min(4 * n, 6 * (n - zeros)));
        Bytes longer = reply;
        longer.resize(reply.size() + 7);  // another slab's reply follows
        ASSERT_EQ(sum->Validate(0, longer, n).value(), reply.size());
        std::vector<float> out(n);
        ASSERT_TRUE(sum->Decode(0, reply, n, nullptr, out.data(), nullptr));
        EXPECT_EQ(out, expected);
      }
    }
  }
}

TEST(TopkUnion, HostileRepliesAreRefused) {
  Config::Compression options;
  options.ratio = 0.01;
  options.reply = "union";
  options.codec = "topk";
  const auto codec = MakeCodec("topk", options).value();
  const auto sum = codec->MakeOwnerSum(2);  // k = 1 of 100: at most 2 non-zeros
  const auto reply = [](std::uint32_t count, std::vector<std::uint16_t> indices, std::vector<float> values) {
    Bytes bytes(4 + indices.size() * 2 + values.size() * 4);
    std::memcpy(bytes.data(), &count, 4);
    if (!indices.empty()) std::memcpy(bytes.data() + 4, indices.data(), indices.size() * 2);
    if (!values.empty()) std::memcpy(bytes.data() + 4 + indices.size() * 2, values.data(), values.size() * 4);
    return bytes;
  };
  constexpr std::size_t n = 100;
  EXPECT_TRUE(sum->Validate(0, reply(2, {3, 99}, {1, 2}), n).ok());
  EXPECT_TRUE(sum->Validate(0, reply(0, {}, {}), n).ok());
  EXPECT_TRUE(sum->Validate(0, reply(0xFFFFFFFF, {}, std::vector<float>(n, 1.0F)), n).ok());
  for (const Bytes& bad : {Bytes{}, Bytes(3), reply(3, {1, 2, 3}, {1, 1, 1}), reply(2, {3, 3}, {1, 2}),
                           reply(2, {4, 3}, {1, 2}), reply(1, {100}, {1}), reply(2, {3, 99}, {1}),
                           reply(1, {0}, {std::numeric_limits<float>::infinity()}),
                           reply(0xFFFFFFFF, {}, std::vector<float>(n - 1, 1.0F)), reply(0xFFFFFFFE, {}, {})}) {
    EXPECT_EQ(sum->Validate(0, bad, n).status().kind(), StatusKind::kCorrupt) << bad.size() << " bytes";
  }
}

TEST(OwnerSum, IsForCodecsThatSaySo) {
  for (const CodecEntry& entry : Codecs()) {
    const auto codec = MakeCodec(entry.name, {}).value();
    EXPECT_EQ(codec->MakeOwnerSum(4) != nullptr, codec->traits().exact_reply) << entry.name;
  }
}

}  // namespace
}  // namespace tally
