// The bytes of a rank's saved state: pinned, read back without a change, and refused whatever is wrong with them.
#include "compress/saved_state.h"

#include <gtest/gtest.h>

#include <cstring>

namespace tally {
namespace {

SavedState Example() {
  SavedState state;
  state.step = StepId(70);
  state.learning_rate = 0.25F;
  state.residuals.origin = {EpochId(3), 4, Rank(2)};
  state.residuals.layout_digest = 0x0123456789ABCDEF;
  state.residuals.tensors = {{"fc1.weight", {1.5F, -2, 0x1p-130F}, 0, 6}, {"b", {}, 0, 3}};
  state.velocities = {{"fc1.weight", {4, 8}, 0, 7}};
  state.carried = {{"m", {0.25F}, 0, 9}};
  state.owned = {{"fc1.weight", {-1}, 4096, 6}, {"fc1.weight", {7, 9}, 0, 6}};
  state.scales = {{"w", {0.5F, 0}, 0, 10}};
  return state;
}

void ExpectSame(const std::vector<SavedTensor>& a, const std::vector<SavedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].values, b[i].values);
    EXPECT_EQ(a[i].offset, b[i].offset);
    EXPECT_EQ(a[i].codec, b[i].codec);
  }
}

TEST(SavedState, IsReadBackWithoutAChange) {
  const SavedState state = Example();
  const std::vector<std::byte> bytes = EncodeState(state);
  const auto back = DecodeState(bytes);
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(back->step, state.step);
  EXPECT_EQ(back->learning_rate, 0.25F);
  EXPECT_EQ(back->residuals.origin.epoch, EpochId(3));
  EXPECT_EQ(back->residuals.origin.world, 4U);
  EXPECT_EQ(back->residuals.origin.rank, Rank(2));
  EXPECT_EQ(back->residuals.layout_digest, state.residuals.layout_digest);
  ExpectSame(back->residuals.tensors, state.residuals.tensors);
  ExpectSame(back->velocities, state.velocities);
  ExpectSame(back->carried, state.carried);
  ExpectSame(back->owned, state.owned);
  ExpectSame(back->scales, state.scales);
  EXPECT_EQ(EncodeState(*back), bytes);
  EXPECT_TRUE(DecodeState(EncodeState(SavedState{})).ok());
}

TEST(SavedState, PinsItsHead) {
  const std::vector<std::byte> bytes = EncodeState(Example());
  EXPECT_EQ(std::memcmp(bytes.data(), "TLLYSAVE\x01\0\0\0\0\0\0\0", 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 24, "\x03\0\0\0\0\0\0\0\x04\0\0\0\x02\0\0\0", 16), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 40, "\xEF\xCD\xAB\x89\x67\x45\x23\x01", 8), 0);
  EXPECT_EQ(std::memcmp(bytes.data() + 48, "\x46\0\0\0\0\0\0\0\0\0\x80\x3E\x07\0\0\0\0\x06\x0A\0fc1.weight", 30), 0);
}

TEST(SavedState, RefusesEveryFlippedBitAndEveryPrefix) {
  const std::vector<std::byte> good = EncodeState(Example());
  for (std::size_t i = 0; i < 8 * good.size(); ++i) {
    std::vector<std::byte> bad = good;
    bad[i / 8] ^= std::byte{1} << (i % 8);
    EXPECT_FALSE(DecodeState(bad).ok()) << "bit " << i;
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeState(std::span(good).first(size)).ok()) << size << " bytes";
  }
  std::vector<std::byte> version = good;
  version[8] = std::byte{2};
  EXPECT_EQ(DecodeState(version).status().kind(), StatusKind::kUnsupported);
  EXPECT_NE(DecodeState(version).status().text().find("version 2"), std::string::npos);
}

// A right checksum over lies: they end at the field, without memory for what is not there.
TEST(SavedState, RefusesLiesUnderARightChecksum) {
  const std::vector<std::byte> good = EncodeState(Example());
  const auto lie = [&](std::size_t at, std::uint64_t value, std::size_t size) {
    std::vector<std::byte> bad = good;
    std::memcpy(bad.data() + at, &value, size);
    const std::uint64_t sum = StateDigest(std::span(bad).subspan(24), 0);
    std::memcpy(bad.data() + 16, &sum, sizeof sum);
    return DecodeState(bad).status();
  };
  EXPECT_TRUE(lie(64, 0, 1).ok()) << "the first entry's kind, as it is";
  EXPECT_EQ(lie(64, 4, 1).kind(), StatusKind::kCorrupt);
  EXPECT_EQ(lie(60, 0xFFFFFFFF, 4).kind(), StatusKind::kCorrupt) << "entries";
  EXPECT_EQ(lie(60, 5, 4).kind(), StatusKind::kCorrupt) << "bytes after the last entry";
  EXPECT_EQ(lie(66, 0xFFFF, 2).kind(), StatusKind::kCorrupt) << "a name's length";
  EXPECT_EQ(lie(68, 0, 1).kind(), StatusKind::kCorrupt) << "an unprintable name";
  constexpr std::uint64_t kOne = 1;
  for (const std::uint64_t count : {kOne << 12, kOne << 40, kOne << 62, ~std::uint64_t{0}}) {
    const Status status = lie(86, count, 8);
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
    EXPECT_NE(status.text().find(std::to_string(count)), std::string::npos) << status.text();
  }
}

}  // namespace
}  // namespace tally
