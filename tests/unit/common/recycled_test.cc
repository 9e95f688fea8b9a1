#include <gtest/gtest.h>

#include <vector>

#include "common/recycled_list.h"
#include "common/recycled_queue.h"

namespace tally {
namespace {

TEST(RecycledQueue, KeepsOrderAcrossGrowthAndWrap) {
  RecycledQueue<int> queue;
  int in = 0, out = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < round % 37; ++i) queue.PushBack() = in++;
    for (int i = 0; i < round % 31 && !queue.empty(); ++i, queue.PopFront()) ASSERT_EQ(queue.front(), out++);
    ASSERT_EQ(queue.size(), static_cast<std::size_t>(in - out));
    for (std::size_t i = 0; i < queue.size(); ++i) ASSERT_EQ(queue[i], out + static_cast<int>(i));
  }
}

TEST(RecycledQueue, APlaceKeepsItsElementsMemory) {
  RecycledQueue<std::vector<int>> queue;
  for (int i = 0; i < 16; ++i) {
    queue.PushBack().assign(100, i);
    queue.PopFront();
  }
  const int* memory = queue.PushBack().data();
  queue.PopFront();
  for (int i = 0; i < 16; ++i) {
    std::vector<int>& element = queue.PushBack();
    element.assign(100, i);
    if (i == 15) {
      EXPECT_EQ(element.data(), memory);
    }
    queue.PopFront();
  }
}

TEST(RecycledList, ClearAndRemoveLastKeepMemory) {
  RecycledList<std::vector<int>> list;
  list.Add().assign(100, 1);
  list.Add().assign(100, 2);
  const int* first = list[0].data();
  const int* second = list.back().data();
  list.RemoveLast();
  EXPECT_EQ(list.size(), 1u);
  list.Clear();
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.begin(), list.end());
  EXPECT_EQ(list.Add().data(), first);
  EXPECT_EQ(list.Add().data(), second);
  EXPECT_EQ(list.end() - list.begin(), 2);
}

}  // namespace
}  // namespace tally
