// Every element of a collective is in exactly one piece, where the ranks' order says, and what may be sent early is
// bounded.
#include "worker/collective_plan.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

namespace tally {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Positions in another order than ranks.
std::vector<Rank> Shuffled(std::uint32_t n) {
  std::vector<Rank> ranks(n);
  for (std::uint32_t p = 0; p < n; ++p) ranks[p] = Rank((p * 3 + 1) % n);
  std::vector<bool> seen(n, false);
  for (const Rank r : ranks) seen[r.value] = true;
  if (std::ranges::find(seen, false) != seen.end()) {  // 3 divides n
    for (std::uint32_t p = 0; p < n; ++p) ranks[p] = Rank(n - 1 - p);
  }
  return ranks;
}

struct Shape {
  CollectiveKind kind;
  DType dtype;
};

class Plan : public testing::TestWithParam<Shape> {};

TEST_P(Plan, CoversEveryElementOnce) {
  const auto [kind, dtype] = GetParam();
  const std::uint64_t size = DTypeBytes(dtype);
  const bool blocks = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter;
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 7U}) {
    const std::vector<Rank> ranks = Shuffled(n);
    for (const std::uint64_t elements : {0UL, 1UL, 16383UL, 16384UL, 16385UL, 100003UL, 400009UL}) {
      SCOPED_TRACE(std::to_string(n) + " ranks, " + std::to_string(elements) + " elements");
      const CollectiveShape shape{.elements = elements, .dtype = dtype, .kind = kind, .root = n - 1};
      const CollectivePlan plan(shape, ranks, kMiB);
      ASSERT_GE(plan.pieces(), 1U);
      EXPECT_LE(plan.piece_bytes(), CollectivePlan::kMaxPieceBytes);
      std::vector<std::uint64_t> covered((blocks ? n : 1) * elements, 0);
      std::uint64_t eager = 0;
      for (std::uint32_t u = 0; u < plan.pieces(); ++u) {
        const Rank owner = ranks[plan.owner(u).value];
        EXPECT_TRUE(kind != CollectiveKind::kBroadcast || owner.value == n - 1);
        const bool in_whole = kind == CollectiveKind::kReduceScatter;
        const std::uint64_t whole = in_whole ? plan.in_offset(u) : plan.out_offset(u);
        const std::uint64_t part = in_whole ? plan.out_offset(u) : plan.in_offset(u);
        EXPECT_EQ(whole, part + (blocks ? owner.value * elements * size : 0));
        ASSERT_EQ(whole % size, 0U);
        for (std::uint64_t i = 0; i < plan.elements(u); ++i) ++covered.at(whole / size + i);
        if (plan.half(u) != Half::kBoth) eager += plan.bytes(u);
        const bool gathers = kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kAllGather;
        EXPECT_TRUE(plan.half(u) != Half::kReduce || kind == CollectiveKind::kReduceScatter);
        EXPECT_TRUE(plan.half(u) != Half::kBroadcast || gathers);
      }
      EXPECT_TRUE(std::ranges::all_of(covered, [](std::uint64_t times) { return times == 1; }));
      EXPECT_LE(eager, kMiB);
      // A root that waited for nobody would end a call that others are not in; so would an owner in an all-reduce.
      EXPECT_TRUE(blocks || plan.half(0) == Half::kBoth);
      EXPECT_TRUE(!blocks || elements * n * size > kMiB / 2 || plan.half(0) != Half::kBoth);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Plan,
                         testing::Values(Shape{CollectiveKind::kAllReduce, DType::kInt32},
                                         Shape{CollectiveKind::kAllReduce, DType::kFloat64},
                                         Shape{CollectiveKind::kBroadcast, DType::kUint8},
                                         Shape{CollectiveKind::kBroadcast, DType::kFloat32},
                                         Shape{CollectiveKind::kAllGather, DType::kFloat16},
                                         Shape{CollectiveKind::kAllGather, DType::kInt64},
                                         Shape{CollectiveKind::kReduceScatter, DType::kInt8},
                                         Shape{CollectiveKind::kReduceScatter, DType::kFloat64}));

// As many numbers as go: pieces are still numbered by 32 bits.
TEST(Plan, NumbersThePiecesOfTheLargestCollective) {
  constexpr std::uint32_t kRanks = 4096;
  std::vector<Rank> ranks(kRanks);
  for (std::uint32_t r = 0; r < kRanks; ++r) ranks[r] = Rank(r);
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kBroadcast, CollectiveKind::kAllGather}) {
    const std::uint64_t blocks = kind == CollectiveKind::kAllGather ? kRanks : 1;
    const CollectiveShape shape{.elements = (std::uint64_t{1} << 40) / blocks, .dtype = DType::kFloat64, .kind = kind};
    const CollectivePlan plan(shape, ranks, kMiB);
    const std::uint32_t last = plan.pieces() - 1;
    EXPECT_EQ(plan.out_offset(last) + plan.bytes(last), (std::uint64_t{1} << 40) * sizeof(double));
  }
}

}  // namespace
}  // namespace tally
