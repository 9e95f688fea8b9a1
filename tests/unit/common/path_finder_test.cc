// Which of several addresses leads to a process, among those that lead nowhere or to another one; and probing over them.
#include "common/transport/path_finder.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "common/transport/sockets.h"
#include "common/transport/connection_probe.h"
#include "tests/unit/common/link_harness.h"

namespace tally::testing {
namespace {

using ::testing::HasSubstr;

// Takes connections and never says a word.
class BlackHole {
 public:
  explicit BlackHole(const std::string& host) {
    EndpointParts at{"tcp", host, "0"};
    Result<UniqueFd> socket = ListenTcp(at, 0);
    EXPECT_TRUE(socket.ok());
    if (socket.ok()) socket_ = std::move(socket).value();
    endpoint = "tcp://" + LocalAddress(socket_.get());
  }
  std::string endpoint;

 private:
  UniqueFd socket_;
};

class PathFinderTest : public LinkTest {
 protected:
  void SetUp() override { Use("tcp"); }
  ~PathFinderTest() override { *alive = false; }

  std::string ListenAs(const std::string& host, const LinkIdentity& self, Server* at) {
    auto bound_at = transport->Listen("tcp://" + host + ":0", self, at);
    EXPECT_TRUE(bound_at.ok()) << bound_at.status().ToString();
    return bound_at.ok() ? *bound_at : "";
  }
  // The way that is found, or the error.
  std::string Find(std::vector<std::string> ways, Nanos limit = seconds(20)) {
    std::string found;
    FindPath(&loop, transport.get(), std::move(ways), Identity(Role::kWorker, 2), wanted, limit, alive,
             [&](Result<std::size_t> way) { found = way.ok() ? std::to_string(*way) : way.status().ToString(); });
    EXPECT_EQ(found, "") << "called back from inside FindPath";
    EXPECT_TRUE(RunUntil(loop, [&] { return !found.empty(); }));
    return found;
  }

