// What zmq does beyond the conformance tests: fenced and silent peers, ends of links, back-pressure, pacing.
#include <gmock/gmock.h>
#include <zmq.h>

#include <algorithm>
#include <filesystem>

#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "tests/unit/common/link_harness.h"

namespace tally::testing {
namespace {

using ::testing::HasSubstr;
using Parts = std::vector<std::vector<std::byte>>;

// A DEALER that speaks whatever it is told.
class RawDealer {
 public:
  explicit RawDealer(const std::string& endpoint) {
    int linger = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger, sizeof linger);
    EXPECT_EQ(zmq_connect(socket_, ("tcp://" + endpoint.substr(6)).c_str()), 0);
  }
  ~RawDealer() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  RawDealer(const RawDealer&) = delete;

  void Write(const Parts& parts) const {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const int flags = i + 1 < parts.size() ? ZMQ_SNDMORE : 0;
      EXPECT_EQ(zmq_send(socket_, parts[i].data(), parts[i].size(), flags), static_cast<int>(parts[i].size()));
    }
  }
  void Frame(FrameHeader header, const std::vector<std::byte>& payload) const {
    header.payload_bytes = payload.size();
    std::vector<std::byte> head;
    EncodeHeader(header, &head);
    Parts parts;
    parts.push_back(std::move(head));
    if (!payload.empty()) parts.push_back(payload);
    Write(parts);
  }
  void Hello() const { Frame(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), {}); }

 private:
  void* context_ = zmq_ctx_new();
  void* socket_ = zmq_socket(context_, ZMQ_DEALER);
};

class ZmqTest : public LinkTest {
 protected:
  void SetUp() override { Use("zmq"); }
};

// Threads inherit the cores of the one that starts them, and the loop's may be pinned to one.
TEST(Zmq, ItsThreadsAreStartedByWhoeverMakesTheTransport) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
  };
  EventLoop loop;
  BufferPool pool;
  Server server;
  const auto before = threads();
  const auto transport = MakeTransport("zmq", &loop, &pool, {}).value();
  const auto made = threads();
  EXPECT_GT(made, before);
  ASSERT_TRUE(transport->Listen("zmq://127.0.0.1:0", Identity(Role::kServer, 0), &server).ok());
  EXPECT_EQ(threads(), made);
}

TEST_F(ZmqTest, EverySizeArrivesUnchangedInOrder) {
  OpenPair("zmq://127.0.0.1:0");
  std::vector<std::vector<std::byte>> payloads;
  for (const std::size_t size : {0U, 1U, 1024U, 4095U, 4097U, 8193U, 65521U, 262144U, 1000003U, 4194304U, 0U, 3U}) {
    payloads.push_back(Pattern(size, static_cast<unsigned>(payloads.size())));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      ASSERT_TRUE(Send(client, i, payloads[i]).ok());
      ASSERT_TRUE(Send(*server.ends[0], i, payloads[i]).ok());
    }
  }
  EXPECT_EQ(releases, 0);
  const std::size_t expected = 3 * payloads.size();
  ASSERT_TRUE(RunUntil(loop, [&] {
    return server.ends[0]->frames.size() == expected && client.frames.size() == expected &&
           releases == static_cast<int>(2 * expected);
  }));
  for (const auto* frames : {&server.ends[0]->frames, &client.frames}) {
    for (std::size_t i = 0; i < expected; ++i) {
      const Received& got = (*frames)[i];
      EXPECT_EQ(got.header.step.value, i % payloads.size());
      EXPECT_EQ(got.header.slabs, (std::vector<std::uint32_t>{1, 5, 9}));
      EXPECT_TRUE(got.payload == payloads[i % payloads.size()]) << i;
    }
  }
  EXPECT_EQ(client.link->queued_bytes(), 0U);
  EXPECT_EQ(client.link->stats().bytes_sent, server.ends[0]->link->stats().bytes_received);
  EXPECT_THAT(client.link->Describe(), HasSubstr(" -> " + bound.substr(6) + " (server 0)"));
  EXPECT_THAT(server.ends[0]->link->Describe(), HasSubstr("zmq " + bound.substr(6) + " -> 127.0.0.1:"));
}

