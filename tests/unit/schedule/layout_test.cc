// Cut, layout, buckets by cap and the send order, among them C03: offsets around 2^31 and 2^32 bytes.
#include "common/schedule/layout.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace tally {
namespace {

TensorSpec Tensor(std::string name, std::uint64_t elements, DType dtype = DType::kFloat32) {
  return {std::move(name), ElementCount{elements}, dtype};
}

TEST(Cut, FollowsTheFormula) {
  EXPECT_EQ(CutTensor(0, 4).count, 0u);
  EXPECT_EQ(CutTensor(1, 4).elements, 4096u);
  EXPECT_EQ(CutTensor(1, 4).count, 1u);
  EXPECT_EQ(CutTensor(4097, 1).elements, 4352u);   // k = 1: 4097 rounded up to 256
  EXPECT_EQ(CutTensor(65536, 1).elements, 65536u);
  EXPECT_EQ(CutTensor(65537, 1).elements, 33024u); // k = 2: 32769 rounded up
  EXPECT_EQ(CutTensor(65537, 1).count, 2u);
  EXPECT_EQ(CutTensor(65536, 4).elements, 16384u);
  EXPECT_EQ(CutTensor(65536, 4).count, 4u);
}

TEST(Cut, CoversEveryElementOnceForAnySize) {
  for (const std::uint32_t workers : {1u, 2u, 3u, 4u, 7u, 64u, 1024u}) {
    for (const std::uint64_t n : {1ull, 4095ull, 4096ull, 4097ull, 65535ull, 65536ull, 65537ull, 104729ull, 25557032ull,
                                  (1ull << 31) - 1, 1ull << 32, (1ull << 40) - 1, 1ull << 40}) {
      const Cut cut = CutTensor(n, workers);
      EXPECT_GE(cut.elements, kMinSlabElements);
      EXPECT_LE(cut.elements, kMaxSlabElements);
      EXPECT_EQ(cut.elements % 256, 0u);
      EXPECT_LT((cut.count - 1) * cut.elements, n) << n << " " << workers;
      EXPECT_GE(cut.count * cut.elements, n) << n << " " << workers;
    }
  }
}

// C03: segment tables for totals around 2^31 and 2^32 bytes ascend, do not overlap and cover exactly.
TEST(Layout, HasExactOffsetsAroundTwoAndFourGibibytes) {
  constexpr std::uint64_t kGi2 = std::uint64_t{1} << 31, kGi4 = std::uint64_t{1} << 32;
  for (const std::uint32_t workers : {2u, 3u, 7u}) {
    for (const std::uint64_t bytes : {kGi2 - 4, kGi2, kGi2 + 4, kGi4 - 4, kGi4, kGi4 + 4, std::uint64_t{2400000000}}) {
      for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
        const std::uint64_t n = bytes / DTypeBytes(dtype);
        const std::vector<TensorSpec> tensors = {Tensor("small", 5), Tensor("large", n, dtype), Tensor("last", 4097)};
        const auto made = MakeLayout(tensors, BucketsByCap(tensors, 25u << 20), workers);
        ASSERT_TRUE(made.ok()) << made.status().ToString();
        const Layout& layout = *made;
        std::uint64_t expected_offset = 0;
        for (std::uint32_t u = layout.first_slab[1]; u < layout.first_slab[2]; ++u) {
          ASSERT_EQ(layout.slabs[u].tensor, 1u);
          ASSERT_EQ(layout.slabs[u].offset, expected_offset);
          ASSERT_GE(layout.slabs[u].elements, 1u);
          ASSERT_LE(layout.slabs[u].elements, kMaxSlabElements);
          expected_offset += layout.slabs[u].elements;
        }
        EXPECT_EQ(expected_offset, n);
        EXPECT_EQ(layout.elements(), n + 5 + 4097);
        EXPECT_EQ(layout.first_slab.back(), layout.slabs.size());
      }
    }
  }
}

TEST(Layout, NumbersSlabsInDeclarationOrderWhateverTheBuckets) {
  const std::vector<TensorSpec> tensors = {Tensor("a", 10), Tensor("empty", 0), Tensor("b", 70000), Tensor("c", 4096)};
  const std::vector<std::vector<std::uint32_t>> one = {{3, 2}, {1, 0}}, other = {{0, 1, 2, 3}};
  const Layout a = MakeLayout(tensors, one, 2).value(), b = MakeLayout(tensors, other, 2).value();
  ASSERT_EQ(a.slabs.size(), b.slabs.size());
  for (std::size_t u = 0; u < a.slabs.size(); ++u) {
    EXPECT_EQ(a.slabs[u].tensor, b.slabs[u].tensor);
    EXPECT_EQ(a.slabs[u].offset, b.slabs[u].offset);
    EXPECT_EQ(a.slabs[u].elements, b.slabs[u].elements);
  }
  EXPECT_EQ(a.first_slab[1], a.first_slab[2]);  // the empty tensor has no slab
  EXPECT_TRUE(std::is_sorted(a.bucket_slabs[0].begin(), a.bucket_slabs[0].end()));
  EXPECT_EQ(a.bucket_slabs[0].size() + a.bucket_slabs[1].size(), a.slabs.size());
  EXPECT_EQ(a.slabs[a.bucket_slabs[1][0]].tensor, 0u);
  EXPECT_EQ(a.slabs[0].bucket, 1u);
}

