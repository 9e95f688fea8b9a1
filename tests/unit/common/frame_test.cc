#include "common/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace tally {
namespace {

FrameHeader Sample(std::uint32_t slabs = 3) {
  FrameHeader header;
  header.job_hash = 0x1122334455667788;
  header.epoch = EpochId{7};
  header.incarnation = 0x99AABBCCDDEEFF01;
  header.group = GroupId{2};
  header.step = StepId{std::uint64_t{1} << 40};
  header.bucket = BucketId{5};
  header.position = 3;
  header.role = Role::kServer;
  header.kind = FrameKind::kReply;
  header.codec = 4;
  header.codec_version = 1;
  header.flags = kFlagPreviousCommitted | kFlagKeep;
  header.weight = 2.5;
  header.factor = 0.375F;
  for (std::uint32_t i = 0; i < slabs; ++i) header.slabs.push_back(10 + 3 * i);
  header.contributors = {0, 1, 3};
  header.collective = {65537, DType::kBFloat16, ReduceOp::kMean, 7, CollectiveKind::kBroadcast, 3};
  header.payload_bytes = 4096;
  header.payload_crc = 0xCAFEF00D;
  header.has_crc = true;
  return header;
}

void ExpectEqual(const FrameHeader& a, const FrameHeader& b) {
  EXPECT_EQ(a.job_hash, b.job_hash);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.incarnation, b.incarnation);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.bucket, b.bucket);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.role, b.role);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.codec, b.codec);
  EXPECT_EQ(a.codec_version, b.codec_version);
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.weight, b.weight);
  EXPECT_EQ(a.factor, b.factor);
  EXPECT_EQ(a.slabs, b.slabs);
  EXPECT_EQ(a.contributors, b.contributors);
  EXPECT_EQ(a.collective, b.collective);
  EXPECT_EQ(a.payload_bytes, b.payload_bytes);
  EXPECT_EQ(a.payload_crc, b.payload_crc);
  EXPECT_EQ(a.has_crc, b.has_crc);
}

TEST(FrameHeader, RoundTripsForEveryListLength) {
  std::vector<std::byte> bytes;
  for (const std::uint32_t slabs : {0u, 1u, 2u, 3u, 31u, 997u, 1100u, 65536u}) {
    const FrameHeader header = Sample(slabs);
    EncodeHeader(header, &bytes);
    EXPECT_EQ(bytes.size() % 8, 0u);
    EXPECT_LE(bytes.size(), kMaxHeaderBytes);
    FrameHeader back = Sample(5);
    ASSERT_TRUE(DecodeHeader(bytes, &back).ok()) << DecodeHeader(bytes, &back).text();
    ExpectEqual(header, back);
  }
}

TEST(FrameHeader, DefaultRoundTripsOverADirtyOne) {
  std::vector<std::byte> bytes;
  EncodeHeader(FrameHeader{}, &bytes);
  FrameHeader back = Sample();
  ASSERT_TRUE(DecodeHeader(bytes, &back).ok());
  ExpectEqual(FrameHeader{}, back);
}

TEST(FrameHeader, EveryKindAndEveryAlignment) {
  std::vector<std::byte> bytes;
  for (unsigned kind = 0; kind <= static_cast<unsigned>(FrameKind::kProbe); ++kind) {
    FrameHeader header = Sample(600);
    header.kind = static_cast<FrameKind>(kind);
    EncodeHeader(header, &bytes);
    for (std::size_t offset = 0; offset < 8; ++offset) {
      std::vector<std::byte> shifted(bytes.size() + offset);
      std::memcpy(shifted.data() + offset, bytes.data(), bytes.size());
      FrameHeader back;
      ASSERT_TRUE(DecodeHeader(std::span(shifted).subspan(offset), &back).ok());
      ExpectEqual(header, back);
    }
  }
}

TEST(FrameHeader, EncodingReusesItsBuffer) {
  std::vector<std::byte> bytes;
  EncodeHeader(Sample(), &bytes);
  const std::byte* place = bytes.data();
  for (int i = 0; i < 10; ++i) EncodeHeader(Sample(), &bytes);
  EXPECT_EQ(bytes.data(), place);
}

