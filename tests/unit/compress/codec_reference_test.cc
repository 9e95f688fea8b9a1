// Each codec's bytes against its definition in CODECS.md, computed here in another way; tables, options and modes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cstring>
#include <numeric>
#include <set>

#include "compress/flush_denormals.h"
#include "compress/half.h"
#include "compress/philox.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

std::vector<std::byte> Encode(const Codec& codec, const std::vector<float>& p, const EncodeKey& key = {}) {
  std::vector<std::byte> out(codec.EncodedBytes(p.size()));
  codec.Encode(key, p.data(), p.size(), out.data(), nullptr);
  return out;
}

std::vector<float> Decode(const Codec& codec, std::span<const std::byte> payload, std::size_t n) {
  std::vector<float> out(n);
  codec.Decode(payload, n, out.data());
  return out;
}

std::unique_ptr<Codec> Make(std::string_view name, const Config::Compression& options = {}) {
  return MakeCodec(name, options).value();
}

// Nearest value of the format among its two neighbours, in double, ties to the even code.
template <typename Half>
std::uint16_t ReferenceHalf(float value) {
  const double x = static_cast<double>(Flushed(value));
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  std::uint16_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  // Values rise with the code: bisect for the largest code not above |x|.
  std::uint16_t low = 0, high = Half::kInfinity - 1;
  while (low < high) {
    const auto middle = static_cast<std::uint16_t>((low + high + 1) / 2);
    if (static_cast<double>(Half::ToFloat(middle)) <= std::abs(x)) {
      low = middle;
    } else {
      high = static_cast<std::uint16_t>(middle - 1);
    }
  }
  for (const std::uint16_t code : {low, std::min<std::uint16_t>(low + 1, Half::kInfinity - 1)}) {
    const double distance = std::abs(static_cast<double>(Half::ToFloat(code)) - std::abs(x));
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return static_cast<std::uint16_t>(sign | best);
}

template <typename Half>
void CheckHalf(int lowest_exponent, int highest_exponent) {
  const FlushDenormals flush;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto half = static_cast<std::uint16_t>(code);
    if ((half & Half::kInfinity) == Half::kInfinity) continue;
    const float value = Half::ToFloat(half);
    // Every value of the format comes back as it is, but for denormals of bf16, which count as zero.
    if (Half::kInfinity == 0x7F80 && (half & 0x7F80) == 0) {
      EXPECT_EQ(value, 0.0f);
      continue;
    }
    ASSERT_EQ(Half::FromFloat(value), half);
  }
  std::mt19937 random(3);
  const auto draw = [&random] { return static_cast<std::uint32_t>(random()); };
  const auto span_of_exponents = static_cast<std::uint32_t>(highest_exponent - lowest_exponent);
  const std::uint32_t half_step = Half::kInfinity == 0x7F80 ? 0x8000u : 0x1000u;
  for (int i = 0; i < 200'000; ++i) {
    const int exponent = lowest_exponent + static_cast<int>(draw() % span_of_exponents);
    std::uint32_t fraction = draw() & 0x7FFFFFu;
    // A third of them are halfway cases or next to one.
    if (i % 3 == 0) fraction = ((fraction & ~0xFFFFu) | half_step) + draw() % 3 - 1u;
    const std::uint32_t sign = draw() & 0x80000000u;
    const auto value = std::bit_cast<float>(sign | static_cast<std::uint32_t>(exponent + 127) << 23 | fraction);
    ASSERT_EQ(Half::FromFloat(value), ReferenceHalf<Half>(value)) << value;
  }
}

TEST(HalfReference, Fp16RoundsToNearestEven) { CheckHalf<Half16>(-40, 40); }
TEST(HalfReference, Bf16RoundsToNearestEven) { CheckHalf<BFloat16>(-126, 128); }

TEST(HalfReference, KnownValues) {
  const FlushDenormals flush;
  EXPECT_EQ(Half16::FromFloat(1.0f), 0x3C00);
  EXPECT_EQ(Half16::FromFloat(-2.0f), 0xC000);
  EXPECT_EQ(Half16::FromFloat(65504.0f), 0x7BFF);
  EXPECT_EQ(Half16::FromFloat(65520.0f), 0x7BFF) << "saturates";
  EXPECT_EQ(Half16::FromFloat(-1e38f), 0xFBFF);
  EXPECT_EQ(Half16::FromFloat(0x1p-24f), 0x0001);
  EXPECT_EQ(Half16::FromFloat(0x1p-25f), 0x0000) << "halfway to the even one";
  EXPECT_EQ(Half16::FromFloat(-0.0f), 0x8000);
  EXPECT_EQ(Half16::ToFloat(0x0001), 0x1p-24f);
  EXPECT_EQ(BFloat16::FromFloat(1.0f), 0x3F80);
  EXPECT_EQ(BFloat16::FromFloat(std::numeric_limits<float>::max()), 0x7F7F);
  EXPECT_EQ(BFloat16::FromFloat(-1e-40f), 0x8000);
}

