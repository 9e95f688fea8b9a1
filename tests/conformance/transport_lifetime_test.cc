// The ends of links: releases, callbacks from inside callbacks, reconnecting, what is left behind.
#include <algorithm>
#include <filesystem>

#include "tests/conformance/transport_harness.h"

namespace tally {
namespace {

using LifetimeTest = TransportTest;
class TwoLoopsTest : public TransportTest {};  // each end has a transport of its own
using std::chrono::milliseconds;

constexpr std::size_t kLarge = 1 << 20;

std::size_t Entries(const char* directory) {
  std::size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++entries;
  return entries;
}

TEST_P(LifetimeTest, CloseReleasesWhatWasNotWrittenBeforeItReturns) {
  StartPair();
  server->Do([&] { accepted().PauseReceive(true); });
  client->Do([&] {
    for (int i = 0; i < 60; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
  });
  client->Do([&] {
    link->Close();
    EXPECT_EQ(out.released(), 60u);
    EXPECT_TRUE(out.EachReleasedOnce());
    EXPECT_EQ(link->queued_bytes(), 0u);
    const Status after = out.Send(*link, 10);
    EXPECT_EQ(after.kind(), StatusKind::kUnavailable);
    EXPECT_EQ(out.released(), 61u);
    link->Close();
  });
  std::this_thread::sleep_for(milliseconds(20));
  client->Do([&] {
    EXPECT_TRUE(inbox.closed.empty()) << "no callback after one's own Close";
    link.reset();
    EXPECT_TRUE(out.EachReleasedOnce());
  });
}

TEST_P(LifetimeTest, DestructionReleasesInTheMiddleOfASend) {
  StartPair();
  client->Do([&] {
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
    link.reset();
    EXPECT_TRUE(out.EachReleasedOnce());
  });
  link = Dial(2);
  ASSERT_NE(link, nullptr);
  client->Do([&] {
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
  });
  EXPECT_TRUE(client->WaitFor([&] { return out.released() > 30; }));
  client->Do([&] {
    link.reset();
    EXPECT_TRUE(out.EachReleasedOnce());
  });
}

TEST_P(LifetimeTest, APeersDeathClosesOnceWithAReasonAndReleases) {
  StartPair();
  server->Do([&] { accepted().PauseReceive(true); });
  client->Do([&] {
    for (int i = 0; i < 60; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
    inbox.on_closed = [&](Link& closed, const Status&) {
      EXPECT_EQ(out.Send(closed, 10).kind(), StatusKind::kUnavailable);
    };
  });
  server->Do([&] { door.links.clear(); });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.closed.size() == 1; }));
  client->Do([&] {
    EXPECT_FALSE(inbox.closed[0].ok());
    EXPECT_FALSE(inbox.closed[0].text().empty());
    EXPECT_TRUE(out.EachReleasedOnce());
    EXPECT_EQ(out.released(), 61u);
  });
  std::this_thread::sleep_for(milliseconds(20));
  client->Do([&] { EXPECT_EQ(inbox.closed.size(), 1u); });
}

TEST_P(LifetimeTest, AnIdleLinkLearnsThatItsPeerWent) {
  StartPair();
  client->Do([&] { link.reset(); });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.closed.size() == 1; }));
  server->Do([&] {
    EXPECT_FALSE(door.inbox.closed[0].text().empty());
    EXPECT_EQ(back.Send(accepted(), 10).kind(), StatusKind::kUnavailable);
    EXPECT_TRUE(back.EachReleasedOnce());
  });
}

TEST_P(LifetimeTest, FramesBeforeAnOrderlyEndStillArrive) {
  StartPair();
  client->Do([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(out.Send(*link, 1000).ok());
  });
  EXPECT_TRUE(client->WaitFor([&] { return out.released() == 20; }));
  client->Do([&] { link.reset(); });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.closed.size() == 1; }));
  server->Do([&] { EXPECT_TRUE(door.inbox.IsInOrder()); });
}

TEST_P(TwoLoopsTest, ATransportThatGoesClosesItsLinks) {
  StartPair();
  client->Do([&] {
    for (int i = 0; i < 60; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
  });
  client->DestroyTransport();
  client->Do([&] {
    EXPECT_TRUE(out.EachReleasedOnce());
    EXPECT_EQ(out.Send(*link, 10).kind(), StatusKind::kUnavailable);
    EXPECT_FALSE(link->Describe().empty());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.closed.size() == 1; }));
}

TEST_P(LifetimeTest, CloseFromInsideOnFrame) {
  StartPair();
  server->Do([&] {
    door.inbox.on_frame = [&](Link& from, Frame&) { from.Close(); };
  });
  client->Do([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(out.Send(*link, 1000).ok());
  });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.closed.size() == 1; }));
  server->Do([&] {
    EXPECT_EQ(door.inbox.frames, 1u);
    EXPECT_TRUE(door.inbox.closed.empty());
  });
  client->Do([&] { EXPECT_TRUE(out.EachReleasedOnce()); });
}