TEST(FrameHeader, RefusesFieldsOutOfRange) {
  const auto expect_refused = [](auto change, const char* field) {
    FrameHeader header = Sample();
    change(header);
    std::vector<std::byte> bytes;
    EncodeHeader(header, &bytes);
    FrameHeader back;
    const Status status = DecodeHeader(bytes, &back);
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << field;
    EXPECT_NE(status.text().find(field), std::string::npos) << status.text();
  };
  expect_refused([](FrameHeader& h) { h.kind = static_cast<FrameKind>(11); }, "kind");
  expect_refused([](FrameHeader& h) { h.kind = static_cast<FrameKind>(255); }, "kind");
  expect_refused([](FrameHeader& h) { h.role = static_cast<Role>(2); }, "role");
  expect_refused([](FrameHeader& h) { h.flags = 64; }, "flags");
  expect_refused([](FrameHeader& h) { h.weight = -1; }, "weight");
  expect_refused([](FrameHeader& h) { h.weight = std::numeric_limits<double>::quiet_NaN(); }, "weight");
  expect_refused([](FrameHeader& h) { h.weight = std::numeric_limits<double>::infinity(); }, "weight");
  expect_refused([](FrameHeader& h) { h.factor = std::numeric_limits<float>::infinity(); }, "factor");
  expect_refused([](FrameHeader& h) { h.factor = std::numeric_limits<float>::quiet_NaN(); }, "factor");
  expect_refused([](FrameHeader& h) { h.slabs = {4, 4}; }, "slab");
  expect_refused([](FrameHeader& h) { h.slabs = {4, 3}; }, "slab");
  expect_refused([](FrameHeader& h) { h.payload_bytes = kMaxPayloadBytes + 1; }, "payload");
  expect_refused([](FrameHeader& h) { h.collective.elements = (std::uint64_t{1} << 40) + 1; }, "elements");
  expect_refused([](FrameHeader& h) { h.collective.dtype = static_cast<DType>(8); }, "dtype");
  expect_refused([](FrameHeader& h) { h.collective.op = static_cast<ReduceOp>(8); }, "op");
  expect_refused([](FrameHeader& h) { h.collective.kind = static_cast<CollectiveKind>(4); }, "kind of collective");
  expect_refused(
      [](FrameHeader& h) {
        h.slabs.resize(kMaxFrameSlabs + 1);
        for (std::uint32_t i = 0; i < h.slabs.size(); ++i) h.slabs[i] = i;
      },
      "slabs");
  expect_refused([](FrameHeader& h) { h.contributors.resize(kMaxFrameSlabs + 1); }, "contributors");
}

TEST(FrameHeader, EveryTruncationIsRefused) {
  std::vector<std::byte> bytes;
  EncodeHeader(Sample(), &bytes);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    FrameHeader back;
    EXPECT_EQ(DecodeHeader(cut, &back).kind(), StatusKind::kCorrupt) << length;
  }
}

TEST(FrameHeader, HostileEnvelopes) {
  const auto decode = [](std::vector<std::uint32_t> words) {
    FrameHeader back;
    return DecodeHeader(std::as_bytes(std::span(words)), &back);
  };
  EXPECT_EQ(decode({0xFFFFFFFF, 0, 0, 0}).kind(), StatusKind::kCorrupt);          // count overflows to 0
  EXPECT_EQ(decode({0xFFFFFFFE, 1, 0, 0}).kind(), StatusKind::kCorrupt);
  EXPECT_EQ(decode(std::vector<std::uint32_t>(1024, 512)).kind(), StatusKind::kCorrupt);  // 513 segments
  EXPECT_EQ(decode({0, 0xFFFFFFFF, 0, 0}).kind(), StatusKind::kCorrupt);          // one huge segment
  EXPECT_EQ(decode({1, 0x80000000, 0x80000001, 0}).kind(), StatusKind::kCorrupt);  // the sum wraps in 32 bits
  EXPECT_EQ(decode({15, 0, 0, 0}).kind(), StatusKind::kCorrupt);                  // table longer than the message
  EXPECT_EQ(decode({0, 1, 0xFFFFFFFC, 0xFFFFFFFF}).kind(), StatusKind::kCorrupt);  // struct beyond the segment
  EXPECT_EQ(decode({0, 1, 0xFFFFFFFA, 7}).kind(), StatusKind::kCorrupt);           // far pointer to nowhere
  EXPECT_EQ(decode({0, 1, 0x00000002, 0}).kind(), StatusKind::kCorrupt);           // far pointer to itself
  std::vector<std::uint32_t> large(kMaxHeaderBytes / 4 + 2, 0);
  large[1] = static_cast<std::uint32_t>(kMaxHeaderBytes / 8);
  EXPECT_EQ(decode(large).kind(), StatusKind::kCorrupt);  // beyond the bound
}

TEST(FrameHeader, RandomFlipsNeverCrash) {
  std::vector<std::byte> bytes;
  EncodeHeader(Sample(40), &bytes);
  std::mt19937 random(11);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bad = bytes;
    for (unsigned flips = 1 + random() % 8; flips > 0; --flips) {
      bad[random() % bad.size()] ^= static_cast<std::byte>(1u << random() % 8);
    }
    FrameHeader back;
    const Status status = DecodeHeader(bad, &back);
    EXPECT_TRUE(status.ok() || status.kind() == StatusKind::kCorrupt);
  }
}

