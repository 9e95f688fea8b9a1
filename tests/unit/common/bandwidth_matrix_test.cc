// Files of measured bandwidths, hostile ones too, and the order of positions that they lead to.
#include "common/topology/bandwidth_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Slow between a and b, and between c and d: the one good ring of four is a c b d.
constexpr std::string_view kFour =
    "# bytes per second\n"
    "a: 0 1 9 9\n"
    "b: 1 0 9 9\n"
    "c: 9 9 0 1\n"
    "d: 9, 9, 1, 0\n";

TEST(BandwidthMatrix, ReadsNumbersWithAndWithoutNames) {
  const auto plain = ParseBandwidthMatrix("0 1.5e3\n2,0 # x\n\n");
  ASSERT_TRUE(plain.ok()) << plain.status().text();
  EXPECT_EQ(plain->values, (std::vector<double>{0, 1500, 2, 0}));
  EXPECT_TRUE(plain->names.empty());
  const auto named = ParseBandwidthMatrix(kFour);
  ASSERT_TRUE(named.ok()) << named.status().text();
  EXPECT_THAT(named->names, ElementsAre("a", "b", "c", "d"));
  EXPECT_EQ(named->size, 4U);
}

TEST(BandwidthMatrix, WhatIsPrintedReadsBack) {
  BandwidthMatrix matrix{{"node-1", "node-2"}, {0, 1.25e9, 117123456.78901, 0}, 2};
  const auto back = ParseBandwidthMatrix(PrintBandwidthMatrix(matrix));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->values, matrix.values);
  EXPECT_EQ(back->names, matrix.names);
  matrix.names.clear();
  EXPECT_EQ(ParseBandwidthMatrix(PrintBandwidthMatrix(matrix))->values, matrix.values);
}

TEST(BandwidthMatrix, RefusesBadText) {
  for (const char* bad : {"", "1 2", "1 2\n3", "1 x\n3 4", "1 -2\n3 4", "1 nan\n3 4", "1 inf\n3 4", "1 2\n3 4\n5 6",
                          "1;2\n3 4", "a: 0 1\n1 0", "0 1\nb: 1 0", "a: 0 1\na: 1 0", ": 0 1\nb: 1 0", "a:\nb:",
                          "a: 0 1 2\nb: 1 0 2"}) {
    EXPECT_FALSE(ParseBandwidthMatrix(bad).ok()) << bad;
  }
  EXPECT_THAT(ReadBandwidthMatrix("/nonexistent/matrix").status().text(), HasSubstr("/nonexistent/matrix"));
}

TEST(BandwidthMatrix, TheOrderAvoidsSlowEdges) {
  const BandwidthMatrix matrix = ParseBandwidthMatrix(kFour).value();
  const std::vector<MatrixPlace> places = {{"n1", "a"}, {"n2", "b"}, {"n3", "c"}, {"n4", "d"}};
  const std::vector<std::uint32_t> usual = {0, 1, 2, 3};
  const auto order = OrderByMatrix(matrix, places, usual);
  ASSERT_TRUE(order.ok()) << order.status().text();
  EXPECT_EQ(order->least, 9);
  EXPECT_EQ(order->least_before, 1);
  EXPECT_EQ(order->order.front(), 0U);
  EXPECT_THAT(order->order, ::testing::AnyOf(ElementsAre(0, 2, 1, 3), ElementsAre(0, 3, 1, 2)));
}

TEST(BandwidthMatrix, RanksOfANodeStayTogetherAndAGoodOrderStays) {
  const BandwidthMatrix matrix = ParseBandwidthMatrix(kFour).value();
  // Two ranks on each, found by the node's name; some were dealt around.
  const std::vector<MatrixPlace> places = {{"a", "x"}, {"c", "x"}, {"b", "x"}, {"d", "x"},
                                           {"a", "x"}, {"c", "x"}, {"b", "x"}, {"d", "x"}};
  const std::vector<std::uint32_t> good = {0, 4, 1, 5, 2, 6, 3, 7}, bad = {0, 4, 2, 6, 1, 5, 3, 7};
  EXPECT_EQ(OrderByMatrix(matrix, places, good)->order, good);
  const auto mended = OrderByMatrix(matrix, places, bad).value();
  EXPECT_THAT(mended.order, ::testing::AnyOf(ElementsAre(0, 4, 1, 5, 2, 6, 3, 7), ElementsAre(0, 4, 3, 7, 2, 6, 1, 5)));
}

TEST(BandwidthMatrix, AJobThatTheRowsDoNotFitIsToldWhy) {
  const BandwidthMatrix matrix = ParseBandwidthMatrix(kFour).value();
  const std::vector<std::uint32_t> usual = {0, 1};
  const auto why = [&](const BandwidthMatrix& of, const std::vector<MatrixPlace>& places) {
    return OrderByMatrix(of, places, usual).status().text();
  };
  EXPECT_THAT(why(matrix, {{"n1", "a"}, {"n2", "z"}}), HasSubstr("no row names host z (node n2)"));
  EXPECT_THAT(why(matrix, {{"n1", "a"}, {"n2", "a"}}), HasSubstr("two nodes, n1 and n2"));
  EXPECT_THAT(why(ParseBandwidthMatrix("0 1\n1 0").value(), {{"n1", "a"}, {"n2", "b"}}), HasSubstr("no names"));
}

}  // namespace
}  // namespace tally
