// What tcp does beyond the conformance tests: hostile streams, addresses, errors' texts, pacing, back-pressure.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "tests/unit/common/link_harness.h"

namespace tally::testing {
namespace {

using ::testing::HasSubstr;

std::vector<std::byte> Encode(const FrameHeader& header, std::span<const std::byte> payload) {
  FrameHeader full = header;
  full.payload_bytes = payload.size();
  std::vector<std::byte> bytes;
  EncodeHeader(full, &bytes);
  std::vector<std::byte> stream(kPreambleBytes);
  EncodePreamble({static_cast<std::uint32_t>(bytes.size()), static_cast<std::uint32_t>(payload.size())}, bytes,
                 std::span(stream).first<kPreambleBytes>());
  stream.insert(stream.end(), bytes.begin(), bytes.end());
  stream.insert(stream.end(), payload.begin(), payload.end());
  return stream;
}

// A plain socket that speaks whatever it is told.
class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const auto parts = ParseEndpoint(endpoint);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(parts->port)));
    inet_pton(AF_INET, parts->host.c_str(), &address.sin_addr);
    const timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  ~RawPeer() { ::close(fd_); }
  RawPeer(const RawPeer&) = delete;

  void Write(std::span<const std::byte> bytes) const {
    EXPECT_EQ(::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  std::vector<std::byte> Read(std::size_t bytes) const {
    std::vector<std::byte> got(bytes);
    const ssize_t n = ::recv(fd_, got.data(), bytes, MSG_WAITALL);
    got.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return got;
  }
  void Hello() const { Write(Encode(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), {})); }

 private:
  int fd_;
};

class TcpTest : public LinkTest {
 protected:
  void SetUp() override { Use("tcp"); }
};

TEST_F(TcpTest, EverySizeArrivesUnchangedInOrder) {
  OpenPair("tcp://127.0.0.1:0");
  std::vector<std::vector<std::byte>> payloads;
  for (const std::size_t size : {0U, 1U, 4095U, 4096U, 4097U, 65521U, 65536U, 262144U, 1000003U, 4194304U, 0U, 3U}) {
    payloads.push_back(Pattern(size, static_cast<unsigned>(payloads.size())));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < payloads.size(); ++i) {
      ASSERT_TRUE(Send(client, i, payloads[i]).ok());
      ASSERT_TRUE(Send(*server.ends[0], i, payloads[i]).ok());
    }
  }
  const std::size_t expected = 3 * payloads.size();
  ASSERT_TRUE(RunUntil(loop, [&] {
    return server.ends[0]->frames.size() == expected && client.frames.size() == expected;
  }));
  EXPECT_EQ(releases, static_cast<int>(2 * expected));
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
  EXPECT_EQ(client.link->stats().frames_sent, expected + 1);  // with the hello
  EXPECT_THAT(client.link->Describe(), HasSubstr("(server 0)"));
  EXPECT_THAT(client.link->Describe(), HasSubstr(" -> " + bound.substr(6)));
  EXPECT_THAT(server.ends[0]->link->Describe(), HasSubstr("(worker 2)"));
}

TEST_F(TcpTest, ManySlabNumbersAfterALargeFrame) {
  OpenPair("tcp://127.0.0.1:0");
  const auto payload = Pattern(300000, 1);
  FrameHeader header;
  for (std::uint32_t u = 0; u < 30000; ++u) header.slabs.push_back(2 * u);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(client.link->Send(header, payload, {}).ok());
  End& peer = *server.ends[0];
  ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == 4; }));
  for (const Received& frame : peer.frames) {
    EXPECT_EQ(frame.header.slabs, header.slabs);
    EXPECT_TRUE(frame.payload == payload);
  }
}