TEST_F(ZmqTest, SeveralPeersKeepTheirFramesApart) {
  bound = Listen("zmq://127.0.0.1:0");
  std::vector<End> clients(7);
  const auto payload = Pattern(3000, 1);
  for (unsigned i = 0; i < clients.size(); ++i) {
    ASSERT_TRUE(Connect(bound, &clients[i], Identity(Role::kWorker, i)).ok());
  }
  for (std::uint64_t n = 0; n < 50; ++n) {
    for (unsigned i = 0; i < clients.size(); ++i) {
      ASSERT_TRUE(Send(clients[i], 1000 * i + n, payload).ok());
      ASSERT_TRUE(Send(*server.ends[i], 1000 * i + n, payload).ok());
    }
  }
  ASSERT_TRUE(RunUntil(loop, [&] {
    return std::ranges::all_of(clients, [](const End& end) { return end.frames.size() == 50; }) &&
           std::ranges::all_of(server.ends, [](const auto& end) { return end->frames.size() == 50; });
  }));
  for (unsigned i = 0; i < clients.size(); ++i) {
    EXPECT_EQ(server.ends[i]->link->peer().index, i);
    for (std::uint64_t n = 0; n < 50; ++n) {
      EXPECT_EQ(clients[i].frames[n].header.step.value, 1000 * i + n);
      EXPECT_EQ(server.ends[i]->frames[n].header.step.value, 1000 * i + n);
    }
  }
}

TEST_F(ZmqTest, ClosingEitherSideReachesTheOther) {
  for (const bool dialler_closes : {true, false}) {
    Use("zmq");
    server.ends.clear();
    OpenPair("zmq://127.0.0.1:0");
    const auto payload = Pattern(5000, 1);
    const int before = releases;
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(Send(client, 1, payload).ok());
      ASSERT_TRUE(Send(*server.ends[0], 1, payload).ok());
    }
    ASSERT_TRUE(RunUntil(loop, [&] { return releases == before + 40; }));
    End& closing = dialler_closes ? client : *server.ends[0];
    End& other = dialler_closes ? *server.ends[0] : client;
    closing.link->Close();
    EXPECT_EQ(Send(closing, 2, payload).kind(), StatusKind::kUnavailable);
    ASSERT_TRUE(RunUntil(loop, [&] { return !other.closed.ok(); }));
    EXPECT_EQ(other.closed.kind(), StatusKind::kPeerLost) << other.closed.ToString();
    EXPECT_EQ(other.frames.size(), 20U);
    EXPECT_TRUE(closing.closed.ok());
    client = End();
  }
}

TEST_F(ZmqTest, VanishedPeerIsNoticedWithoutGoodbye) {
  bound = Listen("zmq://127.0.0.1:0");
  auto peer = std::make_unique<RawDealer>(bound);
  peer->Hello();
  ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == 1; }));
  for (int i = 0; i < 10; ++i) peer->Frame({}, Pattern(100, 1));
  ASSERT_TRUE(RunUntil(loop, [&] { return server.ends[0]->frames.size() == 10; }));
  peer.reset();
  ASSERT_TRUE(RunUntil(loop, [&] { return !server.ends[0]->closed.ok(); }));
  EXPECT_EQ(server.ends[0]->closed.kind(), StatusKind::kPeerLost);
}

