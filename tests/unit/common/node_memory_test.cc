#include "common/transport/node_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <optional>

namespace tally {
namespace {

constexpr Nanos kBound = std::chrono::seconds(20);

// Two processes' worth of NodeMemory on one loop.
class NodeMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    arena_ = Arena::Make("test", 10000).value();
    for (std::size_t i = 0; i < 10000; ++i) arena_.bytes()[i] = static_cast<std::byte>(i % 251);
    endpoint_ = offerer_.Listen().value();
    guard_ = loop_.After(kBound, [this] {
      ADD_FAILURE() << "nothing happened";
      loop_.Stop();
    });
  }
  ~NodeMemoryTest() override { loop_.Cancel(guard_); }

  static ArenaRequest Inputs(std::uint32_t position) {
    return {77, EpochId(3), GroupId(2), ArenaKind::kInputs, Position(position), true};
  }
  Result<Mapping> Fetch(const ArenaRequest& what, std::uint64_t bytes, Nanos deadline = kBound, bool writable = false) {
    std::optional<Result<Mapping>> got;
    asker_.Fetch(endpoint_, what, bytes, writable, deadline, [&](Result<Mapping> result) {
      got.emplace(std::move(result));
      loop_.Stop();
    });
    loop_.Run();
    loop_.Restart();
    return got.has_value() ? std::move(*got) : Result<Mapping>(Timeout("no answer"));
  }
  void RunUntil(const bool& done) {
    while (!done && !testing::Test::HasFailure()) {
      loop_.After(std::chrono::milliseconds(1), [this] { loop_.Stop(); });
      loop_.Run();
      loop_.Restart();
    }
  }

  EventLoop loop_;
  Arena arena_;
  NodeMemory offerer_{&loop_}, asker_{&loop_};
  std::string endpoint_;
  EventLoop::TimerId guard_ = 0;
};

TEST_F(NodeMemoryTest, APeerMapsWhatIsOfferedAndTheOffererHearsOfIt) {
  std::optional<ArenaRequest> by;
  bool told = false;
  offerer_.Offer(Inputs(0), &arena_, [&](const ArenaRequest& asker, bool mapped) {
    by = asker;
    told = mapped;
  });
  auto mapping = Fetch(Inputs(5), 10000);
  ASSERT_TRUE(mapping.ok()) << mapping.status().ToString();
  EXPECT_EQ(std::memcmp(mapping->bytes().data(), arena_.bytes().data(), 10000), 0);
  RunUntil(told);
  ASSERT_TRUE(by.has_value());
  EXPECT_EQ(by->position, Position(5));
  EXPECT_TRUE(by->shares_result);
  arena_.bytes()[9999] = std::byte{7};
  EXPECT_EQ(mapping->bytes()[9999], std::byte{7}) << "the same memory, no copy";
  arena_ = Arena();
  EXPECT_EQ(mapping->bytes()[9999], std::byte{7}) << "it stays as long as it is mapped";
}

TEST_F(NodeMemoryTest, WhoAsksBeforeTheOfferIsAnsweredWithIt) {
  loop_.After(std::chrono::milliseconds(30), [this] { offerer_.Offer(Inputs(0), &arena_, [](const auto&, bool) {}); });
  EXPECT_TRUE(Fetch(Inputs(1), 10000).ok());
}

TEST_F(NodeMemoryTest, AWritableMappingReachesTheOthers) {
  offerer_.Offer(Inputs(0), &arena_, [](const auto&, bool) {});
  auto mapping = Fetch(Inputs(1), 10000, kBound, true);
  ASSERT_TRUE(mapping.ok());
  mapping->bytes()[1234] = std::byte{99};
  EXPECT_EQ(arena_.bytes()[1234], std::byte{99});
}

TEST_F(NodeMemoryTest, AnotherSizeIsRefusedAndTheOffererHearsThatItIsNotMapped) {
  bool heard = false, mapped = true;
  offerer_.Offer(Inputs(0), &arena_, [&](const auto&, bool was_mapped) {
    mapped = was_mapped;
    heard = true;
  });
  EXPECT_EQ(Fetch(Inputs(1), 9999).status().kind(), StatusKind::kMismatch);
  RunUntil(heard);
  EXPECT_FALSE(mapped);
}

TEST_F(NodeMemoryTest, WaitsAreBounded) {
  EXPECT_EQ(Fetch(Inputs(1), 10000, std::chrono::milliseconds(30)).status().kind(), StatusKind::kTimeout) << "no offer";
  ArenaRequest other_job = Inputs(1);
  other_job.job_hash = 78;
  offerer_.Offer(Inputs(0), &arena_, [](const auto&, bool) {});
  EXPECT_EQ(Fetch(other_job, 10000, std::chrono::milliseconds(30)).status().kind(), StatusKind::kTimeout);
  endpoint_ = "memfd://tally-of-nobody";
  EXPECT_EQ(Fetch(Inputs(1), 10000, std::chrono::milliseconds(30)).status().kind(), StatusKind::kUnavailable);
}

TEST_F(NodeMemoryTest, MemoryThatCouldShrinkIsNotMapped) {
  const int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  EXPECT_EQ(Mapping::Make(fd, 4096, false).status().kind(), StatusKind::kCorrupt);
}

TEST_F(NodeMemoryTest, GarbageAndSilenceDoNotDisturbTheOthers) {
  offerer_.Offer(Inputs(0), &arena_, [](const auto&, bool) {});
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = endpoint_.substr(kNodeMemoryScheme.size());
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  std::vector<int> strangers;
  for (int i = 0; i < 20; ++i) {
    strangers.push_back(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(strangers.back(), reinterpret_cast<const sockaddr*>(&address), length), 0);
    const std::string garbage(static_cast<std::size_t>(i) * 97, static_cast<char>(i));
    if (i % 3 != 0) (void)!send(strangers.back(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) close(std::exchange(strangers.back(), -1));
  }
  EXPECT_TRUE(Fetch(Inputs(1), 10000).ok());
  for (const int fd : strangers) {
    if (fd >= 0) close(fd);
  }
  EXPECT_TRUE(Fetch(Inputs(2), 10000).ok());
}

}  // namespace
}  // namespace tally