TEST_F(TcpTest, NeitherReleaseNorErrorComesFromInsideSend) {
  OpenPair("tcp://127.0.0.1:0");
  const auto payload = Pattern(100, 1);
  ASSERT_TRUE(Send(client, 1, payload).ok());
  EXPECT_EQ(releases, 0);
  ASSERT_TRUE(RunUntil(loop, [&] { return releases == 1; }));
  server.ends[0]->link->Close();
  for (int i = 0; i < 100; ++i) (void)Send(client, 2, payload);
  EXPECT_TRUE(client.closed.ok());
  ASSERT_TRUE(RunUntil(loop, [&] { return !client.closed.ok(); }));
  EXPECT_EQ(client.closed.kind(), StatusKind::kPeerLost);
  EXPECT_EQ(releases, 101);
  EXPECT_EQ(Send(client, 3, payload).kind(), StatusKind::kUnavailable);
  EXPECT_EQ(releases, 102);
}

TEST_F(TcpTest, FramesSentBeforeCloseArrive) {
  OpenPair("tcp://127.0.0.1:0");
  const auto payload = Pattern(1000, 1);
  End& peer = *server.ends[0];
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(Send(client, 1, payload).ok());
    ASSERT_TRUE(Send(peer, 1, payload).ok());
  }
  ASSERT_TRUE(RunUntil(loop, [&] { return releases == 40; }));
  client.link->Close();
  ASSERT_TRUE(RunUntil(loop, [&] { return !peer.closed.ok(); }));
  EXPECT_EQ(peer.frames.size(), 20U);
}

TEST_F(TcpTest, RefusedHelloTellsKindAndText) {
  server.verdict = Mismatch("epoch 3 is over, this is 4");
  const std::string at = Listen("tcp://127.0.0.1:0");
  const Status status = Connect(at, &client);
  EXPECT_EQ(status.kind(), StatusKind::kMismatch);
  EXPECT_THAT(status.text(), HasSubstr("server 0 refused: epoch 3 is over, this is 4"));
  ASSERT_EQ(server.hellos.size(), 1U);
  EXPECT_EQ(server.hellos[0].index, 2U);
  EXPECT_EQ(server.hellos[0].incarnation, 0x9900AA0002U);
}

TEST_F(TcpTest, ConnectErrorHoldsTheFacts) {
  LinkOptions options;
  options.connect_timeout = milliseconds(300);
  Use("tcp", options);
  const std::string at = Listen("tcp://127.0.0.1:0");
  transport.reset();  // now nobody listens there
  Use("tcp", options);
  const Status status = Connect(at, &client);
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  const std::string address = "127.0.0.1:" + at.substr(at.rfind(':') + 1);
  for (const std::string& part : std::vector<std::string>{"worker 2", "connect to " + at, address + ": ",
                                                          "Connection refused", " s and ", "check that"}) {
    EXPECT_THAT(status.text(), HasSubstr(part));
  }
}

