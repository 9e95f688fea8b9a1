// Strangers and broken peers at the door of transports that listen on a port: raw sockets send what no peer of ours
// would. Honest links must go on, and bad bytes must be counted where the transport parses the stream itself.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "common/transport/handshake.h"
#include "tests/conformance/transport_harness.h"

namespace tally {
namespace {

using std::chrono::milliseconds;

// A connected socket that speaks whatever it is told to.
class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint) {
    const EndpointParts parts = ParseEndpoint(endpoint).value();
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(parts.port)));
    ::inet_pton(AF_INET, parts.host.c_str(), &address.sin_addr);
    fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{20, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << std::strerror(errno);
  }
  ~RawPeer() { ::close(fd_); }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  void Write(std::span<const std::byte> bytes) {
    (void)::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void Write(std::string_view text) { Write(std::as_bytes(std::span(text))); }

  // Reads until the other side closes. False if it never does.
  bool WaitForClose() {
    std::array<char, 4096> buffer;
    while (true) {
      const ssize_t got = ::recv(fd_, buffer.data(), buffer.size(), 0);
      if (got == 0) return true;
      if (got < 0) return errno == ECONNRESET;
    }
  }

 private:
  int fd_ = -1;
};

// A preamble, correct in itself, in front of header bytes that need not be.
std::vector<std::byte> WireEnvelope(std::span<const std::uint32_t> header) {
  const auto bytes = std::as_bytes(header);
  std::vector<std::byte> wire(kPreambleBytes);
  EncodePreamble({static_cast<std::uint32_t>(bytes.size()), 0}, bytes,
                 std::span<std::byte, kPreambleBytes>(wire.data(), kPreambleBytes));
  wire.insert(wire.end(), bytes.begin(), bytes.end());
  return wire;
}

class HostileTest : public TransportTest {
 protected:
  // The link made by StartPair still carries frames.
  void ExpectHonestLinkWorks() {
    const std::size_t before = server->Do([&] { return door.inbox.frames; });
    client->Do([&] {
      for (int i = 0; i < 10; ++i) EXPECT_TRUE(out.Send(*link, 50000).ok());
    });
    EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == before + 10; }));
    server->Do([&] { EXPECT_TRUE(door.inbox.closed.empty()); });
    client->Do([&] { EXPECT_TRUE(inbox.closed.empty()); });
  }
  std::size_t Rejected() {
    return server->Do([&] { return door.rejected.size(); });
  }
  bool parses_itself() const { return transport() == "tcp"; }
};
class PortTest : public HostileTest {};    // transports that strangers can reach
class StreamTest : public HostileTest {};  // transports that parse a byte stream themselves

TEST_P(PortTest, StrangersAreTurnedAway) {
  StartPair();
  ExpectHonestLinkWorks();
  std::mt19937 random(9);
  std::vector<std::byte> noise(5000);
  for (std::byte& b : noise) b = static_cast<std::byte>(random());
  std::vector<std::byte> huge = Wire(HandshakeHeader(FrameKind::kHello, Worker(9)));
  huge[8] = huge[9] = huge[10] = huge[11] = std::byte{0xFF};  // payload bytes
  std::vector<std::byte> flipped = Wire(HandshakeHeader(FrameKind::kHello, Worker(9)));
  flipped[kPreambleBytes + 20] ^= std::byte{1};
  std::vector<std::byte> newer = Wire(HandshakeHeader(FrameKind::kHello, Worker(9)));
  newer[4] = std::byte{kProtocolVersion + 1};
  FrameHeader push;  // a frame where a hello is due
  const std::vector<std::vector<std::byte>> openings = {noise, huge, flipped, newer, Wire(push),
                                                        Wire(HandshakeHeader(FrameKind::kWelcome, Server(1)))};
  std::size_t expected = 0;
  for (const auto& opening : openings) {
    RawPeer raw(endpoint);
    raw.Write(opening);
    if (!parses_itself()) continue;
    ++expected;
    EXPECT_TRUE(raw.WaitForClose()) << "opening " << expected;
    EXPECT_TRUE(server->WaitFor([&] { return door.rejected.size() == expected; })) << "opening " << expected;
  }
  {
    RawPeer raw(endpoint);
    raw.Write("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(!parses_itself() || raw.WaitForClose());
  }
  {
    RawPeer half(endpoint);
    half.Write(std::span(flipped).first(kPreambleBytes + 3));
  }
  { RawPeer mute(endpoint); }
  ExpectHonestLinkWorks();
  server->Do([&] {
    EXPECT_EQ(door.hellos.size(), 1u);
    if (!parses_itself()) return;
    for (const Status& why : door.rejected) EXPECT_FALSE(why.text().empty());
    EXPECT_TRUE(std::ranges::any_of(door.rejected, [](const Status& why) {
      return why.kind() == StatusKind::kMismatch && why.text().find("version") != std::string::npos;
    })) << "a newer version is refused with both versions named";
  });
}

TEST_P(PortTest, TheSilentDoNotKeepOthersOut) {
  LinkOptions options;
  options.hello_timeout = milliseconds(200);
  options.max_pending_peers = 4;
  StartPair(options);
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 12; ++i) silent.push_back(std::make_unique<RawPeer>(endpoint));
  auto late = Dial(5);
  EXPECT_NE(late, nullptr);
  ExpectHonestLinkWorks();
  if (parses_itself()) {
    for (auto& peer : silent) EXPECT_TRUE(peer->WaitForClose());
    EXPECT_GE(Rejected(), 12u);
  }
  client->Do([&] { late.reset(); });
}