TEST(Preamble, RoundTripsAndProtectsEveryBit) {
  std::vector<std::byte> header;
  EncodeHeader(Sample(), &header);
  std::array<std::byte, kPreambleBytes> bytes;
  EncodePreamble({static_cast<std::uint32_t>(header.size()), 4096}, header, bytes);
  const auto back = DecodePreamble(bytes, kMaxPayloadBytes);
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->header_bytes, header.size());
  EXPECT_EQ(back->payload_bytes, 4096u);
  EXPECT_TRUE(CheckHeaderCrc(bytes, header).ok());
  for (std::size_t bit = 0; bit < 8 * kPreambleBytes; ++bit) {
    auto bad = bytes;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    const auto decoded = DecodePreamble(bad, kMaxPayloadBytes);
    EXPECT_FALSE(decoded.ok() && CheckHeaderCrc(bad, header).ok()) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * header.size(); ++bit) {
    auto bad = header;
    bad[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    EXPECT_EQ(CheckHeaderCrc(bytes, bad).kind(), StatusKind::kCorrupt) << bit;
  }
}

TEST(Preamble, BoundsAndVersion) {
  const std::vector<std::byte> header(64);
  std::array<std::byte, kPreambleBytes> bytes;
  EncodePreamble({64, static_cast<std::uint32_t>(kMaxPayloadBytes)}, header, bytes);
  EXPECT_TRUE(DecodePreamble(bytes, kMaxPayloadBytes).ok());
  EXPECT_EQ(DecodePreamble(bytes, kMaxPayloadBytes - 1).status().kind(), StatusKind::kCorrupt);
  EncodePreamble({8, 0}, header, bytes);
  EXPECT_EQ(DecodePreamble(bytes, kMaxPayloadBytes).status().kind(), StatusKind::kCorrupt);
  EncodePreamble({20, 0}, header, bytes);
  EXPECT_EQ(DecodePreamble(bytes, kMaxPayloadBytes).status().kind(), StatusKind::kCorrupt);
  EncodePreamble({64, 0}, header, bytes);
  bytes[4] = std::byte{9};
  const Status version = DecodePreamble(bytes, kMaxPayloadBytes).status();
  EXPECT_EQ(version.kind(), StatusKind::kMismatch);
  EXPECT_NE(version.text().find('9'), std::string::npos);
  EXPECT_NE(version.text().find('1'), std::string::npos);
  std::array<std::byte, kPreambleBytes> http;
  std::memcpy(http.data(), "GET / HTTP/1.1\r\n", kPreambleBytes);
  EXPECT_EQ(DecodePreamble(http, kMaxPayloadBytes).status().kind(), StatusKind::kCorrupt);
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Crc32c, KnownVectors) {  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(Bytes("")), 0u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xE3069283u);
  std::array<std::byte, 32> block{};
  EXPECT_EQ(Crc32c(block), 0x8A9136AAu);
  block.fill(std::byte{0xFF});
  EXPECT_EQ(Crc32c(block), 0x62A8AB43u);
  for (unsigned i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(i);
  EXPECT_EQ(Crc32c(block), 0x46DD794Eu);
  for (unsigned i = 0; i < 32; ++i) block[i] = static_cast<std::byte>(31 - i);
  EXPECT_EQ(Crc32c(block), 0x113FDB5Cu);
}

TEST(Crc32c, AllWaysAgreeAtEveryLengthAlignmentAndSplit) {
  std::vector<std::byte> bytes(70000);
  std::mt19937 random(5);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  for (const std::size_t length : {0u, 1u, 7u, 8u, 9u, 63u, 1023u, 1024u, 3071u, 3072u, 3073u, 6151u, 65536u, 69991u}) {
    for (const std::size_t offset : {0u, 1u, 3u, 7u}) {
      const auto part = std::span(bytes).subspan(offset, length);
      std::uint32_t bitwise = ~0u;
      for (const std::byte b : part) {
        bitwise ^= std::to_integer<std::uint32_t>(b);
        for (int bit = 0; bit < 8; ++bit) bitwise = (bitwise >> 1) ^ ((bitwise & 1) != 0 ? 0x82F63B78u : 0u);
      }
      EXPECT_EQ(Crc32c(part), ~bitwise);
      EXPECT_EQ(Crc32cPortable(part), ~bitwise);
      const std::size_t split = length / 3;
      EXPECT_EQ(Crc32c(part.subspan(split), Crc32c(part.first(split))), ~bitwise);
    }
  }
}

}  // namespace
}  // namespace tally
