// Pins the payload of every codec under every option that changes it: peers of other versions decode these bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "compress/codec.h"
#include "compress/owner_sum.h"
#include "tests/golden/pinned.h"

namespace tally {
namespace {

// More than a block of each codec but onebit, both signs, ties, zeros of both signs, a large and a very small number.
std::vector<float> Slab() {
  std::vector<float> slab(300);
  for (std::size_t i = 0; i < slab.size(); ++i) {
    const auto value = static_cast<float>(static_cast<int>(i * 37 % 201) - 100);
    slab[i] = std::ldexp(value, -static_cast<int>(i % 5) - (i >= 256 ? 20 : 0));
  }
  slab[7] = 0.0f;
  slab[8] = -0.0f;
  slab[9] = 1e-30f;
  slab[200] = -70000.0f;
  return slab;
}

struct Variant {
  std::string codec;
  std::string name;
  void (*set)(Config::Compression& options) = nullptr;
  bool stochastic = false;
};

TEST(GoldenPayload, EveryCodec) {
  std::vector<Variant> variants = {
      {"int8", "stochastic", nullptr, true},
      {"int4", "stochastic", nullptr, true},
      {"int8", "absmax", [](Config::Compression& options) { options.scale = "absmax"; }},
      {"topk", "fp16", [](Config::Compression& options) { options.topk_values = "fp16"; }},
  };
  for (const CodecEntry& codec : Codecs()) variants.push_back({std::string(codec.name), ""});
  const std::vector<float> slab = Slab();
  for (const Variant& variant : variants) {
    const std::string name = "payload_" + variant.codec + (variant.name.empty() ? "" : "_" + variant.name);
    SCOPED_TRACE(name);
    Config::Compression options;
    options.ratio = 0.05;
    if (variant.set != nullptr) variant.set(options);
    const auto codec = MakeCodec(variant.codec, options).value();
    const EncodeKey key{
        .seed = 7, .tensor = 3, .step = 11, .position = 2, .offset = 512, .stochastic = variant.stochastic};
    std::vector<std::byte> payload(codec->EncodedBytes(slab.size()));
    std::vector<float> decoded(slab.size()), back(slab.size());
    codec->Encode(key, slab.data(), slab.size(), payload.data(), decoded.data());
    const std::vector<std::byte> pinned = Pinned(name, payload);
    ASSERT_TRUE(codec->Validate(pinned, slab.size()).ok()) << codec->Validate(pinned, slab.size()).text();
    codec->Decode(pinned, slab.size(), back.data());
    EXPECT_EQ(back, decoded);
  }
}

// What owners answer where it is not an encoding of the codec's own.
TEST(GoldenPayload, RepliesThatAreSums) {
  struct Answer {
    const char* codec;
    const char* reply;
    std::uint8_t version;
  };
  const std::vector<float> slab = Slab();
  for (const Answer& answer : {Answer{"int8_shared", "same", 0}, {"int8_shared", "same", 1}, {"topk", "union", 0}}) {
    const std::string name = std::string("reply_") + answer.codec + "_" + std::to_string(answer.version);
    SCOPED_TRACE(name);
    Config::Compression options;
    options.codec = answer.codec;
    options.reply = answer.reply;
    options.ratio = 0.05;
    const auto codec = MakeCodec(answer.codec, options).value();
    const auto sum = codec->MakeOwnerSum(2);
    const std::vector<float> scales = {0.5F, 0x1p-20F};
    std::vector<float> rest(slab.size()), room(slab.size() + 1);
    std::vector<std::byte> push(codec->EncodedBytes(slab.size()));
    if (answer.version == 0) {
      codec->Encode({}, slab.data(), slab.size(), push.data(), nullptr);
    } else {
      ASSERT_TRUE(codec->EncodeShared(slab.data(), 1, nullptr, scales.data(), rest.data(), slab.size(), push.data()));
    }
    auto* bytes = reinterpret_cast<std::byte*>(room.data());
    sum->Start(answer.version, push, slab.size(), bytes);
    sum->Add(answer.version, push, slab.size(), bytes);
    std::vector<std::byte> reply(sum->ReplyBytes(answer.version, bytes, slab.size()));
    sum->Reply(answer.version, bytes, slab.size(), reply);
    const std::vector<std::byte> pinned = Pinned(name, reply);
    EXPECT_EQ(sum->Validate(answer.version, pinned, slab.size()).value(), pinned.size());
  }
}

}  // namespace
}  // namespace tally