TEST_F(TcpTest, ConnectWaitsForALateListenerAndTriesEveryAddress) {
  const std::string reserved = Listen("tcp://127.0.0.1:0");
  const std::string port = reserved.substr(reserved.rfind(':') + 1);
  Use("tcp");
  loop.After(milliseconds(100), [&] { bound = Listen("tcp://127.0.0.1:" + port); });
  const Status status = Connect("tcp://localhost:" + port, &client);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_F(TcpTest, UnknownHostIsNamed) {
  LinkOptions options;
  options.connect_timeout = milliseconds(50);
  Use("tcp", options);
  const Status status = Connect("tcp://no-such-host.invalid:1", &client);
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_THAT(status.text(), HasSubstr("looking up \"no-such-host.invalid\""));
}

// Asked of the system alone: a fault of ours must not look like a device that is missing.
bool HasLoopback6() {
  std::ifstream addresses("/proc/net/if_inet6");
  for (std::string line; std::getline(addresses, line);) {
    if (line.starts_with("00000000000000000000000000000001 ")) return true;
  }
  return false;
}

TEST_F(TcpTest, SixthVersionInBrackets) {
  if (!HasLoopback6()) GTEST_SKIP() << "this machine's loopback device has no IPv6 address (::1)";
  auto at = transport->Listen("tcp://[::1]:0", Identity(Role::kServer, 0), &server);
  ASSERT_TRUE(at.ok()) << at.status().ToString();
  EXPECT_THAT(*at, HasSubstr("tcp://[::1]:"));
  const Status status = Connect(*at, &client);
  EXPECT_TRUE(status.ok()) << status.ToString();
}

TEST_F(TcpTest, ListenErrors) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  auto busy = transport->Listen(at, Identity(Role::kServer, 0), &server);
  ASSERT_FALSE(busy.ok());
  EXPECT_EQ(busy.status().kind(), StatusKind::kUnavailable);
  EXPECT_THAT(busy.status().text(), HasSubstr("bind " + at.substr(6)));
  EXPECT_THAT(busy.status().text(), HasSubstr("Address already in use"));
  const auto self = Identity(Role::kServer, 0);
  EXPECT_EQ(transport->Listen("tcp://127.0.0.1", self, &server).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(transport->Listen("zmq://127.0.0.1:0", self, &server).status().kind(), StatusKind::kInvalidArgument);
  EXPECT_EQ(transport->Listen("tcp://192.0.2.1:0", self, &server).status().kind(), StatusKind::kUnavailable);
}

TEST_F(TcpTest, HostileFirstBytesAreRejectedAndHonestPeersServed) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  const auto hello = Encode(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), {});
  std::vector<std::vector<std::byte>> streams;
  streams.push_back(Pattern(64, 1));
  for (const std::size_t flip : {std::size_t{5}, std::size_t{12}, std::size_t{20}, hello.size() - 1}) {
    streams.push_back(hello);
    streams.back()[flip] ^= std::byte{0x40};
  }
  FrameHeader push = HandshakeHeader(FrameKind::kPush, {});
  streams.push_back(Encode(push, {}));
  streams.push_back(Encode(HandshakeHeader(FrameKind::kHello, {}), Pattern(kMaxHandshakePayloadBytes + 1, 1)));
  FrameHeader wide = HandshakeHeader(FrameKind::kHello, {});
  for (std::uint32_t u = 0; u < 5000; ++u) wide.slabs.push_back(u);
  streams.push_back(Encode(wide, {}));
  for (const auto& stream : streams) {
    const std::size_t before = server.rejected.size();
    RawPeer peer(at);
    peer.Write(stream);
    ASSERT_TRUE(RunUntil(loop, [&] { return server.rejected.size() == before + 1; }));
    EXPECT_EQ(server.rejected.back().kind(), StatusKind::kCorrupt) << server.rejected.back().ToString();
  }
  EXPECT_TRUE(server.hellos.empty());
  EXPECT_TRUE(Connect(at, &client).ok());
}

TEST_F(TcpTest, OtherVersionIsRefusedAndToldOurs) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  auto hello = Encode(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), {});
  hello[4] = std::byte{9};
  RawPeer peer(at);
  peer.Write(hello);
  ASSERT_TRUE(RunUntil(loop, [&] { return !server.rejected.empty(); }));
  EXPECT_EQ(server.rejected[0].kind(), StatusKind::kMismatch);
  EXPECT_THAT(server.rejected[0].text(), HasSubstr("version 9"));
  const auto answer = peer.Read(kPreambleBytes);
  ASSERT_EQ(answer.size(), kPreambleBytes);
  EXPECT_EQ(answer[4], std::byte{kProtocolVersion});
}

TEST_F(TcpTest, SilentStrangersAreCappedAndTimeOut) {
  LinkOptions options;
  options.max_pending_peers = 4;
  options.hello_timeout = milliseconds(100);
  Use("tcp", options);
  const std::string at = Listen("tcp://127.0.0.1:0");
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(std::make_unique<RawPeer>(at));
  EXPECT_TRUE(Connect(at, &client).ok());
  ASSERT_TRUE(RunUntil(loop, [&] { return server.rejected.size() == 10; }));
  EXPECT_EQ(server.rejected[0].kind(), StatusKind::kTimeout);
}