TEST(HalfReference, NumbersBeyondTheRangeAreCounted) {
  const float largest = std::numeric_limits<float>::max();
  std::vector<float> p(1000, 1.5f);
  for (const std::size_t i : {0u, 255u, 256u, 999u}) p[i] = i % 2 == 0 ? largest : -largest;
  p[500] = 1e6f;
  for (const auto& [name, count] : {std::pair("fp16", 5u), std::pair("bf16", 4u), std::pair("int8", 0u)}) {
    const auto codec = Make(name);
    EXPECT_EQ(codec->Saturated(Encode(*codec, p), p.size()), count) << name;
    EXPECT_EQ(codec->Saturated({}, 0), 0u) << name;
  }
}

// C11: with fp32 sums and the mean taken first nothing overflows or underflows.
TEST(HalfReference, SumsNeitherOverflowNorUnderflow) {
  for (const char* name : {"fp16", "bf16"}) {
    const auto codec = Make(name);
    for (const float value : {40'000.0f, 1e-7f}) {
      const std::vector<std::byte> push = Encode(*codec, {value});
      std::vector<float> sum(1, 0.0f);
      for (int worker = 0; worker < 4; ++worker) codec->DecodeAdd(push, 1, sum.data());
      const float mean = Decode(*codec, Encode(*codec, {sum[0] / 4.0f}), 1)[0];
      EXPECT_EQ(mean, Decode(*codec, push, 1)[0]);
      EXPECT_NEAR(mean, value, std::max(value * 0x1p-8f, 0x1p-25f));
    }
  }
}

// The codes of an int8 or int4 block by the formula of CODECS.md, element by element in double; k + 127 comes first.
std::vector<int> ReferenceCodes(std::span<const float> p, int max_code) {
  const int shift = max_code == 127 ? 6 : 2;
  float largest = 0;
  for (const float x : p) largest = std::max(largest, std::abs(Flushed(x)));
  std::vector<int> out(1 + p.size(), 0);
  if (largest == 0) return out;
  const int exponent = std::ilogb(largest);
  const double shifted = std::ldexp(static_cast<double>(largest), 23 - exponent);
  const std::uint32_t fraction = static_cast<std::uint32_t>(shifted) & 0x7FFFFFu;
  const bool next = fraction >= (max_code == 127 ? 0x7F0000u : 0x700000u);
  const int k = std::min(127 - shift, std::max(-126, exponent - shift + (next ? 1 : 0)));
  out[0] = k + 127;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double q = std::nearbyint(std::ldexp(static_cast<double>(Flushed(p[i])), -k));
    out[1 + i] = static_cast<int>(std::clamp(q, -double(max_code), double(max_code)));
  }
  return out;
}

std::vector<std::byte> ReferenceInt8(const std::vector<float>& p) {
  std::vector<std::byte> out;
  for (std::size_t first = 0; first < p.size(); first += 256) {
    const auto block = std::span(p).subspan(first, std::min<std::size_t>(256, p.size() - first));
    for (const int value : ReferenceCodes(block, 127)) out.push_back(static_cast<std::byte>(value));
  }
  return out;
}

std::vector<std::byte> ReferenceInt4(const std::vector<float>& p) {
  std::vector<std::byte> out;
  for (std::size_t first = 0; first < p.size(); first += 128) {
    const auto block = std::span(p).subspan(first, std::min<std::size_t>(128, p.size() - first));
    std::vector<int> values = ReferenceCodes(block, 7);
    if (values.size() % 2 == 0) values.push_back(0);
    out.push_back(static_cast<std::byte>(values[0]));
    for (std::size_t i = 1; i < values.size(); i += 2) {
      out.push_back(static_cast<std::byte>((values[i] & 15) + (values[i + 1] & 15) * 16));
    }
  }
  return out;
}

TEST(Int8Reference, BytesFollowTheFormula) {
  const auto codec = Make("int8");
  for (const NamedSlab& slab : AdversarialSlabs()) {
    EXPECT_EQ(Encode(*codec, slab.values), ReferenceInt8(slab.values)) << slab.name;
  }
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<float> p = RandomSlab(1000 + seed * 37, seed);
    for (float& x : p) x = std::ldexp(x, static_cast<int>(seed) * 12 - 110);
    EXPECT_EQ(Encode(*codec, p), ReferenceInt8(p)) << seed;
  }
  EXPECT_EQ(codec->EncodedBytes(256), 257u);
  EXPECT_EQ(codec->EncodedBytes(257), 259u);
}

