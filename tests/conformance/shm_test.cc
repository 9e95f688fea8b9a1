// What only transport shm promises: payloads stay where they are, are given back, and a peer that lies about memory
// loses its link and nothing else.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "common/envelope.h"
#include "common/transport/handshake.h"
#include "common/transport/rate_limiter.h"
#include "common/transport/unix_sockets.h"
#include "schemas/node.capnp.h"
#include "tests/conformance/transport_harness.h"

namespace tally {
namespace {

constexpr std::size_t kBytes = 1 << 20;

class ShmTest : public testing::Test {
 protected:
  void SetUp() override {
    auto bound = host_.Do([&] { return host_.transport->Listen(FreshShmEndpoint(), Server(0), &door_); });
    ASSERT_TRUE(bound.ok()) << bound.status().text();
    endpoint_ = *bound;
    auto made = peer_.Dial(endpoint_, Worker(1), &inbox_);
    ASSERT_TRUE(made.ok()) << made.status().text();
    link_ = std::move(made).value();
    ASSERT_TRUE(host_.WaitFor([&] { return door_.links.size() == 1; }));
  }
  void TearDown() override {
    peer_.Do([&] { link_.reset(); });
    host_.Do([&] { door_.links.clear(); });
  }

  Host host_{"shm", {}}, peer_{"shm", {}};
  Door door_;
  Inbox inbox_;
  std::string endpoint_;
  std::unique_ptr<Link> link_;
};

TEST_F(ShmTest, APayloadInSharedMemoryStaysWhereItIsUntilTheReceiverLetsGo) {
  auto arena = SharedArena::Make(peer_.pool.shared(), "test", 2 * kBytes);
  ASSERT_TRUE(arena.ok()) << arena.status().text();
  const std::span<std::byte> payload = arena->bytes().subspan(kBytes, kBytes);
  Frame kept;
  host_.Do([&] {
    door_.inbox.on_frame = [&](Link&, Frame& frame) { kept = std::move(frame); };
    door_.links.front()->PauseReceive(true);
  });
  int released = 0;
  const LinkStats before = peer_.Do([&] { return link_->stats(); });
  peer_.Do([&] {
    std::ranges::fill(payload, std::byte{1});
    const auto count = [](void* released_count, std::uint64_t) { ++*static_cast<int*>(released_count); };
    EXPECT_TRUE(link_->Send({}, payload, {count, &released, 0}).ok());
    std::ranges::fill(payload, std::byte{2});  // against the rules: it shows whose memory the receiver reads
  });
  host_.Do([&] { door_.links.front()->PauseReceive(false); });
  ASSERT_TRUE(host_.WaitFor([&] { return !kept.payload.empty(); }));
  host_.Do([&] {
    EXPECT_EQ(kept.payload.size(), kBytes);
    EXPECT_TRUE(std::ranges::all_of(kept.payload, [](std::byte b) { return b == std::byte{2}; }));
    EXPECT_FALSE(kept.hold.unique());
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  peer_.Do([&] {
    EXPECT_EQ(released, 0);
    EXPECT_GE(link_->queued_bytes(), kBytes);
    EXPECT_EQ(link_->stats().frames_sent, before.frames_sent + 1);
    EXPECT_GE(link_->stats().bytes_sent, before.bytes_sent + kBytes);
  });
  // From another thread than the loop's.
  kept.hold.Reset();
  EXPECT_TRUE(peer_.WaitFor([&] { return released == 1 && link_->queued_bytes() == 0; }));
}

TEST_F(ShmTest, WhatIsLentComesBackWhenThePeerGoes) {
  std::vector<Frame> kept;
  host_.Do([&] {
    door_.inbox.on_frame = [&](Link&, Frame& frame) { kept.push_back(std::move(frame)); };
  });
  Outbox out;
  peer_.Do([&] {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(out.Send(*link_, 100000).ok());
  });
  ASSERT_TRUE(host_.WaitFor([&] { return kept.size() == 20; }));
  host_.Do([&] { door_.links.clear(); });  // with the frames still held
  EXPECT_TRUE(peer_.WaitFor([&] { return out.EachReleasedOnce() && inbox_.closed.size() == 1; }));
  host_.Do([&] { kept.clear(); });
  peer_.Do([&] { EXPECT_EQ(link_->queued_bytes(), 0U); });
}

// Over, but perhaps not for a peer that has notes left to read.
TEST_F(ShmTest, BlocksThatAreOutWhenALinkEndsAreNotUsedAgain) {
  host_.Do([&] { door_.links.front()->PauseReceive(true); });
  const std::byte* lent = nullptr;
  peer_.Do([&] {
    BufferRef block = peer_.pool.Get(kBytes);
    lent = block.data();
    const auto bytes = block.bytes();
    EXPECT_TRUE(link_->Send({}, bytes, std::move(block).IntoRelease()).ok());
    link_->Close();
    EXPECT_EQ(peer_.pool.stats().in_use_bytes, 0U);
    for (int i = 0; i < 4; ++i) EXPECT_NE(peer_.pool.Get(kBytes).data(), lent);
  });
}

TEST_F(ShmTest, WhatIsDecodedIsTheReceiversOwn) {
  auto arena = SharedArena::Make(peer_.pool.shared(), "test", kBytes);
  ASSERT_TRUE(arena.ok());
  Frame kept;
  host_.Do([&] {
    door_.inbox.on_frame = [&](Link&, Frame& frame) { kept = std::move(frame); };
  });
  int released = 0;
  const auto count = [](void* released_count, std::uint64_t) { ++*static_cast<int*>(released_count); };
  peer_.Do([&] {
    FrameHeader header;
    header.codec = 3;
    EXPECT_TRUE(link_->Send(header, arena->bytes(), {count, &released, 0}).ok());
  });
  ASSERT_TRUE(peer_.WaitFor([&] { return released == 1; }));  // though the frame is held
  std::ranges::fill(arena->bytes(), std::byte{9});
  host_.Do([&] {
    EXPECT_TRUE(std::ranges::all_of(kept.payload, [](std::byte b) { return b == std::byte{0}; }));
    kept = {};
  });
}

TEST_F(ShmTest, AReleaseThatDestroysItsLinkAsThePeerGoes) {
  host_.Do([&] { door_.links.front()->PauseReceive(true); });
  auto arena = SharedArena::Make(peer_.pool.shared(), "test", kBytes);
  ASSERT_TRUE(arena.ok());
  peer_.Do([&] {
    const auto destroy = [](void* link, std::uint64_t) { static_cast<std::unique_ptr<Link>*>(link)->reset(); };
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(link_->Send({}, arena->bytes(), {destroy, &link_, 0}).ok());
  });
  host_.Do([&] { door_.links.clear(); });
  EXPECT_TRUE(peer_.WaitFor([&] { return link_ == nullptr; }));
  peer_.Do([&] { EXPECT_TRUE(inbox_.closed.empty()); });
}

// A process of this user that says what it likes.
class Liar {
 public:
  explicit Liar(std::string_view endpoint) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address;
    const socklen_t length = UnixAddress(endpoint.substr(kShmScheme.size()), &address);
    EXPECT_EQ(::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), length), 0) << std::strerror(errno);
    Write(Wire(HandshakeHeader(FrameKind::kHello, Worker(7))));
  }

