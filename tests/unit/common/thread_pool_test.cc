// Every item once, whatever the number of threads, run after run.
#include "common/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>

namespace tally {
namespace {

TEST(ThreadPool, RunsEveryItemOnce) {
  for (const std::size_t threads : {1u, 2u, 3u, 7u}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const std::size_t count : {0u, 1u, 2u, 6u, 7u, 8u, 1009u}) {
      std::vector<std::atomic<int>> calls(count);
      for (int round = 0; round < 20; ++round) pool.Run(count, [&](std::size_t i) { ++calls[i]; });
      for (const auto& c : calls) ASSERT_EQ(c, 20) << threads << " threads, " << count << " items";
    }
  }
}

}  // namespace
}  // namespace tally
