#include "server/core/collective_calls.h"

#include <gtest/gtest.h>

namespace tally {
namespace {

CollectiveShape Sum(std::uint64_t call, std::uint64_t elements) {
  return {elements, DType::kFloat32, ReduceOp::kSum, call};
}

TEST(CollectiveCalls, EqualCallsPassWhoeverIsAhead) {
  CollectiveCalls calls;
  for (std::uint64_t call = 1; call < 20; ++call) {
    EXPECT_TRUE(calls.Note(Rank(1), Sum(call, 10 * call)).ok());
    EXPECT_TRUE(calls.Note(Rank(1), Sum(call + 1, 10 * (call + 1))).ok());
    EXPECT_TRUE(calls.Note(Rank(0), Sum(call, 10 * call)).ok());
    EXPECT_TRUE(calls.Note(Rank(0), Sum(call, 10 * call)).ok());
  }
}

TEST(CollectiveCalls, AnyDifferenceIsNamedWithBothRanks) {
  for (const CollectiveShape& other : {Sum(3, 11), CollectiveShape{10, DType::kFloat16, ReduceOp::kSum, 3},
                                       CollectiveShape{10, DType::kFloat32, ReduceOp::kMean, 3},
                                       CollectiveShape{10, DType::kFloat32, ReduceOp::kSum, 3, CollectiveKind::kAllGather},
                                       CollectiveShape{10, DType::kFloat32, ReduceOp::kSum, 3, CollectiveKind::kAllReduce, 1}}) {
    CollectiveCalls calls;
    ASSERT_TRUE(calls.Note(Rank(2), Sum(3, 10)).ok());
    const Status status = calls.Note(Rank(5), other);
    EXPECT_EQ(status.kind(), StatusKind::kMismatch);
    for (const char* named : {"call 3", "rank 2", "rank 5", "10"}) {
      EXPECT_NE(status.text().find(named), std::string::npos) << named << " in: " << status.text();
    }
  }
}

TEST(CollectiveCalls, WhatSendsNoFramesIsComparedToo) {
  CollectiveCalls calls;
  ASSERT_TRUE(calls.NoteOther(Rank(2), 3, "declares group model").ok());
  EXPECT_TRUE(calls.NoteOther(Rank(0), 3, "declares group model").ok());
  EXPECT_TRUE(calls.Note(Rank(5), Sum(4, 10)).ok()) << "the declaration is over";
  const Status status = calls.Note(Rank(5), Sum(3, 10));
  EXPECT_EQ(status.kind(), StatusKind::kMismatch);
  for (const char* named : {"call 3", "rank 2 declares group model", "rank 5 asks for the sum of 10"}) {
    EXPECT_NE(status.text().find(named), std::string::npos) << named << " in: " << status.text();
  }
  EXPECT_FALSE(calls.NoteOther(Rank(2), 4, "was refused its call: no memory").ok());
}

TEST(CollectiveCalls, EveryKindHasAText) {
  CollectiveShape shape{.elements = 9, .dtype = DType::kInt64, .op = ReduceOp::kXor, .call = 1, .kind = {}, .root = 2};
  EXPECT_EQ(DescribeCollective(shape), "the bitwise xor of 9 int64 elements");
  shape.kind = CollectiveKind::kReduceScatter;
  EXPECT_EQ(DescribeCollective(shape), "a reduce-scatter by bitwise xor of 9 int64 elements per rank");
  shape.op = ReduceOp::kMean;
  shape.kind = CollectiveKind::kBroadcast;
  EXPECT_EQ(DescribeCollective(shape), "a broadcast of 9 int64 elements from rank 2");
  shape.kind = CollectiveKind::kAllGather;
  EXPECT_EQ(DescribeCollective(shape), "an all-gather of 9 int64 elements per rank");
}

TEST(CollectiveCalls, FramesOfGroupsAndOfCallsLongOverPass) {
  CollectiveCalls calls;
  ASSERT_TRUE(calls.Note(Rank(0), Sum(1, 10)).ok());
  ASSERT_TRUE(calls.Note(Rank(0), Sum(5, 50)).ok());  // takes the place of call 1
  EXPECT_TRUE(calls.Note(Rank(1), Sum(1, 99)).ok());
  EXPECT_TRUE(calls.Note(Rank(1), {}).ok());
  EXPECT_FALSE(calls.Note(Rank(1), Sum(5, 51)).ok());
}

}  // namespace
}  // namespace tally