  void Write(std::span<const std::byte> bytes, int descriptor = -1, std::size_t times = 1) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(times * sizeof(int));
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(times * sizeof(int));
      for (std::size_t i = 0; i < times; ++i) {
        std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &descriptor, sizeof descriptor);
      }
    }
    (void)::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  }

  void Lend(std::uint64_t bytes, std::uint64_t offset, std::uint64_t region_bytes, int descriptor = -1) {
    std::vector<std::byte> note;
    WriteEnvelope<schema::MemoryNote>(8, &note, [&](schema::MemoryNote::Builder to) {
      to.setOffset(offset);
      to.setRegionBytes(region_bytes);
    });
    Write(Wire({}, note, bytes), descriptor);
  }

 private:
  UniqueFd fd_;
};

TEST_F(ShmTest, ALiarAboutMemoryLosesItsLinkOnly) {
  const auto arena = Arena::Make("test", kBytes);
  ASSERT_TRUE(arena.ok());
  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), kBytes), 0);
  const std::vector<std::pair<const char*, std::function<void(Liar&)>>> lies = {
      {"without its descriptor", [](Liar& liar) { liar.Lend(65536, 0, kBytes); }},
      {"of a region of", [&](Liar& liar) { liar.Lend(65536, kBytes - 65535, kBytes, arena->fd()); }},
      {"of a region of", [&](Liar& liar) { liar.Lend(65536, ~std::uint64_t{0} - 10, kBytes, arena->fd()); }},
      {"bytes", [&](Liar& liar) { liar.Lend(65536, 0, 2 * kBytes, arena->fd()); }},
      {"seal", [&](Liar& liar) { liar.Lend(65536, 0, kBytes, unsealed.get()); }},
      {"payload bytes", [&](Liar& liar) { liar.Lend(kMaxPayloadBytes + 1, 0, kBytes, arena->fd()); }},
      {"envelope", [](Liar& liar) { liar.Write(Wire({}, std::as_bytes(std::span("gibberish")), 65536)); }},
      {"is not out", [](Liar& liar) {
         std::vector<std::byte> returns;
         const auto fill = [](schema::MemoryReturns::Builder to) { to.initNumbers(1).set(0, 3); };
         WriteEnvelope<schema::MemoryReturns>(8, &returns, fill);
         FrameHeader header;
         header.kind = FrameKind::kCredit;
         liar.Write(Wire(header, returns));
       }},
      {"belong to no frame", [&](Liar& liar) {
         for (int i = 0; i < 70; ++i) liar.Write(Wire({}), arena->fd());
       }},
      {"two descriptors", [&](Liar& liar) { liar.Write(Wire({}), arena->fd(), 2); }},
  };
  // Its link ends, or it never gets one, if the hello was read together with the lie.
  const auto ends = [&] { return door_.inbox.closed.size() + door_.rejected.size(); };
  for (const auto& [said, lie] : lies) {
    const auto [before, rejected] = host_.Do([&] { return std::pair(ends(), door_.rejected.size()); });
    Liar liar(endpoint_);
    lie(liar);
    ASSERT_TRUE(host_.WaitFor([&] { return ends() == before + 1; })) << said;
    host_.Do([&] {
      const Status& why = door_.rejected.size() > rejected ? door_.rejected.back() : door_.inbox.closed.back();
      EXPECT_NE(why.text().find(said), std::string::npos) << said << ": " << why.ToString();
      EXPECT_TRUE(why.kind() == StatusKind::kCorrupt || why.kind() == StatusKind::kMismatch) << why.ToString();
    });
  }
  Outbox out;
  peer_.Do([&] { EXPECT_TRUE(out.Send(*link_, 100000).ok()); });
  const auto arrived = [](const Inbox::Entry& entry) { return entry.payload.size() == 100000; };
  EXPECT_TRUE(host_.WaitFor([&] { return std::ranges::any_of(door_.inbox.entries, arrived); }));
  EXPECT_TRUE(peer_.WaitFor([&] { return out.EachReleasedOnce(); }));
}