TEST_F(ZmqTest, CloseOfAStalledLinkRunsEveryReleaseBeforeItReturns) {
  for (const bool dialler_sends : {true, false}) {
    LinkOptions options;
    options.socket_buffer_bytes = 64 << 10;
    Use("zmq", options);
    server.ends.clear();
    OpenPair("zmq://127.0.0.1:0");
    End other;
    ASSERT_TRUE(Connect(bound, &other).ok());
    End& sender = dialler_sends ? client : *server.ends[0];
    End& receiver = dialler_sends ? *server.ends[0] : client;
    receiver.link->PauseReceive(true);
    const int before = releases;
    const auto payload = Pattern(1 << 20, 1);
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(Send(sender, 1, payload).ok());
    RunUntil(loop, [] { return false; }, milliseconds(300));
    EXPECT_LT(releases, before + 200);
    EXPECT_GT(sender.link->queued_bytes(), 100U << 20);
    sender.link.reset();
    EXPECT_EQ(releases, before + 200);
    receiver.link->PauseReceive(false);
    ASSERT_TRUE(RunUntil(loop, [&] { return !receiver.closed.ok(); }));
    // The other link of the same listener is untouched.
    ASSERT_TRUE(Send(other, 77, payload).ok());
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends[1]->frames.size() == 1; }));
    EXPECT_TRUE(server.ends[1]->closed.ok());
    other.link.reset();
    client = End();
  }
}

TEST_F(ZmqTest, RefusedHelloTellsKindAndText) {
  server.verdict = Mismatch("epoch 3 is over, this is 4");
  const Status status = Connect(Listen("zmq://127.0.0.1:0"), &client);
  EXPECT_EQ(status.kind(), StatusKind::kMismatch);
  EXPECT_THAT(status.text(), HasSubstr("server 0 refused: epoch 3 is over, this is 4"));
}

TEST_F(ZmqTest, ConnectErrorHoldsTheFacts) {
  LinkOptions options;
  options.connect_timeout = milliseconds(300);
  Use("zmq", options);
  const std::string at = Listen("zmq://127.0.0.1:0");
  Use("zmq", options);  // nobody listens there now
  const Status status = Connect(at, &client);
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr("worker 2: connect to " + at));
  EXPECT_THAT(status.text(), HasSubstr("Connection refused"));
}

TEST_F(ZmqTest, ListenErrors) {
  const std::string at = Listen("zmq://127.0.0.1:0");
  const auto self = Identity(Role::kServer, 0);
  auto busy = transport->Listen(at, self, &server);
  ASSERT_FALSE(busy.ok());
  EXPECT_EQ(busy.status().kind(), StatusKind::kUnavailable);
  EXPECT_THAT(busy.status().text(), HasSubstr("Address already in use"));
  EXPECT_EQ(transport->Listen("tcp://127.0.0.1:0", self, &server).status().kind(), StatusKind::kInvalidArgument);
}

TEST_F(ZmqTest, HostileFirstMessagesAreRejectedAndHonestPeersServed) {
  bound = Listen("zmq://127.0.0.1:0");
  std::vector<std::byte> hello;
  EncodeHeader(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), &hello);
  std::vector<std::byte> push;
  EncodeHeader(HandshakeHeader(FrameKind::kPush, {}), &push);
  const std::vector<Parts> messages = {
      Parts(1, Pattern(64, 1)),
      Parts(1),
      Parts(1, push),
      Parts{hello, Pattern(3, 1)},
      Parts{hello, {}, {}},
      Parts(1, Pattern(kMaxHandshakeHeaderBytes + 8, 1)),
  };
  for (const auto& message : messages) {
    const std::size_t before = server.rejected.size();
    RawDealer peer(bound);
    peer.Write(message);
    ASSERT_TRUE(RunUntil(loop, [&] { return server.rejected.size() > before; }));
    EXPECT_EQ(server.rejected[before].kind(), StatusKind::kCorrupt) << server.rejected[before].ToString();
  }
  EXPECT_TRUE(server.hellos.empty());
  EXPECT_TRUE(Connect(bound, &client).ok());
}

TEST_F(ZmqTest, OtherVersionIsRefusedWithBothVersions) {
  bound = Listen("zmq://127.0.0.1:0");
  RawDealer peer(bound);
  FrameHeader hello = HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1));
  hello.codec_version = 9;
  peer.Frame(hello, {});
  ASSERT_TRUE(RunUntil(loop, [&] { return !server.rejected.empty(); }));
  EXPECT_EQ(server.rejected[0].kind(), StatusKind::kMismatch);
  EXPECT_THAT(server.rejected[0].text(), HasSubstr("version 9"));
}

