// Frames on a link: order, bounds, back-pressure, both directions, pacing.
#include <algorithm>
#include <random>

#include "common/transport/rate_limiter.h"
#include "tests/conformance/transport_harness.h"

namespace tally {
namespace {

using FramesTest = TransportTest;
using PacedTest = TransportTest;
using std::chrono::milliseconds;

TEST_P(FramesTest, EveryHeaderFieldArrives) {
  StartPair();
  FrameHeader header;
  header.job_hash = 77;
  header.epoch = EpochId{3};
  header.incarnation = 5;
  header.group = GroupId{1};
  header.bucket = BucketId{4};
  header.position = 2;
  header.kind = FrameKind::kPartial;
  header.codec = 3;
  header.codec_version = 1;
  header.flags = kFlagPreviousSkipped;
  header.weight = 0.5;
  header.slabs = {1, 5, 9};
  header.contributors = {0, 2};
  header.collective = {1000, DType::kFloat16, ReduceOp::kSum, 3};
  client->Do([&] { EXPECT_TRUE(out.Send(*link, 321, header).ok()); });
  ASSERT_TRUE(server->WaitFor([&] { return door.inbox.frames == 1; }));
  server->Do([&] {
    const FrameHeader& got = door.inbox.entries[0].header;
    EXPECT_EQ(got.job_hash, header.job_hash);
    EXPECT_EQ(got.epoch, header.epoch);
    EXPECT_EQ(got.incarnation, header.incarnation);
    EXPECT_EQ(got.group, header.group);
    EXPECT_EQ(got.bucket, header.bucket);
    EXPECT_EQ(got.position, header.position);
    EXPECT_EQ(got.kind, header.kind);
    EXPECT_EQ(got.codec, header.codec);
    EXPECT_EQ(got.codec_version, header.codec_version);
    EXPECT_EQ(got.flags, header.flags);
    EXPECT_EQ(got.weight, header.weight);
    EXPECT_EQ(got.slabs, header.slabs);
    EXPECT_EQ(got.contributors, header.contributors);
    EXPECT_EQ(got.collective, header.collective);
    EXPECT_EQ(got.payload_bytes, 321u);
    EXPECT_TRUE(door.inbox.IsInOrder());
  });
}

TEST_P(FramesTest, TenThousandFramesOfAllSizesInOrder) {
  constexpr std::size_t kFrames = 10000;
  StartPair();
  std::mt19937 random(1);
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < kFrames; ++i) {
    sizes.push_back(i % 2000 == 999 ? kMaxPayloadBytes : i % 100 == 7 ? 65537 : i % 10 == 3 ? 0 : random() % 2000);
  }
  std::size_t checked = 0;
  bool good = true;
  server->Do([&] {
    door.inbox.on_frame = [&](Link&, Frame& frame) {
      good = good && frame.header.step.value == checked && frame.payload.size() == sizes[checked] &&
             IsPayload(checked, frame.payload);
      ++checked;
    };
  });
  for (std::size_t first = 0; first < kFrames; first += 500) {
    client->Do([&] {
      for (std::size_t i = first; i < first + 500; ++i) EXPECT_TRUE(out.Send(*link, sizes[i]).ok());
    });
  }
  EXPECT_TRUE(server->WaitFor([&] { return checked == kFrames; }));
  EXPECT_TRUE(client->WaitFor([&] { return out.released() == kFrames; }));
  client->Do([&] {
    EXPECT_TRUE(good);
    EXPECT_TRUE(out.EachReleasedOnce());
    EXPECT_EQ(link->queued_bytes(), 0u);
    EXPECT_GE(link->stats().frames_sent, kFrames);
  });
  server->Do([&] {
    EXPECT_GE(accepted().stats().frames_received, kFrames);
    EXPECT_TRUE(door.inbox.closed.empty());
  });
}

TEST_P(FramesTest, BothDirectionsAtOnce) {
  constexpr std::size_t kFrames = 400;
  StartPair();
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) EXPECT_TRUE(out.Send(*link, 65000 + i).ok());
  });
  server->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) EXPECT_TRUE(back.Send(accepted(), 70000 + i).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == kFrames; }));
  EXPECT_TRUE(client->WaitFor([&] { return inbox.frames == kFrames; }));
  server->Do([&] { EXPECT_TRUE(door.inbox.IsInOrder()); });
  client->Do([&] { EXPECT_TRUE(inbox.IsInOrder()); });
  EXPECT_TRUE(client->WaitFor([&] { return out.EachReleasedOnce(); }));
  EXPECT_TRUE(server->WaitFor([&] { return back.EachReleasedOnce(); }));
}