TEST(Int8Reference, CodesOfTheLargestNumbersAreClamped) {
  const auto codec = Make("int8");
  const float huge = std::numeric_limits<float>::max();
  const std::vector<std::byte> out = Encode(*codec, {huge, -huge, 0.0f});
  EXPECT_EQ(out, ReferenceInt8({huge, -huge, 0.0f}));
  EXPECT_EQ(out[0], std::byte{248});
  EXPECT_EQ(out[1], std::byte{127});
  for (const float x : Decode(*codec, out, 3)) EXPECT_TRUE(std::isfinite(x));
}

TEST(Int8Reference, RoundingAt128ChoosesTheNextScale) {
  const auto codec = Make("int8");
  EXPECT_EQ(Encode(*codec, {127.5f}), (std::vector<std::byte>{std::byte{1 + 127}, std::byte{64}}));
  EXPECT_EQ(Encode(*codec, {std::nextafter(127.5f, 0.0f)}), (std::vector<std::byte>{std::byte{127}, std::byte{127}}));
}

TEST(Int8Reference, AbsmaxFollowsItsFormula) {
  const auto codec = Make("int8", With(&Config::Compression::scale, "absmax"));
  EXPECT_EQ(codec->EncodedBytes(257), 257u + 8u);
  std::vector<std::vector<float>> slabs = {RandomSlab(1000, 3), {std::numeric_limits<float>::max(), -1.0f}, {1e-37f}};
  for (const auto& p : slabs) {
    const std::vector<std::byte> out = Encode(*codec, p);
    ASSERT_TRUE(codec->Validate(out, p.size()).ok());
    const std::vector<float> decoded = Decode(*codec, out, p.size());
    for (std::size_t first = 0; first < p.size(); first += 256) {
      const std::size_t end = std::min(first + 256, p.size());
      float largest = 0;
      for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::abs(p[i]));
      float s = Flushed(largest / 127.0f);
      if (std::isinf(s * 127.0f)) s = std::nextafter(s, 0.0f);
      for (std::size_t i = first; i < end; ++i) {
        const float q = s == 0 ? 0.0f : std::clamp(std::nearbyint(p[i] / s), -127.0f, 127.0f);
        ASSERT_EQ(decoded[i], q * s) << i;
        ASSERT_TRUE(std::isfinite(decoded[i]));
      }
    }
  }
}

TEST(Int8Reference, RefusesWhatNoEncoderWrites) {
  const auto pow2 = Make("int8");
  EXPECT_TRUE(pow2->Validate(std::vector<std::byte>{std::byte{248}, std::byte{127}}, 1).ok());
  EXPECT_FALSE(pow2->Validate(std::vector<std::byte>{std::byte{249}, std::byte{1}}, 1).ok());
  EXPECT_FALSE(pow2->Validate(std::vector<std::byte>{std::byte{100}, std::byte{0x80}}, 1).ok());
  EXPECT_FALSE(pow2->Validate(std::vector<std::byte>{std::byte{0}, std::byte{1}}, 1).ok()) << "of a zero block";
  EXPECT_TRUE(pow2->Validate(std::vector<std::byte>{std::byte{0}, std::byte{0}}, 1).ok());
  const auto absmax = Make("int8", With(&Config::Compression::scale, "absmax"));
  const auto with_scale = [&](float s, int code) {
    std::vector<std::byte> bytes(5);
    std::memcpy(bytes.data(), &s, 4);
    bytes[4] = static_cast<std::byte>(code);
    return absmax->Validate(bytes, 1).ok();
  };
  EXPECT_TRUE(with_scale(1.0f, 5));
  EXPECT_TRUE(with_scale(0.0f, 0));
  EXPECT_FALSE(with_scale(0.0f, 5));
  EXPECT_FALSE(with_scale(-0.0f, 0));
  EXPECT_FALSE(with_scale(-1.0f, 5));
  EXPECT_FALSE(with_scale(1e-40f, 5));
  EXPECT_FALSE(with_scale(3e38f, 5)) << "127 times it overflows";
  EXPECT_FALSE(with_scale(std::numeric_limits<float>::infinity(), 5));
  EXPECT_FALSE(with_scale(std::numeric_limits<float>::quiet_NaN(), 5));
  EXPECT_FALSE(with_scale(1.0f, -128));
}

TEST(Int8Reference, StochasticRoundingIsUnbiased) {
  const auto codec = Make("int8");
  // Scale 1 (the block's largest is 100); 255 elements of 0.3 in 400 steps are 102,000 draws: sigma of the mean 0.0015.
  std::vector<float> p(256, 0.3f), decoded(256);
  p[0] = 100.0f;
  std::vector<std::byte> out(codec->EncodedBytes(256));
  double sum = 0;
  for (std::uint64_t step = 0; step < 400; ++step) {
    codec->Encode({.seed = 5, .step = step, .stochastic = true}, p.data(), 256, out.data(), decoded.data());
    EXPECT_EQ(decoded[0], 100.0f) << "whole numbers stay";
    for (std::size_t i = 1; i < 256; ++i) {
      ASSERT_TRUE(decoded[i] == 0.0f || decoded[i] == 1.0f);
      sum += static_cast<double>(decoded[i]);
    }
  }
  EXPECT_NEAR(sum / (400.0 * 255.0), 0.3, 0.008);
}

