#include "common/transport/rate_limiter.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

namespace tally {
namespace {

using Direction = RateLimiter::Direction;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kGigabit = 1e9;
constexpr std::uint64_t kFrame = 125000;  // 1 ms of a gigabit
const TimePoint kStart = TimePoint(seconds(1000));

std::string UniqueNic(const char* name) { return std::string(name) + "-" + std::to_string(::getpid()); }

// Where the shared file of `nic` is; empty if there is none.
std::filesystem::path FileOf(const std::string& nic) {
  const std::string name = "tally-nic-" + std::to_string(::geteuid()) + "-" + nic;
  for (const std::string directory : {"/dev/shm", "/tmp"}) {
    if (std::filesystem::exists(std::filesystem::symlink_status(directory + "/" + name))) return directory + "/" + name;
  }
  const std::string runtime = "/run/user/" + std::to_string(::geteuid()) + "/" + name;
  return std::filesystem::exists(std::filesystem::symlink_status(runtime)) ? runtime : "";
}

TEST(RateLimiter, RefusesSenselessRatesAndNames) {
  for (const double rate : {0.0, -1.0, 0.5, std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(RateLimiter::Make(rate, "").status().kind(), StatusKind::kInvalidArgument);
  }
  for (const std::string nic : {"a/b", "../x", "a b", "\n", "ü"}) {
    EXPECT_EQ(RateLimiter::Make(1, nic).status().kind(), StatusKind::kInvalidArgument);
  }
  EXPECT_EQ(RateLimiter::Make(1, std::string(65, 'a')).status().kind(), StatusKind::kInvalidArgument);
}

TEST(RateLimiter, ALongTransferTakesExactlyItsTime) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  for (const Direction direction : {Direction::kSend, Direction::kReceive}) {
    TimePoint now = kStart;
    for (int i = 0; i < 1000; ++i) now += limiter->Reserve(direction, kFrame, now);
    // 1,000 frames of 1 ms, less at most the slack and the first frame's head start on the receiving side.
    EXPECT_LE(now - kStart, seconds(1));
    EXPECT_GE(now - kStart, seconds(1) - milliseconds(2));
  }
}

TEST(RateLimiter, LateTimersCostNoThroughput) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  TimePoint now = kStart;
  for (int i = 0; i < 1000; ++i) {
    const Nanos wait = limiter->Reserve(Direction::kSend, kFrame, now);
    now += wait + std::chrono::microseconds(i % 7 * 100);  // up to 0.6 ms late
  }
  EXPECT_LE(now - kStart, seconds(1) + milliseconds(1));
  EXPECT_GE(now - kStart, seconds(1) - milliseconds(2));
}

TEST(RateLimiter, IdleTimeIsNotSavedUp) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  (void)limiter->Reserve(Direction::kSend, kFrame, kStart);
  const TimePoint later = kStart + seconds(100);
  Nanos wait{};
  for (int i = 0; i < 10; ++i) wait = limiter->Reserve(Direction::kSend, kFrame, later);
  EXPECT_EQ(wait, milliseconds(9));  // ten frames less the slack of 1 ms
}

TEST(RateLimiter, ALoneStreamIsNotChargedTwice) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  TimePoint now = kStart;
  Nanos extra{};
  for (int i = 0; i < 100; ++i) {
    now += limiter->Reserve(Direction::kSend, kFrame, now);
    extra += limiter->Reserve(Direction::kReceive, kFrame, now);
  }
  EXPECT_EQ(extra, Nanos(0));
}

TEST(RateLimiter, TwoSendersIntoOneReceiverShareItsRate) {
  const auto receiver = RateLimiter::Make(kGigabit, "").value();
  const std::vector<std::shared_ptr<RateLimiter>> senders = {RateLimiter::Make(kGigabit, "").value(),
                                                             RateLimiter::Make(kGigabit, "").value()};
  TimePoint now = kStart;
  TimePoint last;
  for (int i = 0; i < 500; ++i) {
    now += milliseconds(1);  // both senders put a frame on the wire every millisecond
    for (const auto& sender : senders) {
      (void)sender->Reserve(Direction::kSend, kFrame, now - milliseconds(1));
      last = std::max(last, now + receiver->Reserve(Direction::kReceive, kFrame, now));
    }
  }
  EXPECT_GE(last - kStart, milliseconds(998));
  EXPECT_LE(last - kStart, milliseconds(1001));
}

TEST(RateLimiter, DirectionsAreIndependent) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  (void)limiter->Reserve(Direction::kSend, 1000 * kFrame, kStart);
  EXPECT_EQ(limiter->Reserve(Direction::kReceive, kFrame, kStart), Nanos(0));
}