TEST_P(FramesTest, WithoutPayloadCrc) {
  LinkOptions options;
  options.payload_crc = false;
  StartPair(options);
  client->Do([&] {
    for (std::size_t i = 0; i < 50; ++i) EXPECT_TRUE(out.Send(*link, 5000 * i).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 50; }));
  server->Do([&] { EXPECT_TRUE(door.inbox.IsInOrder()); });
}

TEST_P(FramesTest, TheAcceptorMaySendFirst) {
  Start();
  Listen();
  server->Do([&] {
    door.on_accepted = [&](Link& to) {
      for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(back.Send(to, 1000 * i).ok());
    };
  });
  link = Dial();
  ASSERT_NE(link, nullptr);
  EXPECT_TRUE(client->WaitFor([&] { return inbox.frames == 20; }));
  client->Do([&] { EXPECT_TRUE(inbox.IsInOrder()); });
}

TEST_P(FramesTest, PooledPayloadsArriveWholeAndTheirBlocksComeBack) {
  constexpr std::size_t kFrames = 200;
  StartPair();
  bool good = true;
  std::size_t checked = 0;
  server->Do([&] {
    door.inbox.on_frame = [&](Link&, Frame& frame) {
      good = good && frame.payload.size() == 1000 + checked &&
             std::ranges::all_of(frame.payload, [&](std::byte b) { return b == static_cast<std::byte>(checked); });
      ++checked;
    };
  });
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) {
      BufferRef block = client->pool.Get(1100 + i);
      std::ranges::fill(block.bytes(), static_cast<std::byte>(i));
      const std::span<const std::byte> payload = block.bytes().subspan(100);
      EXPECT_TRUE(link->Send({}, payload, std::move(block).IntoRelease()).ok());
    }
  });
  EXPECT_TRUE(server->WaitFor([&] { return checked == kFrames; }));
  EXPECT_TRUE(good);
  // Received frames are dropped with the callback, sent ones with the last byte. What a transport keeps for its next
  // reads does not grow with the number of frames.
  EXPECT_TRUE(client->WaitFor([&] { return client->pool.stats().in_use_bytes <= (4u << 20); }));
}

TEST_P(FramesTest, AFrameMayBeKeptBeyondItsLinkAndTransport) {
  StartPair();
  std::vector<Frame> kept;
  server->Do([&] {
    door.inbox.on_frame = [&](Link&, Frame& frame) { kept.push_back(std::move(frame)); };
  });
  client->Do([&] {
    for (std::size_t i = 0; i < 10; ++i) EXPECT_TRUE(out.Send(*link, 100000 + i).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return kept.size() == 10; }));
  client->Do([&] { link.reset(); });
  server->Do([&] {
    door.links.clear();
    server->transport.reset();
    for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(IsPayload(i, kept[i].payload)) << i;
    kept.clear();
  });
}

TEST_P(FramesTest, WhatAReceiverMayChangeIsItsOwn) {
  StartPair();
  server->Do([&] {
    door.inbox.on_frame = [&](Link&, Frame& frame) {
      if (frame.hold.unique()) std::ranges::fill(frame.payload, std::byte{0xEE});
    };
  });
  std::vector<std::byte> memory(70000, std::byte{0x11});
  int released = 0;
  const Release release{[](void* context, std::uint64_t) { ++*static_cast<int*>(context); }, &released, 0};
  client->Do([&] {
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(link->Send({}, memory, release).ok());  // the same bytes five times
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 5; }));
  EXPECT_TRUE(client->WaitFor([&] { return released == 5; }));
  EXPECT_TRUE(std::ranges::all_of(memory, [](std::byte b) { return b == std::byte{0x11}; }));
}