TEST(Int8Reference, DrawsDependOnTheElementsPlaceOnly) {
  // A tensor encoded whole or as two slabs gives the same codes.
  const auto codec = Make("int8");
  const std::vector<float> p = RandomSlab(1024, 12);
  const EncodeKey key{.seed = 9, .tensor = 4, .step = 2, .position = 1, .offset = 0, .stochastic = true};
  EncodeKey second = key;
  second.offset = 512;
  std::vector<std::byte> whole = Encode(*codec, p, key);
  std::vector<std::byte> parts = Encode(*codec, {p.begin(), p.begin() + 512}, key);
  const std::vector<std::byte> tail = Encode(*codec, {p.begin() + 512, p.end()}, second);
  parts.insert(parts.end(), tail.begin(), tail.end());
  EXPECT_EQ(whole, parts);
}

TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0, 0), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffff, 0xffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// topk by sorting.
std::vector<std::size_t> ReferenceTop(const std::vector<float>& p, std::size_t k) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(Flushed(p[a])) > std::abs(Flushed(p[b])); });
  order.resize(k);
  std::ranges::sort(order);
  return order;
}

std::vector<std::size_t> Indices(std::span<const std::byte> payload, std::size_t k) {
  std::vector<std::size_t> indices(k);
  for (std::size_t j = 0; j < k; ++j) {
    std::uint16_t index = 0;
    std::memcpy(&index, payload.data() + 2 * j, 2);
    indices[j] = index;
  }
  return indices;
}

TEST(TopkReference, KeepsTheLargestTiesByIndex) {
  std::vector<NamedSlab> slabs = AdversarialSlabs();
  slabs.push_back({"large", RandomSlab(65536, 2)});
  slabs.push_back({"one", {3.0f}});
  slabs.push_back({"many ties", std::vector<float>(65536, -2.0f)});
  for (const double ratio : {0.001, 0.01, 0.5, 1.0}) {
    const auto codec = Make("topk", With(&Config::Compression::ratio, ratio));
    for (const NamedSlab& slab : slabs) {
      SCOPED_TRACE(testing::Message() << slab.name << " at " << ratio);
      const std::vector<float>& p = slab.values;
      const std::vector<std::byte> out = Encode(*codec, p);
      const std::size_t k = out.size() / 6;
      const std::vector<std::size_t> top = ReferenceTop(p, k);
      EXPECT_EQ(Indices(out, k), top);
      for (std::size_t j = 0; j < k; ++j) {
        float value = 0;
        std::memcpy(&value, out.data() + 2 * k + 4 * j, 4);
        EXPECT_EQ(value, Flushed(p[top[j]]));
      }
    }
  }
}