TEST_F(ShmTest, DescriptorsOfAllKindsAreClosed) {
  const auto count = [] {
    std::size_t open = 0;
    for (int fd = 0; fd < 4096; ++fd) open += fcntl(fd, F_GETFD) != -1 ? 1U : 0U;
    return open;
  };
  const std::size_t before = count();
  for (int round = 0; round < 20; ++round) {
    const auto ends = [&] { return door_.inbox.closed.size() + door_.rejected.size(); };
    const std::size_t before_round = host_.Do(ends);
    {
      const auto arena = Arena::Make("test", kBytes);
      ASSERT_TRUE(arena.ok());
      Liar liar(endpoint_);
      liar.Write(Wire({}), arena->fd());  // of no frame
      if (round % 2 == 1) liar.Write(Wire({}), arena->fd(), 2 + static_cast<std::size_t>(round) % 3);
      liar.Lend(65536, 0, kBytes, arena->fd());
    }
    ASSERT_TRUE(host_.WaitFor([&] { return ends() == before_round + 1; }));
  }
  host_.Do([&] { door_.links.resize(1); });
  EXPECT_TRUE(host_.WaitFor([&] { return count() <= before; })) << before << " before, now " << count();
}

TEST(ShmTransport, HasNoRateToLimit) {
  EventLoop loop;
  BufferPool pool;
  LinkOptions options;
  options.limiter = RateLimiter::Make(1e9, "").value();
  EXPECT_EQ(MakeTransport("shm", &loop, &pool, options).status().kind(), StatusKind::kInvalidArgument);
}

}  // namespace
}  // namespace tally