TEST_F(ZmqTest, CorruptFramesFenceThePeer) {
  bound = Listen("zmq://127.0.0.1:0");
  const auto payload = Pattern(5000, 1);
  FrameHeader bad;
  bad.has_crc = true;
  bad.payload_crc = 1;
  std::vector<std::byte> head;
  EncodeHeader(bad, &head);
  for (const auto& message : {Parts{head, payload}, Parts(1, Pattern(100, 1))}) {
    const std::size_t index = server.ends.size();
    RawDealer peer(bound);
    peer.Hello();
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == index + 1; }));
    peer.Frame({}, payload);
    peer.Write(message);
    for (int i = 0; i < 10; ++i) peer.Frame({}, payload);
    ASSERT_TRUE(RunUntil(loop, [&] { return !server.ends[index]->closed.ok(); }));
    EXPECT_EQ(server.ends[index]->closed.kind(), StatusKind::kCorrupt) << server.ends[index]->closed.ToString();
    RunUntil(loop, [] { return false; }, milliseconds(50));
    EXPECT_EQ(server.ends[index]->frames.size(), 1U);
    EXPECT_EQ(server.hellos.size(), index + 1);
  }
}

TEST_F(ZmqTest, SilentStrangersAreCappedAndTimeOut) {
  LinkOptions options;
  options.max_pending_peers = 4;
  options.hello_timeout = milliseconds(200);
  Use("zmq", options);
  bound = Listen("zmq://127.0.0.1:0");
  std::vector<std::unique_ptr<RawDealer>> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(std::make_unique<RawDealer>(bound));
  ASSERT_TRUE(RunUntil(loop, [&] { return server.rejected.size() >= 8; }));
  silent.clear();
  const Status status = Connect(bound, &client);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_F(ZmqTest, PauseOnEitherSideQueuesAndLosesNothing) {
  LinkOptions options;
  options.socket_buffer_bytes = 64 << 10;
  options.max_queued_frames = 400;
  for (const bool dialler_pauses : {true, false}) {
    Use("zmq", options);
    server.ends.clear();
    OpenPair("zmq://127.0.0.1:0");
    End& pausing = dialler_pauses ? client : *server.ends[0];
    End& sender = dialler_pauses ? *server.ends[0] : client;
    pausing.link->PauseReceive(true);
    const auto payload = Pattern(65536, 1);
    std::uint64_t sent = 0;
    Status status;
    while (sent < 3000 && (status = Send(sender, sent, payload)).ok()) {
      ++sent;
      if (sent % 20 == 0) RunUntil(loop, [] { return false; }, milliseconds(5));
    }
    EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
    EXPECT_TRUE(pausing.frames.empty());
    pausing.link->PauseReceive(false);
    ASSERT_TRUE(RunUntil(loop, [&] { return pausing.frames.size() == sent; }));
    for (std::uint64_t i = 0; i < sent; ++i) EXPECT_EQ(pausing.frames[i].header.step.value, i);
    client = End();
  }
}

TEST_F(ZmqTest, LinksMayBeDestroyedInsideEveryCallback) {
  bound = Listen("zmq://127.0.0.1:0");
  const auto payload = Pattern(300000, 1);
  for (const bool in_frame : {true, false}) {
    End end;
    const std::size_t index = server.ends.size();
    ASSERT_TRUE(Connect(bound, &end).ok());
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == index + 1; }));
    End& peer = *server.ends.back();
    if (in_frame) peer.on_frame = [&](Link&, Frame&) { peer.link.reset(); };
    if (!in_frame) peer.on_closed = [&] { peer.link.reset(); };
    end.on_closed = [&] { end.link.reset(); };
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(Send(end, 1, payload).ok());
    if (!in_frame) {
      ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == 3; }));
      end.link->Close();
    }
    ASSERT_TRUE(RunUntil(loop, [&] { return peer.link == nullptr && (!in_frame || end.link == nullptr); }));
  }
}

