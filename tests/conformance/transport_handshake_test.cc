// Listen, connect, hello, welcome, refusal: what every transport in the table must do.
#include <algorithm>

#include "tests/conformance/transport_harness.h"

namespace tally {
namespace {

using HandshakeTest = TransportTest;
using std::chrono::milliseconds;

LinkOptions Impatient() {
  LinkOptions options;
  options.connect_timeout = milliseconds(300);
  return options;
}

TEST_P(HandshakeTest, BothEndsLearnWhoTheOtherIs) {
  Start();
  Listen();
  EXPECT_EQ(server->Do([&] { return std::string(server->transport->name()); }), transport());
  LinkIdentity self{0x1122334455667788, EpochId{9}, 0xFFFFFFFFFFFFFFFF, Role::kWorker, 6, true};
  auto made = client->Dial(endpoint, self, &inbox);
  ASSERT_TRUE(made.ok()) << made.status().text();
  link = std::move(made).value();
  ASSERT_TRUE(server->WaitFor([&] { return door.links.size() == 1; }));
  const auto expect_equal = [](const LinkIdentity& a, const LinkIdentity& b) {
    EXPECT_EQ(a.job_hash, b.job_hash);
    EXPECT_EQ(a.epoch, b.epoch);
    EXPECT_EQ(a.incarnation, b.incarnation);
    EXPECT_EQ(a.role, b.role);
    EXPECT_EQ(a.index, b.index);
  };
  server->Do([&] {
    ASSERT_EQ(door.hellos.size(), 1u);
    expect_equal(door.hellos[0], self);
    EXPECT_TRUE(door.hellos[0].control);
    expect_equal(accepted().peer(), self);
    EXPECT_TRUE(accepted().peer().control);
    EXPECT_NE(accepted().Describe().find("worker 6"), std::string::npos) << accepted().Describe();
    EXPECT_EQ(accepted().queued_bytes(), 0u);
  });
  client->Do([&] {
    expect_equal(link->peer(), Server(0));
    EXPECT_NE(link->Describe().find("server 0"), std::string::npos) << link->Describe();
    EXPECT_EQ(link->Describe().find(transport()), 0u) << link->Describe();
  });
}

TEST_P(HandshakeTest, ARefusalArrivesWithKindAndTextAtOnce) {
  Start();
  Listen();
  server->Do([&] {
    door.decide = [](const LinkIdentity& peer) {
      return peer.index == 1 ? Mismatch("epoch 4 here, worker 1 came with 3") : Status::Ok();
    };
  });
  const auto refused = client->Dial(endpoint, Worker(1), &inbox);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().kind(), StatusKind::kMismatch);
  EXPECT_NE(refused.status().text().find("epoch 4 here, worker 1 came with 3"), std::string::npos)
      << refused.status().text();
  link = Dial(2);
  ASSERT_NE(link, nullptr);
  server->Do([&] {
    EXPECT_EQ(door.links.size(), 1u);
    EXPECT_EQ(door.hellos.size(), 2u);
    EXPECT_TRUE(door.inbox.closed.empty());
  });
}

TEST_P(HandshakeTest, NobodyThereIsAnErrorThatNamesTheAddress) {
  Start(Impatient());
  std::string address = transport() + "://nobody-here";
  if (has_ports()) {
    // A port that was free a moment ago.
    Listen();
    address = endpoint;
    server->DestroyTransport();
    server->Do([&] {
      server->transport = MakeTransport(transport(), &server->loop, &server->pool, Impatient()).value();
    });
  }
  const auto made = client->Dial(address, Worker(1), &inbox);
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(made.status().kind() == StatusKind::kUnavailable || made.status().kind() == StatusKind::kTimeout);
  EXPECT_NE(made.status().text().find(address.substr(address.find("://") + 3)), std::string::npos)
      << made.status().text();
}

TEST_P(HandshakeTest, AListenerThatStartsLateIsFound) {
  Start();
  std::string address = FreshAddress(transport());
  if (has_ports()) {
    Listen();
    address = endpoint;
    server->DestroyTransport();
  }
  auto answer = std::make_shared<std::promise<Status>>();
  auto future = answer->get_future();
  if (client == server.get()) {
    server->Do([&] {
      server->transport.reset();
      server->transport = MakeTransport(transport(), &server->loop, &server->pool, {}).value();
    });
  }
  client->Do([&] {
    client->transport->Connect(address, Worker(1), [this, answer](Result<std::unique_ptr<Link>> made) {
      if (made.ok()) {
        link = std::move(made).value();
        link->handler = &inbox;
      }
      answer->set_value(made.status());
    });
  });
  EXPECT_EQ(future.wait_for(milliseconds(200)), std::future_status::timeout);
  const auto bound = server->Do([&] {
    if (server->transport == nullptr) {
      server->transport = MakeTransport(transport(), &server->loop, &server->pool, {}).value();
    }
    return server->transport->Listen(address, Server(0), &door);
  });
  ASSERT_TRUE(bound.ok()) << bound.status().text();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  const Status status = future.get();
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST_P(HandshakeTest, ABusyAddressIsNamed) {
  Start();
  Listen();
  Door second;
  const Status status = client->Do([&] { return client->transport->Listen(endpoint, Server(1), &second).status(); });
  EXPECT_EQ(status.kind(), StatusKind::kUnavailable);
  EXPECT_NE(status.text().find(endpoint.substr(endpoint.find("://") + 3)), std::string::npos) << status.text();
  link = Dial();  // the first listener is none the worse
  EXPECT_NE(link, nullptr);
}

TEST_P(HandshakeTest, AnAddressIsFreeAgainWhenItsTransportIsGone) {
  StartPair();
  client->Do([&] { link.reset(); });
  server->Do([&] {
    door.links.clear();
    server->transport.reset();
    server->transport = MakeTransport(transport(), &server->loop, &server->pool, {}).value();
  });
  // A library's thread may let go of the address a moment later.
  EXPECT_TRUE(server->WaitFor([&] { return server->transport->Listen(endpoint, Server(0), &door).ok(); }));
  link = Dial();
  EXPECT_NE(link, nullptr);
}

TEST_P(HandshakeTest, AddressesThatDoNotParseAreTheCallersFault) {
  Start();
  for (const std::string& address :
       {std::string("nonsense"), std::string(), transport() + "://", std::string("carrier-pigeon://x:1"),
        has_ports() ? transport() + "://127.0.0.1:99999" : std::string("://x")}) {
    EXPECT_EQ(server->Do([&] { return server->transport->Listen(address, Server(0), &door).status().kind(); }),
              StatusKind::kInvalidArgument)
        << address;
    EXPECT_EQ(client->Dial(address, Worker(1), &inbox).status().kind(), StatusKind::kInvalidArgument) << address;
  }
}

TEST_P(HandshakeTest, TwoListenersOfOneTransportAreTwoDoors) {
  Start();
  Listen();
  Door other;
  const auto second =
      server->Do([&] { return server->transport->Listen(FreshAddress(transport()), Server(1), &other); });
  ASSERT_TRUE(second.ok()) << second.status().text();
  ASSERT_NE(second.value(), endpoint);
  link = Dial(1);
  ASSERT_NE(link, nullptr);
  auto made = client->Dial(second.value(), Worker(2), &inbox);
  ASSERT_TRUE(made.ok()) << made.status().text();
  ASSERT_TRUE(server->WaitFor([&] { return other.links.size() == 1; }));
  client->Do([&] {
    EXPECT_EQ(link->peer().index, 0u);
    EXPECT_EQ(made.value()->peer().index, 1u);
    EXPECT_TRUE(out.Send(*link, 10).ok());
    EXPECT_TRUE(out.Send(*made.value(), 20).ok());
  });
  EXPECT_TRUE(server->WaitFor([&] { return door.inbox.frames == 1 && other.inbox.frames == 1; }));
  server->Do([&] {
    ASSERT_EQ(other.inbox.entries.size(), 1u);
    EXPECT_EQ(other.inbox.entries[0].payload.size(), 20u);
  });
  client->Do([&] { made.value().reset(); });
  server->Do([&] {
    other.links.clear();
    server->transport.reset();  // `other` goes before the fixture's transport would
  });
}

TEST_P(HandshakeTest, ManyPeersAtOnce) {
  constexpr std::uint32_t kPeers = 40;
  constexpr std::size_t kFrames = 30;
  Start();
  Listen();
  struct Peer {
    Inbox inbox;
    std::unique_ptr<Link> link;
    Outbox out;
  };
  std::vector<Peer> peers(kPeers);
  server->Do([&] {
    // Everything goes back where it came from.
    door.inbox.on_frame = [](Link& from, Frame& frame) {
      const std::span<const std::byte> payload = frame.payload;
      EXPECT_TRUE(from.Send(frame.header, payload, std::move(frame.hold).IntoRelease()).ok());
    };
  });
  client->Do([&] {
    for (std::uint32_t i = 0; i < kPeers; ++i) {
      client->transport->Connect(endpoint, Worker(i), [&peer = peers[i], i](Result<std::unique_ptr<Link>> made) {
        ASSERT_TRUE(made.ok()) << made.status().text();
        peer.link = std::move(made).value();
        peer.link->handler = &peer.inbox;
        for (std::size_t f = 0; f < kFrames; ++f) EXPECT_TRUE(peer.out.Send(*peer.link, 100 * i + f).ok());
      });
    }
  });
  EXPECT_TRUE(client->WaitFor([&] {
    return std::ranges::all_of(peers, [](const Peer& peer) { return peer.inbox.frames == kFrames; });
  }));
  client->Do([&] {
    for (std::uint32_t i = 0; i < kPeers; ++i) {
      EXPECT_TRUE(peers[i].inbox.IsInOrder()) << i;
      for (std::size_t f = 0; f < peers[i].inbox.entries.size(); ++f) {
        EXPECT_EQ(peers[i].inbox.entries[f].payload.size(), 100 * i + f);
      }
      peers[i].link.reset();
    }
  });
}

TEST_P(HandshakeTest, ATransportThatGoesDropsItsConnects) {
  Start();
  bool ran = false;
  client->Do([&] {
    client->transport->Connect(has_ports() ? transport() + "://127.0.0.1:1" : transport() + "://nobody", Worker(1),
                               [&](Result<std::unique_ptr<Link>>) { ran = true; });
    client->transport->Connect("nonsense", Worker(1), [&](Result<std::unique_ptr<Link>>) { ran = true; });
    client->transport.reset();
  });
  std::this_thread::sleep_for(milliseconds(50));
  client->Do([&] { EXPECT_FALSE(ran); });
}

TEST(Transports, AnUnknownNameListsTheKnownOnes) {
  EventLoop loop;
  BufferPool pool;
  const Status status = MakeTransport("pigeon", &loop, &pool, {}).status();
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  for (const std::string& name : TransportNames()) EXPECT_NE(status.text().find(name), std::string::npos);
}

TALLY_EVERY_TRANSPORT(HandshakeTest);

}  // namespace
}  // namespace tally