// C07: one meaning of ratio, checked by the bytes.
TEST(TopkReference, RatioMeansAFractionKeptRoundedUp) {
  const auto kept = [](std::size_t n, double ratio) {
    return Make("topk", With(&Config::Compression::ratio, ratio))->EncodedBytes(n) / 6;
  };
  for (const std::size_t n : {1u, 2u, 3u, 10u, 999u, 65536u}) {
    for (const double ratio : {0.001, 0.01, 0.5, 1.0}) {
      const auto ppm = static_cast<std::size_t>(std::llround(ratio * 1e6));
      EXPECT_EQ(kept(n, ratio), std::max<std::size_t>(1, (n * ppm + 999'999) / 1'000'000)) << n << " " << ratio;
    }
    EXPECT_EQ(kept(n, 1.0), n) << "ratio 1 keeps everything";
  }
  EXPECT_EQ(kept(65536, 0.01), 656u);
  EXPECT_EQ(kept(100, 0.01), 1u);
  EXPECT_EQ(kept(101, 0.01), 2u);
  EXPECT_EQ(kept(7, 0.5), 4u);
  const auto whole = Make("topk", With(&Config::Compression::ratio, 1.0));
  const std::vector<float> p = RandomSlab(999, 6);
  EXPECT_EQ(Decode(*whole, Encode(*whole, p), 999), p) << "and is lossless";
}

TEST(TopkReference, RefusesBadIndicesAndValues) {
  const auto codec = Make("topk", With(&Config::Compression::ratio, 0.5));
  const auto payload = [](std::uint16_t a, std::uint16_t b, float x, float y) {
    std::vector<std::byte> bytes(12);
    std::memcpy(bytes.data(), &a, 2);
    std::memcpy(bytes.data() + 2, &b, 2);
    std::memcpy(bytes.data() + 4, &x, 4);
    std::memcpy(bytes.data() + 8, &y, 4);
    return bytes;
  };
  EXPECT_TRUE(codec->Validate(payload(0, 3, 1, 2), 4).ok());
  EXPECT_FALSE(codec->Validate(payload(3, 0, 1, 2), 4).ok()) << "falling";
  EXPECT_FALSE(codec->Validate(payload(2, 2, 1, 2), 4).ok()) << "equal";
  EXPECT_FALSE(codec->Validate(payload(0, 4, 1, 2), 4).ok()) << "out of range";
  EXPECT_FALSE(codec->Validate(payload(0, 65535, 1, 2), 4).ok());
  EXPECT_FALSE(codec->Validate(payload(0, 3, 1, std::numeric_limits<float>::infinity()), 4).ok());
  EXPECT_FALSE(codec->Validate(payload(0, 3, std::numeric_limits<float>::quiet_NaN(), 1), 4).ok());
}

TEST(Int4Reference, BytesFollowTheFormula) {
  const auto codec = Make("int4");
  for (const NamedSlab& slab : AdversarialSlabs()) {
    EXPECT_EQ(Encode(*codec, slab.values), ReferenceInt4(slab.values)) << slab.name;
  }
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<float> p = RandomSlab(1000 + seed * 37, seed);
    for (float& x : p) x = std::ldexp(x, static_cast<int>(seed) * 12 - 110);
    EXPECT_EQ(Encode(*codec, p), ReferenceInt4(p)) << seed;
  }
  EXPECT_EQ(codec->EncodedBytes(1), 2u);
  EXPECT_EQ(codec->EncodedBytes(128), 65u);
  EXPECT_EQ(codec->EncodedBytes(129), 67u);
}

std::vector<std::byte> Bytes(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Int4Reference, KnownBytes) {
  const auto codec = Make("int4");
  EXPECT_EQ(Encode(*codec, {7.0f, -7.0f, 1.0f, -1.0f}), Bytes({127, 0x97, 0xF1}));
  EXPECT_EQ(Encode(*codec, {4.0f, 0.5f, 1.5f}), Bytes({127, 0x04, 0x02})) << "ties to even, pad 0";
  EXPECT_EQ(Encode(*codec, {7.5f}), Bytes({128, 0x04})) << "7.5 ties to 8, which is 4 of the next scale";
  EXPECT_EQ(Encode(*codec, {std::nextafter(7.5f, 0.0f)}), Bytes({127, 0x07}));
  EXPECT_EQ(Encode(*codec, {0.0f, -0.0f, 1e-40f}), Bytes({0, 0, 0}));
  const float huge = std::numeric_limits<float>::max();
  const auto out = Encode(*codec, {huge, -huge});
  EXPECT_EQ(out, Bytes({252, 0x97}));
  EXPECT_EQ(Decode(*codec, out, 2), (std::vector<float>{std::ldexp(7.0f, 125), std::ldexp(-7.0f, 125)}));
}

TEST(Int4Reference, RefusesWhatNoEncoderWrites) {
  const auto codec = Make("int4");
  EXPECT_TRUE(codec->Validate(Bytes({252, 0x97}), 2).ok());
  EXPECT_FALSE(codec->Validate(Bytes({253, 0x11}), 2).ok());
  EXPECT_FALSE(codec->Validate(Bytes({100, 0x08}), 2).ok());
  EXPECT_FALSE(codec->Validate(Bytes({100, 0x80}), 2).ok());
  EXPECT_FALSE(codec->Validate(Bytes({100, 0x11}), 1).ok()) << "the half byte left over";
  EXPECT_FALSE(codec->Validate(Bytes({0, 0x10}), 2).ok()) << "of a zero block";
  EXPECT_TRUE(codec->Validate(Bytes({0, 0x00}), 2).ok());
}

// onebit by the formula of CODECS.md: integers of the magnitudes, their mean, the signs.
std::vector<std::byte> ReferenceOnebit(const std::vector<float>& p) {
  std::vector<std::byte> out;
  for (std::size_t first = 0; first < p.size(); first += 4096) {
    const auto block = std::span(p).subspan(first, std::min<std::size_t>(4096, p.size() - first));
    double largest = 0;
    for (const float x : block) largest = std::max(largest, std::abs(static_cast<double>(Flushed(x))));
    const int exponent = largest == 0 ? -102 : std::max(std::ilogb(largest), -102);
    double sum = 0;
    for (const float x : block) {
      sum += std::nearbyint(std::ldexp(std::abs(static_cast<double>(Flushed(x))), 23 - exponent));
    }
    const double mean = std::ldexp(sum / static_cast<double>(block.size()), exponent - 23);
    const float scale = mean < 0x1p-126 ? 0.0f : static_cast<float>(mean);
    const auto* bytes = reinterpret_cast<const std::byte*>(&scale);
    out.insert(out.end(), bytes, bytes + sizeof scale);
    for (std::size_t i = 0; i < block.size(); i += 8) {
      int byte = 0;
      for (std::size_t j = i; j < std::min(i + 8, block.size()) && scale != 0; ++j) {
        byte |= std::signbit(block[j]) ? 1 << (j - i) : 0;
      }
      out.push_back(static_cast<std::byte>(byte));
    }
  }
  return out;
}

TEST(OnebitReference, BytesFollowTheFormula) {
  const auto codec = Make("onebit");
  for (const NamedSlab& slab : AdversarialSlabs()) {
    EXPECT_EQ(Encode(*codec, slab.values), ReferenceOnebit(slab.values)) << slab.name;
  }
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::vector<float> p = RandomSlab(9000 + seed * 37, seed);
    for (float& x : p) x = std::ldexp(x, static_cast<int>(seed) * 12 - 110);
    EXPECT_EQ(Encode(*codec, p), ReferenceOnebit(p)) << seed;
  }
  EXPECT_EQ(codec->EncodedBytes(1), 5u);
  EXPECT_EQ(codec->EncodedBytes(4096), 516u) << "a bit per sign, not a byte";
  EXPECT_EQ(codec->EncodedBytes(4097), 521u);
}

TEST(OnebitReference, KnownBytes) {
  const auto codec = Make("onebit");
  // Mean of |p| = 2 = 0x40000000; signs 1, 2 and 8 are negative.
  EXPECT_EQ(Encode(*codec, {1, -3, -2, 2, 2, 2, 2, 2, -2}), Bytes({0, 0, 0, 0x40, 0x06, 0x01}));
  EXPECT_EQ(Encode(*codec, {0.0f, -0.0f}), Bytes({0, 0, 0, 0, 0})) << "a zero block has no signs";
  EXPECT_EQ(Encode(*codec, {-0.0f, 4.0f}), Bytes({0, 0, 0, 0x40, 0x01})) << "zeros count in the mean, with their sign";
  EXPECT_EQ(Decode(*codec, Bytes({0, 0, 0, 0x40, 0x05}), 3), (std::vector<float>{-2, 2, -2}));
  const float huge = std::numeric_limits<float>::max();
  EXPECT_EQ(Decode(*codec, Encode(*codec, {huge, -huge}), 2), (std::vector<float>{huge, -huge}));
  // The mean of a lone smallest number lies below what counts as zero.
  EXPECT_EQ(Encode(*codec, {-0x1p-126f, 0.0f}), Bytes({0, 0, 0, 0, 0}));
}

TEST(OnebitReference, RefusesWhatNoEncoderWrites) {
  const auto codec = Make("onebit");
  const auto valid = [&](float scale, int signs, std::size_t n) {
    std::vector<std::byte> bytes(5);
    std::memcpy(bytes.data(), &scale, 4);
    bytes[4] = static_cast<std::byte>(signs);
    return codec->Validate(bytes, n).ok();
  };
  EXPECT_TRUE(valid(1.0f, 0xFF, 8));
  EXPECT_TRUE(valid(1.0f, 0x07, 3));
  EXPECT_FALSE(valid(1.0f, 0x08, 3)) << "a bit left over";
  EXPECT_TRUE(valid(0.0f, 0x00, 8));
  EXPECT_FALSE(valid(0.0f, 0x01, 8)) << "of a zero block";
  EXPECT_FALSE(valid(-1.0f, 0x01, 8));
  EXPECT_FALSE(valid(-0.0f, 0x00, 8));
  EXPECT_FALSE(valid(1e-40f, 0x01, 8));
  EXPECT_FALSE(valid(std::numeric_limits<float>::infinity(), 0x01, 8));
  EXPECT_FALSE(valid(std::numeric_limits<float>::quiet_NaN(), 0x01, 8));
}

// The case of CODECS.md §7 for every lossy codec: g = (large, small), (-large, small), … The first coordinate goes
// nowhere, the second moves up by `small` a step: with feedback it does, without it does something else.
TEST(Teeth, FeedbackDeliversTheSmallCoordinateAndOnlyFeedback) {
  struct Case {
    const char* codec;
    double ratio;
    float large, small;
    float without;  // what 400 steps deliver without feedback
  };
  const Case cases[] = {
      {"topk", 0.5, 100.0f, 1.0f, 0.0f},       // k = 1 of 2
      {"dgc", 0.5, 100.0f, 1.0f, 0.0f},        // without momentum
      {"int8", 0.01, 12800.0f, 1.0f, 0.0f},    // scale 128
      {"int8_shared", 0.01, 12800.0f, 1.0f, 0.0f},  // as int8
      {"int4", 0.01, 100.0f, 1.0f, 0.0f},      // scale 16
      {"onebit", 0.01, 100.0f, 1.0f, 20200.0f},  // scale 50.5
      {"fp16", 0.01, 100.0f, 1.0f + 0x1p-11f, 400.0f},
      {"bf16", 0.01, 100.0f, 1.0f + 0x1p-8f, 400.0f},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.codec);
    const auto codec = Make(c.codec, With(&Config::Compression::ratio, c.ratio));
    const std::vector<float> gradients[2] = {{c.large, c.small}, {-c.large, c.small}};
    std::vector<float> e(2, 0.0f), next(2), with(2), without(2);
    for (int step = 0; step < 400; ++step) {
      const auto& g = gradients[step % 2];
      std::vector<std::byte> out(codec->EncodedBytes(2));
      ASSERT_TRUE(codec->EncodeWithFeedback({}, g.data(), 1.0f, e.data(), next.data(), 2, out.data()));
      codec->DecodeAdd(out, 2, with.data());
      e.swap(next);
      codec->DecodeAdd(Encode(*codec, g), 2, without.data());
    }
    EXPECT_EQ(without[1], c.without);
    const float given = 400.0f * c.small;
    if (codec->traits().exact_residual) {
      EXPECT_EQ(with[1] + e[1], given);
    } else {
      EXPECT_NEAR(with[1] + e[1], given, 0.01f);
    }
    EXPECT_NEAR(with[1], given, c.large);
    EXPECT_GT(std::abs(without[1] - given), std::abs(with[1] - given));
  }
  for (const CodecEntry& codec : Codecs()) {
    const bool lossy = Make(codec.name)->traits().lossy;
    const bool tested = std::ranges::any_of(cases, [&](const Case& c) { return codec.name == c.codec; });
    EXPECT_TRUE(tested || !lossy) << codec.name << " has no case here";
  }
}