TEST(Layout, RefusesBucketsThatDoNotFit) {
  const std::vector<TensorSpec> tensors = {Tensor("a", 10), Tensor("b", 20)};
  const auto make = [&](std::vector<std::vector<std::uint32_t>> buckets) {
    return MakeLayout(tensors, buckets, 3).status();
  };
  EXPECT_TRUE(make({{0, 1}}).ok());
  EXPECT_TRUE(make({{1}, {}, {0}}).ok());
  EXPECT_EQ(make({{0}}).kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(make({{0}}).text().find("tensor b"), std::string::npos);
  EXPECT_EQ(make({{0, 1}, {1}}).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(make({{0, 0, 1}}).kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(make({{0, 1, 2}}).kind(), StatusKind::kCorrupt);
}

TEST(Layout, RefusesSizesBeyondTheBoundsWithoutAllocating) {
  const std::vector<TensorSpec> one = {Tensor("a", (std::uint64_t{1} << 40) + 1)};
  EXPECT_EQ(MakeLayout(one, BucketsByCap(one, 1), 1).status().kind(), StatusKind::kInvalidArgument);
  const std::vector<TensorSpec> many(300, Tensor("a", std::uint64_t{1} << 40));
  EXPECT_EQ(MakeLayout(many, BucketsByCap(many, 1), 1).status().kind(), StatusKind::kInvalidArgument);
}

TEST(Buckets, CloseBeforeTheCapInReverseOrder) {
  const std::vector<TensorSpec> tensors = {Tensor("a", 100), Tensor("b", 50), Tensor("c", 50), Tensor("d", 1000),
                                           Tensor("e", 1)};
  const std::vector<std::vector<std::uint32_t>> expected = {{4}, {3}, {2, 1}, {0}};
  EXPECT_EQ(BucketsByCap(tensors, 400), expected);
  const std::vector<std::vector<std::uint32_t>> wider = {{4}, {3}, {2, 1, 0}};
  EXPECT_EQ(BucketsByCap(tensors, 800), wider);
  EXPECT_EQ(BucketsByCap(tensors, 1u << 20).size(), 1u);
  EXPECT_EQ(BucketsByCap(tensors, 0).size(), 5u);
  EXPECT_TRUE(BucketsByCap({}, 400).empty());
}

TEST(Buckets, HoldOneTypeEach) {
  const std::vector<TensorSpec> tensors = {Tensor("a", 1), Tensor("b", 1, DType::kFloat16),
                                           Tensor("c", 1, DType::kFloat16)};
  const std::vector<std::vector<std::uint32_t>> expected = {{2, 1}, {0}};
  EXPECT_EQ(BucketsByCap(tensors, 1u << 20), expected);
}

TEST(SendOrder, StartsAtTheLeftNeighbourStripeByStripe) {
  std::vector<std::uint32_t> slabs(10);
  for (std::uint32_t u = 0; u < 10; ++u) slabs[u] = u;
  EXPECT_EQ(SendOrder(slabs, Position{2}, 4), (std::vector<std::uint32_t>{1, 0, 3, 2, 5, 4, 7, 6, 9, 8}));
  EXPECT_EQ(SendOrder(slabs, Position{0}, 4), (std::vector<std::uint32_t>{3, 2, 1, 0, 7, 6, 5, 4, 9, 8}));
  EXPECT_EQ(SendOrder(slabs, Position{0}, 1), slabs);
  const std::vector<std::uint32_t> some = {2, 3, 9};
  EXPECT_EQ(SendOrder(some, Position{3}, 4), (std::vector<std::uint32_t>{2, 3, 9}));
}

TEST(SendOrder, NeverSendsAllPositionsToOneOwnerAtOnce) {
  constexpr std::uint32_t kPositions = 7;
  std::vector<std::uint32_t> slabs(kPositions * 3);
  for (std::uint32_t u = 0; u < slabs.size(); ++u) slabs[u] = u;
  for (std::size_t turn = 0; turn < slabs.size(); ++turn) {
    std::set<std::uint32_t> owners;
    for (std::uint32_t w = 0; w < kPositions; ++w) {
      owners.insert(SendOrder(slabs, Position{w}, kPositions)[turn] % kPositions);
    }
    EXPECT_EQ(owners.size(), kPositions) << "turn " << turn;
  }
}

}  // namespace
}  // namespace tally