TEST_P(FramesTest, PauseHoldsTheSenderBackAndNothingIsLost) {
  constexpr std::size_t kFrames = 100;
  StartPair();
  server->Do([&] { accepted().PauseReceive(true); });
  std::vector<std::byte> memory(2 << 20, std::byte{0x22});  // 200 MiB in all, far beyond any buffer on the way
  std::size_t released = 0;
  const Release release{[](void* context, std::uint64_t) { ++*static_cast<std::size_t*>(context); }, &released, 0};
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) {
      FrameHeader header;
      header.step = StepId{i};
      EXPECT_TRUE(link->Send(header, memory, release).ok());
    }
  });
  // Until no more goes out.
  std::size_t before = 0;
  for (int quiet = 0; quiet < 10;) {
    std::this_thread::sleep_for(milliseconds(20));
    const std::size_t now = client->Do([&] { return released; });
    quiet = now == before ? quiet + 1 : 0;
    before = now;
  }
  EXPECT_LT(before, kFrames);
  client->Do([&] { EXPECT_GT(link->queued_bytes(), 0u); });
  server->Do([&] {
    EXPECT_LE(door.inbox.frames, 1u);
    door.inbox.on_frame = [](Link&, Frame&) {};
    accepted().PauseReceive(false);
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == kFrames; }));
  EXPECT_TRUE(client->WaitFor([&] { return released == kFrames && link->queued_bytes() == 0; }));
}

TEST_P(FramesTest, PausingAtEveryFrameLosesNoWakeUp) {
  constexpr std::size_t kFrames = 600;
  StartPair();
  server->Do([&] {
    door.inbox.on_frame = [&](Link& from, Frame& frame) {
      EXPECT_TRUE(IsPayload(frame.header.step.value, frame.payload));
      from.PauseReceive(true);
      const auto resume = [&from] { from.PauseReceive(false); };
      if (frame.header.step.value % 3 == 0) {
        server->loop.After(std::chrono::microseconds(100), resume);
      } else {
        server->loop.Post(resume);
      }
    };
  });
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) EXPECT_TRUE(out.Send(*link, i % 5 == 0 ? 0 : 300 * i).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == kFrames; }));
  // A pause that ends while nothing waits must not lose what comes later.
  server->Do([&] {
    accepted().PauseReceive(true);
    accepted().PauseReceive(false);
  });
  client->Do([&] { EXPECT_TRUE(out.Send(*link, 5).ok()); });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == kFrames + 1; }));
  std::this_thread::sleep_for(milliseconds(5));  // the last timer refers to the link
  server->Do([] {});
}

TEST_P(FramesTest, APayloadBeyondTheLimitIsRefusedAtOnce) {
  StartPair();
  client->Do([&] {
    const Status status = out.Send(*link, kMaxPayloadBytes + 1);
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_NE(status.text().find("4194305"), std::string::npos) << status.text();
    EXPECT_TRUE(out.EachReleasedOnce());
    EXPECT_TRUE(out.Send(*link, kMaxPayloadBytes).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 1; }));
}

TEST_P(FramesTest, MoreFramesThanTheQueueTakesAreRefused) {
  LinkOptions options;
  options.max_queued_frames = 10;
  StartPair(options);
  server->Do([&] { accepted().PauseReceive(true); });
  client->Do([&] {
    std::size_t taken = 0;
    while (taken < 1000 && out.Send(*link, 2 << 20).ok()) ++taken;
    EXPECT_GE(taken, 10u);
    EXPECT_LT(taken, 1000u);
    EXPECT_EQ(out.Send(*link, 1).kind(), StatusKind::kInvalidArgument);
  });
  server->Do([&] { accepted().PauseReceive(false); });
  EXPECT_TRUE(client->WaitFor([&] { return out.EachReleasedOnce() && link->queued_bytes() == 0; }));
  client->Do([&] { EXPECT_TRUE(out.Send(*link, 1).ok()); });
  EXPECT_TRUE(server->WaitFor(
      [&] { return !door.inbox.entries.empty() && door.inbox.entries.back().payload.size() == 1; }));
}