TEST(CodecTable, NamesAndIdsAreFixed) {
  const std::pair<std::string_view, int> expected[] = {{"none", 0}, {"fp16", 1}, {"bf16", 2}, {"int8", 3},
                                                        {"topk", 4}, {"int4", 5}, {"onebit", 6}, {"dgc", 7},
                                                        {"int8_shared", 10}};
  ASSERT_EQ(Codecs().size(), std::size(expected));
  for (const auto& [name, id] : expected) {
    const auto by_name = MakeCodec(name, {});
    const auto by_id = MakeCodec(static_cast<std::uint8_t>(id), {});
    ASSERT_TRUE(by_name.ok() && by_id.ok());
    EXPECT_EQ(by_name.value()->id(), id);
    EXPECT_EQ(by_id.value()->name(), name);
  }
}

TEST(CodecTable, WhoDivides) {
  for (const char* name : {"none", "fp16", "bf16"}) EXPECT_EQ(Make(name)->traits().divided_by, DividedBy::kOwner);
  for (const char* name : {"int8", "int8_shared", "int4", "onebit", "topk", "dgc"}) {
    EXPECT_EQ(Make(name)->traits().divided_by, DividedBy::kReceiver);
  }
}

TEST(CodecTable, RefusesUnknownNamesAndOptionsOutOfRange) {
  const auto text = [](std::string_view name, const Config::Compression& options) {
    const auto made = MakeCodec(name, options);
    EXPECT_FALSE(made.ok());
    EXPECT_EQ(made.status().kind(), StatusKind::kInvalidArgument);
    return made.status().text();
  };
  EXPECT_NE(text("int9", {}).find("none, fp16, bf16, int8"), std::string::npos);
  EXPECT_NE(text("int9", {}).find("powersgd"), std::string::npos);
  EXPECT_FALSE(MakeCodec(std::uint8_t{200}, {}).ok());
  for (const double ratio : {0.0, -0.1, 1.1, 100.0, 1e-9, std::nan("")}) {
    EXPECT_NE(text("topk", With(&Config::Compression::ratio, ratio)).find("compression.ratio"), std::string::npos);
  }
  EXPECT_NE(text("int8", With(&Config::Compression::scale, "max")).find("pow2, absmax"), std::string::npos);
  EXPECT_NE(text("topk", With(&Config::Compression::topk_values, "bf16")).find("fp32, fp16"), std::string::npos);
  EXPECT_NE(text("int8", With(&Config::Compression::rounding, "up")).find("nearest_even"), std::string::npos);
  EXPECT_NE(text("topk", With(&Config::Compression::reply, "all")).find("same, union"), std::string::npos);
  EXPECT_NE(text("int8", With(&Config::Compression::reply, "union")).find("for topk and dgc"), std::string::npos);
  Config::Compression options = With(&Config::Compression::codec, "topk");
  options.warmup = {0.5};
  EXPECT_NE(text("topk", options).find("warmup_steps is 0"), std::string::npos);
  options.warmup_steps = 4;
  EXPECT_TRUE(MakeCodec("topk", options).ok());
  options.warmup = {0.5, 1.5};
  EXPECT_NE(text("topk", options).find("1.5"), std::string::npos);
  options.warmup.assign(17, 0.5);
  EXPECT_NE(text("topk", options).find("17 ratios"), std::string::npos);
  options.warmup = {0.5};
  options.codec = "int8";
  EXPECT_NE(text("int8", options).find("for topk and dgc"), std::string::npos);
}