TEST(RateLimiter, ThreadsTogetherGetTheRateAndNoMore) {
  const auto limiter = RateLimiter::Make(kGigabit, "").value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) (void)limiter->Reserve(Direction::kSend, kFrame, kStart);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(limiter->Reserve(Direction::kSend, kFrame, kStart), milliseconds(4000));
}

TEST(RateLimiter, OneNicHasOnePairOfClocks) {
  const std::string nic = UniqueNic("pair");
  const auto first = RateLimiter::Make(kGigabit, nic).value();
  const auto second = RateLimiter::Make(kGigabit, nic).value();
  (void)first->Reserve(Direction::kSend, 10 * kFrame, kStart);
  EXPECT_EQ(second->Reserve(Direction::kSend, kFrame, kStart), milliseconds(10));
  const auto other = RateLimiter::Make(kGigabit, UniqueNic("other")).value();
  EXPECT_EQ(other->Reserve(Direction::kSend, kFrame, kStart), Nanos(0));
}

TEST(RateLimiter, AnotherRateOnTheSameNicIsAMismatch) {
  const std::string nic = UniqueNic("rate");
  const auto first = RateLimiter::Make(kGigabit, nic).value();
  const Status status = RateLimiter::Make(2 * kGigabit, nic).status();
  EXPECT_EQ(status.kind(), StatusKind::kMismatch);
  EXPECT_NE(status.text().find("1000000000"), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("2000000000"), std::string::npos) << status.text();
}

TEST(RateLimiter, TheFileIsPrivateAndGoesWithItsLastUser) {
  const std::string nic = UniqueNic("last");
  auto first = RateLimiter::Make(kGigabit, nic).value();
  auto second = RateLimiter::Make(kGigabit, nic).value();
  const auto file = FileOf(nic);
  ASSERT_FALSE(file.empty());
  struct stat info {};
  ASSERT_EQ(::stat(file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
  first.reset();
  EXPECT_FALSE(FileOf(nic).empty());
  second.reset();
  EXPECT_TRUE(FileOf(nic).empty());
  // With nobody left, another rate is fine.
  EXPECT_TRUE(RateLimiter::Make(3 * kGigabit, nic).ok());
}

// Runs `body` in a child process and returns its exit status.
template <typename Body>
int InChild(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(RateLimiter, ProcessesShareANicAndAKilledOneIsSwept) {
  const std::string nic = UniqueNic("shared");
  {
    const auto mine = RateLimiter::Make(kGigabit, nic).value();
    const int status = InChild([&] {
      // The child inherits the parent's descriptor; what it opens itself dies with it.
      auto own = RateLimiter::Make(kGigabit, nic);
      if (!own.ok()) ::_exit(1);
      (void)own.value()->Reserve(Direction::kSend, 10 * kFrame, kStart);
      ::_exit(0);
    });
    EXPECT_EQ(status, 0);
    EXPECT_EQ(mine->Reserve(Direction::kSend, kFrame, kStart), milliseconds(10));
  }
  EXPECT_TRUE(FileOf(nic).empty());

  const int killed = InChild([&] {
    const auto own = RateLimiter::Make(kGigabit, nic);
    (void)own.value()->Reserve(Direction::kSend, 1000 * kFrame, kStart);
    ::raise(SIGKILL);
  });
  EXPECT_TRUE(WIFSIGNALED(killed));
  const auto other = RateLimiter::Make(kGigabit, UniqueNic("sweeper")).value();
  EXPECT_TRUE(FileOf(nic).empty()) << "the next user of any NIC removes what nobody holds";
  const auto fresh = RateLimiter::Make(kGigabit, nic).value();
  EXPECT_EQ(fresh->Reserve(Direction::kSend, kFrame, kStart), Nanos(0));
}

TEST(RateLimiter, FollowsNoSymlinkAndSparesItsTarget) {
  const std::string nic = UniqueNic("link");
  std::filesystem::path place;
  {
    const auto limiter = RateLimiter::Make(kGigabit, nic).value();
    place = FileOf(nic);
  }
  const auto target = std::filesystem::temp_directory_path() / ("tally-target-" + std::to_string(::getpid()));
  std::ofstream(target) << "precious";
  std::filesystem::create_symlink(target, place);
  const Status status = RateLimiter::Make(kGigabit, nic).status();
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_NE(status.text().find(place.string()), std::string::npos) << status.text();
  std::string content;
  std::ifstream(target) >> content;
  EXPECT_EQ(content, "precious");
  std::filesystem::remove(place);
  std::filesystem::remove(target);
}

TEST(RateLimiter, ManyProcessesComeAndGoTogether) {
  const std::string nic = UniqueNic("churn");
  std::vector<pid_t> children;
  for (int c = 0; c < 6; ++c) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 0; i < 50; ++i) {
        if (!RateLimiter::Make(kGigabit, nic).ok()) ::_exit(1);
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(FileOf(nic).empty());
}

}  // namespace
}  // namespace tally