TEST_P(StreamTest, BadEnvelopesEndTheirConnectionOnly) {
  StartPair();
  const std::vector<std::vector<std::uint32_t>> envelopes = {
      {0xFFFFFFFF, 0, 0, 0},                      // the segment count overflows
      std::vector<std::uint32_t>(1024, 512),      // 513 segments
      {0, 0xFFFFFFFF, 0, 0},                      // a segment beyond the message
      {1, 0x80000000, 0x80000001, 0},             // sizes whose sum wraps
      {0, 1, 0x00000002, 0},                      // a far pointer to itself
      {0, 1, 0xFFFFFFFA, 7},                      // a far pointer to nowhere
      {0, 1, 0xFFFFFFFC, 0xFFFFFFFF},             // a struct beyond its segment
  };
  std::size_t number = 0;
  for (const auto& envelope : envelopes) {
    RawPeer raw(endpoint);
    raw.Write(WireEnvelope(envelope));
    raw.Write(Wire(HandshakeHeader(FrameKind::kHello, Worker(8))));  // too late on this connection
    EXPECT_TRUE(raw.WaitForClose()) << number;
    EXPECT_TRUE(server->WaitFor([&] { return door.rejected.size() == number + 1; })) << number;
    ++number;
  }
  server->Do([&] {
    EXPECT_EQ(door.hellos.size(), 1u);
    for (const Status& why : door.rejected) EXPECT_EQ(why.kind(), StatusKind::kCorrupt) << why.ToString();
  });
  ExpectHonestLinkWorks();
}

TEST_P(StreamTest, BadBytesAfterTheHelloCloseTheLink) {
  StartPair();
  Inbox victims;
  server->Do([&] {
    door.on_accepted = [&](Link& made) { made.handler = &victims; };
  });
  const std::vector<std::byte> payload(3000, std::byte{7});
  FrameHeader push;
  std::vector<std::byte> wrong_payload = Wire(push, payload);
  wrong_payload.back() ^= std::byte{1};
  std::vector<std::byte> wrong_header = Wire(push, payload);
  wrong_header[kPreambleBytes + 9] ^= std::byte{4};
  FrameHeader invalid = push;
  invalid.slabs = {3, 3};
  std::vector<std::byte> wrong_length = Wire(push, payload);
  {
    // The header says another length than the preamble.
    FrameHeader lying = push;
    lying.payload_bytes = 17;
    std::vector<std::byte> encoded;
    EncodeHeader(lying, &encoded);
    wrong_length.assign(kPreambleBytes, std::byte{0});
    EncodePreamble({static_cast<std::uint32_t>(encoded.size()), 16}, encoded,
                   std::span<std::byte, kPreambleBytes>(wrong_length.data(), kPreambleBytes));
    wrong_length.insert(wrong_length.end(), encoded.begin(), encoded.end());
    wrong_length.insert(wrong_length.end(), 17, std::byte{0});
  }
  const std::vector<std::vector<std::byte>> bad = {
      wrong_payload, wrong_header, Wire(invalid, payload), wrong_length,
      std::vector<std::byte>(100, std::byte{0xAA})};
  for (std::size_t i = 0; i < bad.size(); ++i) {
    RawPeer raw(endpoint);
    raw.Write(Wire(HandshakeHeader(FrameKind::kHello, Worker(20))));
    raw.Write(Wire(push, payload));
    ASSERT_TRUE(server->WaitFor([&] { return victims.frames == i + 1; })) << i;
    raw.Write(bad[i]);
    raw.Write(Wire(push, payload));
    EXPECT_TRUE(raw.WaitForClose()) << i;
    EXPECT_TRUE(server->WaitFor([&] { return victims.closed.size() == i + 1; })) << i;
  }
  server->Do([&] {
    EXPECT_EQ(victims.frames, bad.size()) << "nothing bad, and nothing after it, was delivered";
    for (const Status& why : victims.closed) EXPECT_EQ(why.kind(), StatusKind::kCorrupt) << why.ToString();
  });
  ExpectHonestLinkWorks();
  server->Do([&] { door.links.resize(1); });
}

TEST_P(StreamTest, FramesInSingleBytesAreWholeFrames) {
  Start();
  Listen();
  RawPeer raw(endpoint);
  const std::vector<std::byte> payload(50, std::byte{7});
  std::vector<std::byte> wire = Wire(HandshakeHeader(FrameKind::kHello, Worker(20)));
  for (int i = 0; i < 3; ++i) {
    const auto frame = Wire({}, payload);
    wire.insert(wire.end(), frame.begin(), frame.end());
  }
  for (const std::byte& b : wire) raw.Write(std::span(&b, 1));
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 3; }));
  server->Do([&] {
    for (const auto& entry : door.inbox.entries) EXPECT_EQ(entry.payload, payload);
  });
}

TALLY_TRANSPORT_SUITE(PortTest, TransportsThat([](const std::string& name) { return HasPorts(name); }), testing::Bool());
TALLY_TRANSPORT_SUITE(StreamTest, TransportsThat([](const std::string& name) { return name == "tcp"; }), testing::Bool());

}  // namespace
}  // namespace tally