TEST(CodecTable, StochasticRoundingFollowsFeedback) {
  EXPECT_FALSE(StochasticRounding({}));
  Config::Compression options = With(&Config::Compression::error_feedback, false);
  EXPECT_TRUE(StochasticRounding(options));
  options.rounding = "nearest_even";
  EXPECT_FALSE(StochasticRounding(options));
  EXPECT_TRUE(StochasticRounding(With(&Config::Compression::rounding, "stochastic")));
}

TEST(CodecTable, SmallAndExcludedTensorsTravelAsNone) {
  Config::Compression options;
  options.codec = "int8";
  options.exclude = {"*.bias", "emb?ing", "a*b*c"};
  EXPECT_EQ(CodecForTensor("fc.weight", 16384, options), 3);
  EXPECT_EQ(CodecForTensor("fc.weight", 16383, options), 0) << "one byte below min_compress_bytes would do";
  EXPECT_EQ(CodecForTensor("fc.weight", 32768, options, DType::kFloat16), 3);
  EXPECT_EQ(CodecForTensor("fc.weight", 32767, options, DType::kBFloat16), 0) << "its own bytes count";
  EXPECT_EQ(CodecForTensor("fc.bias", 1 << 20, options), 0);
  EXPECT_EQ(CodecForTensor("fc.biases", 1 << 20, options), 3);
  EXPECT_EQ(CodecForTensor("embxing", 1 << 20, options), 0);
  EXPECT_EQ(CodecForTensor("embxxing", 1 << 20, options), 3);
  EXPECT_EQ(CodecForTensor("abbbc", 1 << 20, options), 0);
  EXPECT_EQ(CodecForTensor("axxbyyc", 1 << 20, options), 0);
  EXPECT_EQ(CodecForTensor("axxbyyd", 1 << 20, options), 3);
  options.min_compress_bytes = 0;
  EXPECT_EQ(CodecForTensor("x", 1, options), 3);
  EXPECT_EQ(CodecForTensor("x", 0, options), 3);
  options.min_compress_bytes = 5;
  EXPECT_EQ(CodecForTensor("x", 1, options), 0);
  EXPECT_EQ(CodecForTensor("x", 2, options), 3);
  options.codec = "none";
  EXPECT_EQ(CodecForTensor("x", 1 << 20, options), 0);
}