TEST_F(ZmqTest, TransportDestroyedFirstClosesLinksAndRunsReleases) {
  OpenPair("zmq://127.0.0.1:0");
  server.ends[0]->link->PauseReceive(true);
  const auto payload = Pattern(4 << 20, 1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Send(client, 1, payload).ok());
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Send(*server.ends[0], 1, payload).ok());
  bool called = false;
  transport->Connect(bound, Identity(Role::kWorker, 5), [&](Result<std::unique_ptr<Link>>) { called = true; });
  transport.reset();
  EXPECT_EQ(releases, 100);
  EXPECT_EQ(Send(client, 2, payload).kind(), StatusKind::kUnavailable);
  RunUntil(loop, [] { return false; }, milliseconds(50));
  EXPECT_FALSE(called);
}

TEST_F(ZmqTest, FrameOutlivesItsLinkAndTransport) {
  OpenPair("zmq://127.0.0.1:0");
  const auto payload = Pattern(100000, 1);
  Frame kept;
  server.ends[0]->on_frame = [&](Link&, Frame& frame) { kept = std::move(frame); };
  ASSERT_TRUE(Send(client, 1, payload).ok());
  ASSERT_TRUE(RunUntil(loop, [&] { return static_cast<bool>(kept.hold); }));
  EXPECT_TRUE(kept.hold.unique());
  transport.reset();
  EXPECT_TRUE(std::ranges::equal(kept.payload, payload));
}

TEST_F(ZmqTest, ComingAndGoingPeersLeaveNoDescriptors) {
  bound = Listen("zmq://127.0.0.1:0");
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  std::ptrdiff_t before = 0;
  for (int i = 0; i < 60; ++i) {
    if (i == 20) {
      ASSERT_TRUE(RunUntil(loop, [&] {
        return std::ranges::all_of(server.ends, [](const auto& end) { return !end->closed.ok(); });
      }));
      RunUntil(loop, [] { return false; }, milliseconds(100));
      before = descriptors();
    }
    End end;
    ASSERT_TRUE(Connect(bound, &end).ok());
  }
  ASSERT_TRUE(RunUntil(loop, [&] {
    return server.ends.size() == 60 &&
           std::ranges::all_of(server.ends, [](const auto& end) { return !end->closed.ok(); });
  }));
  EXPECT_TRUE(RunUntil(loop, [&] { return descriptors() <= before; }, seconds(5))) << before << " " << descriptors();
}

class CountingLimiter final : public RateLimiter {
 public:
  Nanos Reserve(Direction direction, std::uint64_t bytes, TimePoint) override {
    (direction == Direction::kSend ? sent : received) += bytes;
    return milliseconds(1);
  }
  double bits_per_second() const override { return 1e9; }
  std::uint64_t sent = 0, received = 0;
};

TEST_F(ZmqTest, PacingReservesEveryFrameButNotControl) {
  LinkOptions options;
  const auto limiter = std::make_shared<CountingLimiter>();
  options.limiter = limiter;
  Use("zmq", options);
  OpenPair("zmq://127.0.0.1:0");
  const auto payload = Pattern(1 << 20, 1);
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(Send(client, i, payload).ok());
  End& peer = *server.ends[0];
  ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == 5 && releases == 5; }));
  EXPECT_EQ(limiter->sent, client.link->stats().bytes_sent);
  EXPECT_EQ(limiter->received, limiter->sent);

  LinkIdentity control = Identity(Role::kWorker, 3);
  control.control = true;
  End end;
  ASSERT_TRUE(Connect(bound, &end, control).ok());
  const std::uint64_t paced = limiter->sent;
  ASSERT_TRUE(Send(end, 1, payload).ok());
  ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == 2 && server.ends[1]->frames.size() == 1; }));
  EXPECT_EQ(limiter->sent, paced);
}

}  // namespace
}  // namespace tally::testing