TEST_F(TcpTest, CorruptFramesCloseTheLinkAndSayWhy) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  const auto payload = Pattern(5000, 1);
  FrameHeader good;
  good.has_crc = true;
  good.payload_crc = Crc32c(payload);
  FrameHeader bad = good;
  bad.payload_crc ^= 1;
  auto lying = Encode(good, payload);
  lying[8] ^= std::byte{1};  // payload length of the preamble
  const auto oversized = Encode(good, Pattern(kMaxPayloadBytes + 1, 1));
  for (const auto& stream : {Encode(bad, payload), lying, oversized}) {
    RawPeer peer(at);
    peer.Hello();
    const std::size_t index = server.ends.size();
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == index + 1; }));
    peer.Write(Encode(good, payload));
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends[index]->frames.size() == 1; }));
    peer.Write(std::span(stream).first(std::min<std::size_t>(stream.size(), 6000)));
    ASSERT_TRUE(RunUntil(loop, [&] { return !server.ends[index]->closed.ok(); }));
    EXPECT_EQ(server.ends[index]->closed.kind(), StatusKind::kCorrupt) << server.ends[index]->closed.ToString();
    EXPECT_EQ(server.ends[index]->frames.size(), 1U);
  }
}

TEST_F(TcpTest, StreamInSmallPieces) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  RawPeer peer(at);
  const auto payload = Pattern(70, 3);
  auto stream = Encode(HandshakeHeader(FrameKind::kHello, Identity(Role::kWorker, 1)), {});
  const auto frame = Encode({}, payload);
  stream.insert(stream.end(), frame.begin(), frame.end());
  for (std::size_t i = 0; i < stream.size(); ++i) {
    peer.Write(std::span(stream).subspan(i, 1));
    loop.Restart();
    loop.Post([&] { loop.Post([&] { loop.Stop(); }); });
    loop.Run();
  }
  ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == 1 && server.ends[0]->frames.size() == 1; }));
  EXPECT_TRUE(server.ends[0]->frames[0].payload == payload);
}

TEST_F(TcpTest, PauseMakesTheSenderQueueAndLosesNothing) {
  LinkOptions options;
  options.socket_buffer_bytes = 64 << 10;
  options.max_queued_frames = 100;
  Use("tcp", options);
  OpenPair("tcp://127.0.0.1:0");
  End& peer = *server.ends[0];
  peer.link->PauseReceive(true);
  const auto payload = Pattern(65536, 1);
  std::uint64_t sent = 0;
  Status status;
  while (sent < 1000 && (status = Send(client, sent, payload)).ok()) {
    ++sent;
    if (sent % 20 == 0) RunUntil(loop, [] { return false; }, milliseconds(5));
  }
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  EXPECT_GT(client.link->queued_bytes(), 90U * 65536);
  EXPECT_LE(peer.frames.size(), 1U);
  peer.link->PauseReceive(false);
  ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == sent; }));
  for (std::uint64_t i = 0; i < sent; ++i) EXPECT_EQ(peer.frames[i].header.step.value, i);
}

TEST_F(TcpTest, PauseFromInsideTheHandlerHoldsFramesBack) {
  OpenPair("tcp://127.0.0.1:0");
  End& peer = *server.ends[0];
  peer.on_frame = [](Link& link, Frame&) { link.PauseReceive(true); };
  const auto payload = Pattern(10, 1);
  for (std::uint64_t i = 0; i < 50; ++i) ASSERT_TRUE(Send(client, i, payload).ok());
  for (std::size_t i = 1; i <= 50; ++i) {
    ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == i; }));
    peer.link->PauseReceive(false);
  }
}

