#include "common/loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace tally {
namespace {

using std::chrono::milliseconds;

TEST(EventLoop, RunsTasksInOrderOfPost) {
  EventLoop loop;
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) loop.Post([&, i] { order.push_back(i); });
  loop.Post([&] { loop.Stop(); });
  EXPECT_TRUE(order.empty());
  loop.Run();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(EventLoop, PostFromInsideRunsLater) {
  EventLoop loop;
  std::vector<int> order;
  loop.Post([&] {
    loop.Post([&] {
      order.push_back(2);
      loop.Stop();
    });
    order.push_back(1);
  });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(EventLoop, PostFromManyThreadsKeepsEachThreadsOrder) {
  constexpr int kThreads = 4, kEach = 2000;
  EventLoop loop;
  std::vector<int> next(kThreads, 0);
  int done = 0;
  bool in_order = true;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        loop.Post([&, t, i] {
          in_order = in_order && next[static_cast<std::size_t>(t)]++ == i;
          if (++done == kThreads * kEach) loop.Stop();
        });
      }
    });
  }
  loop.Run();
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(done, kThreads * kEach);
}

TEST(EventLoop, StopBeforeRunReturnsAtOnceAndRestartRunsAgain) {
  EventLoop loop;
  int ran = 0;
  loop.Post([&] { ++ran; });
  loop.Stop();
  loop.Run();
  EXPECT_EQ(ran, 0);
  loop.Restart();
  loop.Post([&] { loop.Stop(); });
  loop.Run();
  EXPECT_EQ(ran, 1);
}

TEST(EventLoop, StopInTheMiddleKeepsTheRestInOrder) {
  EventLoop loop;
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) {
    loop.Post([&, i] {
      order.push_back(i);
      if (i % 3 == 0) loop.Stop();
    });
  }
  for (const std::size_t ran : {1u, 4u, 7u, 10u}) {
    loop.Run();
    EXPECT_EQ(order.size(), ran);
    if (ran == 1) loop.Post([&] { order.push_back(10); });
    loop.Restart();
  }
  loop.Post([&] { loop.Stop(); });
  loop.Run();
  for (int i = 0; i < 11; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(EventLoop, StopFromAnotherThreadWakesAnIdleLoop) {
  EventLoop loop;
  std::atomic<bool> running{false};
  loop.Post([&] { running = true; });
  std::thread other([&] {
    while (!running) std::this_thread::yield();
    loop.Stop();
  });
  loop.Run();
  other.join();
}

TEST(EventLoop, TimersRunOnceInOrderOfTimeAndNeverInsideAfter) {
  EventLoop loop;
  std::vector<int> order;
  // Far apart: each counts from its own call, between which this thread may not run for a while.
  loop.After(milliseconds(800), [&] {
    order.push_back(3);
    loop.Stop();
  });
  loop.After(milliseconds(400), [&] { order.push_back(2); });
  loop.After(Nanos(0), [&] { order.push_back(1); });
  loop.After(Nanos(-5), [&] { order.push_back(0); });
  EXPECT_TRUE(order.empty());
  loop.Run();
  ASSERT_EQ(order.size(), 4u);
  std::sort(order.begin(), order.begin() + 2);  // both were due at once
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(EventLoop, ATimerIsNotEarly) {
  EventLoop loop;
  const TimePoint start = loop.Now();
  TimePoint end;
  loop.After(milliseconds(3), [&] {
    end = loop.Now();
    loop.Stop();
  });
  loop.Run();
  EXPECT_GE(end - start, milliseconds(3));
}

TEST(EventLoop, CancelledTimersNeverRunEvenWhenAlreadyDue) {
  EventLoop loop;
  bool ran = false;
  const auto far = loop.After(std::chrono::hours(1), [&] { ran = true; });
  EventLoop::TimerId second = 0;
  // Both are due in the same wake-up: the first cancels the second.
  loop.After(milliseconds(1), [&] { loop.Cancel(second); });
  second = loop.After(milliseconds(1), [&] { ran = true; });
  loop.Post([&] {
    loop.Cancel(far);
    loop.Cancel(far);
    loop.Cancel(987654321);
    std::this_thread::sleep_for(milliseconds(3));
  });
  loop.After(milliseconds(10), [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(ran);
}

TEST(EventLoop, ManyTimersSetAndCancelledInAnyOrder) {
  EventLoop loop;
  std::vector<int> ran;
  std::vector<EventLoop::TimerId> timers;
  for (int i = 0; i < 200; ++i) {
    timers.push_back(loop.After(milliseconds((i * 37) % 50), [&, i] { ran.push_back(i); }));
  }
  for (int i = 0; i < 200; i += 3) loop.Cancel(timers[static_cast<std::size_t>((i * 71) % 200)]);
  std::vector<int> expected;
  for (int at = 0; at < 50; ++at) {
    for (int i = 0; i < 200; ++i) {
      bool cancelled = false;
      for (int c = 0; c < 200; c += 3) cancelled = cancelled || (c * 71) % 200 == i;
      if ((i * 37) % 50 == at && !cancelled) expected.push_back(i);
    }
  }
  loop.After(milliseconds(50), [&] { loop.Stop(); });  // later than all, as made after them
  loop.Run();
  std::ranges::sort(ran);
  std::ranges::sort(expected);
  EXPECT_EQ(ran, expected);
}

TEST(EventLoop, ATimerMayCancelItselfAndSetAnother) {
  EventLoop loop;
  int ran = 0;
  EventLoop::TimerId first = 0;
  first = loop.After(milliseconds(1), [&] {
    loop.Cancel(first);
    ++ran;
    loop.After(milliseconds(1), [&] {
      ++ran;
      loop.Stop();
    });
  });
  loop.Run();
  EXPECT_EQ(ran, 2);
}

TEST(EventLoop, KnowsItsThread) {
  EventLoop loop;
  EXPECT_FALSE(loop.InLoopThread());
  bool inside = false, other_thread = true;
  loop.Post([&] {
    inside = loop.InLoopThread();
    std::thread([&] { other_thread = loop.InLoopThread(); }).join();
    loop.Stop();
  });
  loop.Run();
  EXPECT_TRUE(inside);
  EXPECT_FALSE(other_thread);
  EXPECT_FALSE(loop.InLoopThread());
}

TEST(EventLoop, DestructionDropsWhatNeverRan) {
  auto token = std::make_shared<int>(1);
  {
    EventLoop loop;
    loop.Post([token] { FAIL(); });
    loop.After(Nanos(0), [token] { FAIL(); });
    loop.After(std::chrono::hours(1), [token] { FAIL(); });
    EXPECT_EQ(token.use_count(), 4);
  }
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace tally