  const LinkIdentity wanted = Identity(Role::kWorker, 5);
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

TEST_F(PathFinderTest, TheFirstWhereTheRightProcessAnswers) {
  const std::string right = ListenAs("127.0.0.3", wanted, &server);
  LinkIdentity twin = wanted;
  ++twin.incarnation;
  Server others;
  const std::string wrong = ListenAs("127.0.0.2", twin, &others);
  const BlackHole hole("127.0.0.4");
  EXPECT_EQ(Find({right, wrong, hole.endpoint}), "0");
  EXPECT_EQ(Find({hole.endpoint, right}), "1") << "not held up by an address that never answers";
  EXPECT_EQ(Find({wrong, right}), "1") << "another machine with the same private address";
  EXPECT_EQ(Find({"tcp://127.0.0.9:1", wrong, hole.endpoint, right}), "3") << "nobody listens at the first";
  for (const LinkIdentity& hello : server.hellos) EXPECT_TRUE(hello.probe);
}

TEST_F(PathFinderTest, WhoRefusesIsPassedOverAndWhoIsNotReadyAskedAgain) {
  Server stranger;
  stranger.verdict = Mismatch("not a member of epoch 3");
  const std::string refusing = ListenAs("127.0.0.2", Identity(Role::kServer, 0), &stranger);
  server.verdict = Unavailable("not ready");
  const std::string late = ListenAs("127.0.0.3", wanted, &server);
  loop.After(milliseconds(60), [&] { server.verdict = Status::Ok(); });
  EXPECT_EQ(Find({refusing, late}), "1");
  EXPECT_EQ(stranger.hellos.size(), 1u);
  EXPECT_GT(server.hellos.size(), 1u);
}

TEST_F(PathFinderTest, NoWayIsAnErrorThatNamesThemAll) {
  Server others;
  const std::string wrong = ListenAs("127.0.0.2", Identity(Role::kWorker, 6), &others);
  EXPECT_THAT(Find({wrong}), HasSubstr("no address of worker 5 leads to it: " + wrong + ": leads to worker 6"));
  const BlackHole hole("127.0.0.4");
  EXPECT_THAT(Find({wrong, hole.endpoint}, milliseconds(300)), HasSubstr(hole.endpoint + ": no answer yet"));
}

TEST_F(PathFinderTest, EndpointsOfOneAddressAreOneWay) {
  const std::vector<std::vector<std::string>> ways = {{"tcp://10.0.0.1:1", "tcp://10.0.0.1:2"}, {"tcp://[fd00::1]:3"}};
  EXPECT_EQ(WaysOf({"tcp://10.0.0.1:1", "tcp://[fd00::1]:3", "tcp://10.0.0.1:2"}), ways);
  EXPECT_TRUE(WaysOf({}).empty());
}

// ---- probing ----

class Host : public Acceptor {
 public:
  explicit Host(EventLoop* loop) : sink(loop) {}
  Status OnHello(const LinkIdentity& peer) override {
    EXPECT_TRUE(peer.probe);
    return verdict;
  }
  void OnAccepted(std::unique_ptr<Link> link) override { sink.Add(std::move(link)); }
  Status verdict;
  ProbeSink sink;
};

class ConnectionProbeTest : public PathFinderTest {
 protected:
  MeasuredMessage Measure(const std::string& endpoint) {
    MeasuredMessage measured{-1, 0};
    const TimePoint began = loop.Now();
    ConnectionProbe probe(&loop, transport.get(), endpoint, Identity(Role::kWorker, 2),
                    [&](const MeasuredMessage& m) { measured = m; });
    EXPECT_EQ(measured.bytes_per_s, -1) << "called back from inside";
    EXPECT_TRUE(RunUntil(loop, [&] { return measured.connections != 0; }));
    EXPECT_LT(loop.Now() - began, ConnectionProbe::kBound + seconds(5));  // the machine may pause
    return measured;
  }
};

TEST_F(ConnectionProbeTest, MeasuresWhatArrives) {
  Host host(&loop);
  auto endpoint = transport->Listen("tcp://127.0.0.1:0", wanted, &host);
  ASSERT_TRUE(endpoint.ok());
  const MeasuredMessage measured = Measure(*endpoint);
  EXPECT_GT(measured.bytes_per_s, 1e6);
  EXPECT_TRUE(measured.connections == 1 || measured.connections == 2 || measured.connections == 4);
}

TEST_F(ConnectionProbeTest, WaitsForAHostThatIsNotReady) {
  Host host(&loop);
  host.verdict = Unavailable("not ready");
  auto endpoint = transport->Listen("tcp://127.0.0.1:0", wanted, &host);
  ASSERT_TRUE(endpoint.ok());
  loop.After(milliseconds(50), [&] { host.verdict = Status::Ok(); });
  EXPECT_GT(Measure(*endpoint).bytes_per_s, 0);
}

TEST_F(ConnectionProbeTest, NothingIsMeasuredWhereNobodyAnswersRightly) {
  const MeasuredMessage nothing{0, 1};
  const BlackHole hole("127.0.0.4");
  EXPECT_EQ(Measure(hole.endpoint), nothing);
  Host host(&loop);
  host.verdict = Mismatch("no member");
  auto endpoint = transport->Listen("tcp://127.0.0.1:0", wanted, &host);
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(Measure(*endpoint), nothing);
}

// Two receipts for each frame would measure twice the rate.
class Liar : public Server {
 public:
  void OnAccepted(std::unique_ptr<Link> link) override {
    Server::OnAccepted(std::move(link));
    ends.back()->on_frame = [this](Link& from, Frame& frame) {
      FrameHeader receipt;
      receipt.kind = FrameKind::kProbe;
      receipt.step = frame.header.step;
      for (int i = 0; i < receipts; ++i) (void)from.Send(receipt, {}, {});
    };
  }
  int receipts = 2;
};

TEST_F(ConnectionProbeTest, ReceiptsForNothingEndIt) {
  Liar liar;
  const std::string endpoint = ListenAs("127.0.0.1", wanted, &liar);
  const MeasuredMessage nothing{0, 1};
  EXPECT_EQ(Measure(endpoint), nothing);
  liar.receipts = 1;
  EXPECT_GT(Measure(endpoint).bytes_per_s, 0) << "all else is as it should be";
}

TEST_F(ConnectionProbeTest, AClosedConnectionEndsItAtOnce) {
  Server closing;
  const std::string closer = ListenAs("127.0.0.1", wanted, &closing);
  const MeasuredMessage nothing{0, 1};
  // Left alone it would wait for what never comes for 200 ms; the machine may pause, but hardly every time.
  bool at_once = false;
  for (int attempt = 0; attempt < 10 && !at_once; ++attempt) {
    const std::size_t before = closing.ends.size();
    TimePoint closed{};
    EventLoop::TimerId timer = 0;
    const std::function<void()> close = [&] {
      if (closing.ends.size() == before + ConnectionProbe::kLinks) {
        closing.ends[before]->link->Close();
        closed = loop.Now();
      } else {
        timer = loop.After(milliseconds(1), close);
      }
    };
    close();
    EXPECT_EQ(Measure(closer), nothing);
    loop.Cancel(timer);
    at_once = closed != TimePoint{} && loop.Now() - closed < milliseconds(100);
  }
  EXPECT_TRUE(at_once);
}

class ProbeSinkTest : public ConnectionProbeTest {
 protected:
  void Dial(const LinkOptions& options) {
    Use("tcp", options);
    auto endpoint = transport->Listen("tcp://127.0.0.1:0", wanted, &host);
    ASSERT_TRUE(endpoint.ok());
    LinkIdentity self = Identity(Role::kWorker, 2);
    self.probe = true;
    ASSERT_TRUE(Connect(*endpoint, &client, self).ok());
  }
  Host host{&loop};
  const std::vector<std::byte> one = std::vector<std::byte>(1);
  FrameHeader probe = [] {
    FrameHeader header;
    header.kind = FrameKind::kProbe;
    return header;
  }();
};

TEST_F(ProbeSinkTest, EndsWhatIsNoProbe) {
  Dial({});
  ASSERT_TRUE(Send(client, 0, {}).ok());  // a push
  EXPECT_TRUE(RunUntil(loop, [&] { return !client.closed.ok(); }));
}

TEST_F(ProbeSinkTest, EndsProbesOfNothing) {
  Dial({});
  ASSERT_TRUE(client.link->Send(probe, one, {}).ok());
  ASSERT_TRUE(RunUntil(loop, [&] { return client.frames.size() == 1; }));
  ASSERT_TRUE(client.link->Send(probe, {}, {}).ok());
  EXPECT_TRUE(RunUntil(loop, [&] { return !client.closed.ok(); }));
}

// Receipts that are asked for and not taken do not pile up until the guest's time is over; the machine may pause, but
// hardly every time.
TEST_F(ProbeSinkTest, EndsWhoTakesNoReceipts) {
  LinkOptions small;
  small.socket_buffer_bytes = 4096;
  bool soon = false;
  for (int attempt = 0; attempt < 3 && !soon; ++attempt) {
    client.closed = Status::Ok();
    client.link.reset();
    Dial(small);
    client.link->PauseReceive(true);
    const TimePoint began = loop.Now();
    EventLoop::TimerId timer = 0;
    const std::function<void()> flood = [&] {
      for (int i = 0; i < 500 && client.closed.ok(); ++i) (void)client.link->Send(probe, one, {});
      timer = loop.After(milliseconds(1), flood);
    };
    flood();
    ASSERT_TRUE(RunUntil(loop, [&] { return !client.closed.ok(); }));
    loop.Cancel(timer);
    soon = loop.Now() - began < ProbeSink::kLife / 2;
  }
  EXPECT_TRUE(soon);
}

}  // namespace
}  // namespace tally::testing