TEST_F(TcpTest, LinksMayBeDestroyedInsideEveryCallback) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  const auto payload = Pattern(300000, 1);
  for (const int where : {0, 1, 2}) {
    End end;
    ASSERT_TRUE(Connect(at, &end).ok());
    ASSERT_TRUE(RunUntil(loop, [&] { return server.ends.size() == static_cast<std::size_t>(where) + 1; }));
    End& peer = *server.ends.back();
    if (where == 0) {
      peer.on_frame = [&](Link&, Frame&) { peer.link.reset(); };
    } else if (where == 1) {
      peer.on_closed = [&] { peer.link.reset(); };
    }
    std::function<void()> drop = [&] { end.link.reset(); };
    std::function<void()> nothing = [] {};
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(end.link
                      ->Send({}, payload,
                             {[](void* f, std::uint64_t) { (*static_cast<std::function<void()>*>(f))(); },
                              where == 2 ? &drop : &nothing, 0})
                      .ok());
    }
    if (where == 1) {
      ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == 3; }));
      end.link->Close();
    }
    ASSERT_TRUE(RunUntil(loop, [&] { return where == 2 ? end.link == nullptr : peer.link == nullptr; }));
  }
}

TEST_F(TcpTest, TransportDestroyedFirstClosesLinksAndRunsReleases) {
  OpenPair("tcp://127.0.0.1:0");
  server.ends[0]->link->PauseReceive(true);
  const auto payload = Pattern(4 << 20, 1);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Send(client, 1, payload).ok());
  bool called = false;
  transport->Connect(bound, Identity(Role::kWorker, 5), [&](Result<std::unique_ptr<Link>>) { called = true; });
  transport.reset();
  EXPECT_EQ(releases, 10);
  EXPECT_EQ(Send(client, 2, payload).kind(), StatusKind::kUnavailable);
  RunUntil(loop, [] { return false; }, milliseconds(50));
  EXPECT_FALSE(called);
}

TEST_F(TcpTest, ComingAndGoingPeersLeaveNoDescriptors) {
  const std::string at = Listen("tcp://127.0.0.1:0");
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator{});
  };
  std::ptrdiff_t before = 0;
  for (int i = 0; i < 200; ++i) {
    if (i == 10) before = descriptors();
    if (i % 2 == 0) {
      RawPeer early(at);
    } else {
      End end;
      ASSERT_TRUE(Connect(at, &end).ok());
    }
  }
  ASSERT_TRUE(RunUntil(loop, [&] {
    return server.rejected.size() == 100 &&
           std::ranges::all_of(server.ends, [](const auto& end) { return !end->closed.ok(); });
  }));
  EXPECT_LE(descriptors(), before);
}

// Counts what is reserved; every slot ends `delay` after it was asked for.
class CountingLimiter final : public RateLimiter {
 public:
  Nanos Reserve(Direction direction, std::uint64_t bytes, TimePoint) override {
    (direction == Direction::kSend ? sent : received) += bytes;
    largest = std::max(largest, bytes);
    return direction == Direction::kSend ? delay : Nanos::zero();
  }
  double bits_per_second() const override { return 1e9; }

  Nanos delay = milliseconds(1);
  std::uint64_t sent = 0, received = 0, largest = 0;
};

TEST_F(TcpTest, PacingReservesEveryByteInSmallChunks) {
  LinkOptions options;
  const auto limiter = std::make_shared<CountingLimiter>();
  options.limiter = limiter;
  Use("tcp", options);
  OpenPair("tcp://127.0.0.1:0");
  EXPECT_EQ(limiter->sent, 0U);  // the handshake is not paced
  const std::uint64_t before = client.link->stats().bytes_sent;
  const auto payload = Pattern(1 << 20, 1);
  for (std::uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(Send(client, i, payload).ok());
  End& peer = *server.ends[0];
  ASSERT_TRUE(RunUntil(loop, [&] { return peer.frames.size() == 5 && releases == 5; }));
  EXPECT_TRUE(peer.frames[4].payload == payload);
  EXPECT_EQ(limiter->sent, client.link->stats().bytes_sent - before);
  EXPECT_EQ(limiter->received, limiter->sent);
  EXPECT_LE(limiter->largest, 65536U);

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