TEST(FloatMode, EncodersNeitherDependOnTheCallersModeNorChangeIt) {
  const std::vector<float> p = RandomSlab(3000, 55);
  const std::vector<NamedSlab> slabs = AdversarialSlabs();
  for (const CodecCase& c : CodecCases()) {
    const auto codec = c.Make();
    std::vector<float> rest(3000), again(3000);
    std::vector<std::byte> out(codec->EncodedBytes(3000)), out_again(out.size());
    ASSERT_TRUE(codec->EncodeWithFeedback(c.Key(), p.data(), 1.0f, nullptr, rest.data(), 3000, out.data()));
    for (const int rounding : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO}) {
      std::fesetround(rounding);
      const bool encoded =
          codec->EncodeWithFeedback(c.Key(), p.data(), 1.0f, nullptr, again.data(), 3000, out_again.data());
      codec->Encode(c.Key(), p.data(), 3000, out_again.data(), nullptr);
      const int after = std::fegetround();
      std::fesetround(FE_TONEAREST);
      EXPECT_TRUE(encoded);
      EXPECT_EQ(after, rounding);
      EXPECT_EQ(out, out_again) << c.name << " " << c.label;
      EXPECT_EQ(rest, again);
    }
#if defined(__x86_64__)
    const unsigned normal = _mm_getcsr();
    for (const unsigned mode : {0x1F80u, 0x9FC0u, 0x1FA0u}) {
      _mm_setcsr(mode);
      codec->Encode(c.Key(), p.data(), 3000, out_again.data(), nullptr);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(normal);
      EXPECT_EQ(after, mode);
    }
    _mm_setcsr(normal);
#endif
  }
}

// P07 and the denormal rule: denormals count as zero in lossy codecs and survive in `none`.
TEST(FloatMode, DenormalsCountAsZeroExceptInNone) {
  const std::vector<float> p(300, 1e-40f);
  for (const CodecCase& c : CodecCases()) {
    const auto codec = c.Make();
    std::vector<float> rest(300, 5.0f);
    std::vector<std::byte> out(codec->EncodedBytes(300));
    ASSERT_TRUE(codec->EncodeWithFeedback(c.Key(), p.data(), 1.0f, p.data(), rest.data(), 300, out.data()));
    const std::vector<float> decoded = Decode(*codec, out, 300);
    for (std::size_t i = 0; i < 300; ++i) {
      ASSERT_EQ(rest[i], 0.0f);
      ASSERT_EQ(decoded[i], codec->traits().lossy ? 0.0f : 1e-40f + 1e-40f);
    }
  }
}

}  // namespace
}  // namespace tally