TEST_P(FramesTest, AFrameBeyondTheReceiversLimitEndsTheLink) {
  LinkOptions strict;
  strict.max_payload_bytes = 1000;
  StartPair(strict, LinkOptions{});
  client->Do([&] {
    EXPECT_TRUE(out.Send(*link, 1000).ok());
    EXPECT_TRUE(out.Send(*link, 1001).ok());
    EXPECT_TRUE(out.Send(*link, 10).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.closed.size() == 1; }));
  server->Do([&] {
    EXPECT_EQ(door.inbox.frames, 1u);
    EXPECT_EQ(door.inbox.closed[0].kind(), StatusKind::kCorrupt) << door.inbox.closed[0].ToString();
  });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.closed.size() == 1; }));
  // The door stays open to others.
  auto second = client->Dial(endpoint, Worker(2), &inbox);
  EXPECT_TRUE(second.ok());
  client->Do([&] { second.value().reset(); });
}

TEST_P(PacedTest, ARateLimitDelaysAndDeliversEverything) {
  constexpr double kRate = 4e8;
  constexpr std::size_t kFrames = 40, kBytes = 65536;
  LinkOptions options;
  options.limiter = RateLimiter::Make(kRate, "").value();
  LinkOptions receiver = options;
  receiver.limiter = RateLimiter::Make(kRate, "").value();
  StartPair(receiver, options);
  const TimePoint start = SteadyClock().Now();
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) EXPECT_TRUE(out.Send(*link, kBytes).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == kFrames; }));
  const Nanos elapsed = SteadyClock().Now() - start;
  const Nanos least = Nanos(static_cast<std::int64_t>(kFrames * kBytes * 8 * 1e9 / kRate));
  EXPECT_GE(elapsed, least - milliseconds(2));
  server->Do([&] { EXPECT_TRUE(door.inbox.IsInOrder()); });
  // Both NICs were charged with at least the payload; a clock says until when it is taken.
  EXPECT_GE(options.limiter->Reserve(RateLimiter::Direction::kSend, 0, start), least - milliseconds(2));
  EXPECT_GE(receiver.limiter->Reserve(RateLimiter::Direction::kReceive, 0, start), least - milliseconds(2));
  EXPECT_EQ(receiver.limiter->Reserve(RateLimiter::Direction::kSend, 0, start + milliseconds(1)), Nanos(0));
}

TEST_P(PacedTest, TwoSendersShareTheReceiversRate) {
  constexpr double kRate = 4e8;
  constexpr std::size_t kFrames = 20, kBytes = 65536;
  LinkOptions receiver;
  receiver.limiter = RateLimiter::Make(kRate, "").value();
  StartPair(receiver, LinkOptions{});
  auto other = Dial(2);
  ASSERT_NE(other, nullptr);
  const TimePoint start = SteadyClock().Now();
  client->Do([&] {
    for (std::size_t i = 0; i < kFrames; ++i) {
      EXPECT_TRUE(out.Send(*link, kBytes).ok());
      EXPECT_TRUE(out.Send(*other, kBytes).ok());
    }
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 2 * kFrames; }));
  const Nanos least = Nanos(static_cast<std::int64_t>(2 * kFrames * kBytes * 8 * 1e9 / kRate));
  // The first frame's time may lie before its arrival.
  EXPECT_GE(SteadyClock().Now() - start, least - milliseconds(5));
  client->Do([&] { other.reset(); });
}

TEST_P(PacedTest, ControlLinksAreNeverPaced) {
  LinkOptions options;
  options.limiter = RateLimiter::Make(1000, "").value();  // a frame would take minutes
  Start(options);
  Listen();
  LinkIdentity self = Worker(1);
  self.control = true;
  auto made = client->Dial(endpoint, self, &inbox);
  ASSERT_TRUE(made.ok()) << made.status().text();
  link = std::move(made).value();
  client->Do([&] {
    for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(out.Send(*link, 10000).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 20; }));
  server->Do([&] { EXPECT_TRUE(back.Send(accepted(), 10000).ok()); });
  EXPECT_TRUE(client->WaitFor([&] { return inbox.frames == 1; }));
}

TALLY_EVERY_TRANSPORT(FramesTest);
TALLY_TRANSPORT_SUITE(PacedTest, TransportsThat([](const std::string& name) { return name != "shm"; }), testing::Bool());

}  // namespace
}  // namespace tally