TEST_P(LifetimeTest, DestructionFromInsideOnFrame) {
  StartPair();
  server->Do([&] {
    door.inbox.on_frame = [&](Link&, Frame& frame) {
      door.links.clear();
      EXPECT_TRUE(IsPayload(0, frame.payload)) << "the frame outlives its link";
    };
  });
  client->Do([&] {
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(out.Send(*link, 100000).ok());
  });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.closed.size() == 1; }));
  server->Do([&] { EXPECT_EQ(door.inbox.frames, 1u); });
}

TEST_P(LifetimeTest, DestructionFromInsideOnClosed) {
  StartPair();
  client->Do([&] {
    inbox.on_closed = [&](Link&, const Status&) { link.reset(); };
    for (int i = 0; i < 50; ++i) EXPECT_TRUE(out.Send(*link, kLarge).ok());
  });
  server->Do([&] { door.links.clear(); });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.closed.size() == 1 && link == nullptr; }));
  client->Do([&] { EXPECT_TRUE(out.EachReleasedOnce()); });
}

TEST_P(LifetimeTest, AReleaseMaySendTheNextFrameOrEndTheLink) {
  StartPair();
  struct Chain {
    Link* to;
    int left;
    std::vector<std::byte> memory;
    std::unique_ptr<Link>* owner;
    void Next() {
      (void)to->Send({}, memory, {[](void* context, std::uint64_t) {
                                    auto* self = static_cast<Chain*>(context);
                                    if (--self->left > 0) return self->Next();
                                    self->owner->reset();
                                  },
                                  this, 0});
    }
  } chain{link.get(), 100, std::vector<std::byte>(3000), &link};
  client->Do([&] { chain.Next(); });
  EXPECT_TRUE(client->WaitFor([&] { return link == nullptr; }));
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.closed.size() == 1; }));
  client->Do([&] { EXPECT_EQ(chain.left, 0); });
}

TEST_P(LifetimeTest, TheHandlerMayChangeBetweenFrames) {
  StartPair();
  Inbox second;
  server->Do([&] {
    door.inbox.on_frame = [&](Link& from, Frame&) { from.handler = &second; };
  });
  client->Do([&] {
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(out.Send(*link, 100).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return second.frames == 9; }));
  server->Do([&] {
    EXPECT_EQ(door.inbox.frames, 1u);
    door.links.clear();
  });
}

TEST_P(LifetimeTest, ReconnectingWorksEveryTime) {
  Start();
  Listen();
  for (std::uint32_t round = 0; round < 30; ++round) {
    link = Dial(round);
    ASSERT_NE(link, nullptr);
    const std::size_t before = server->Do([&] { return door.inbox.frames; });
    client->Do([&] {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(out.Send(*link, 2000).ok());
    });
    ASSERT_TRUE(server->WaitFor([&] { return door.inbox.frames == before + 5; })) << round;
    if (round % 2 == 0) {
      client->Do([&] { link.reset(); });
    } else {
      server->Do([&] { door.links.back()->Close(); });
      ASSERT_TRUE(client->WaitFor([&] { return !inbox.closed.empty(); })) << round;
      client->Do([&] {
        inbox.closed.clear();
        link.reset();
      });
    }
  }
}

TEST_P(LifetimeTest, FiveHundredCyclesLeaveNothingBehind) {
  Start();
  Listen();
  server->Do([&] {
    door.inbox.on_closed = [&](Link& closed, const Status&) {
      std::erase_if(door.links, [&](const auto& held) { return held.get() == &closed; });
    };
  });
  const auto cycle = [&](std::uint32_t round) {
    auto made = client->Dial(endpoint, Worker(round), &inbox);
    ASSERT_TRUE(made.ok()) << made.status().text();
    client->Do([&] {
      if (round % 3 == 0) {
        EXPECT_TRUE(out.Send(*made.value(), 100).ok());
      }
      made.value().reset();
    });
  };
  const auto settled = [&] { return server->WaitFor([&] { return door.links.empty(); }); };
  for (std::uint32_t round = 0; round < 10; ++round) cycle(round);
  ASSERT_TRUE(settled());
  const std::size_t descriptors = Entries("/proc/self/fd"), threads = Entries("/proc/self/task");
  for (std::uint32_t round = 0; round < 500; ++round) cycle(round);
  ASSERT_TRUE(settled());
  EXPECT_TRUE(server->WaitFor([&] { return Entries("/proc/self/fd") <= descriptors; }))
      << Entries("/proc/self/fd") << " descriptors, before " << descriptors;
  EXPECT_LE(Entries("/proc/self/task"), threads);
  client->Do([&] { EXPECT_TRUE(out.EachReleasedOnce()); });
}

TALLY_EVERY_TRANSPORT(LifetimeTest);
TALLY_TRANSPORT_SUITE(TwoLoopsTest, TransportNames(), testing::Values(true));

}  // namespace
}  // namespace tally
