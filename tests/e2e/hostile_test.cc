// A worker among members that break the rules, all played by the test: it ends the job and says who did what.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "common/control.h"
#include "common/loop.h"
#include "common/transport/link.h"
#include "server/core/group_plan.h"
#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint64_t kJob = 4711;

// Everybody but the worker under test, which is rank 1: coordinator, servers and other ranks. On a loop of its own.
class OtherMembers final : public Acceptor, public LinkHandler {
 public:
  OtherMembers() {
    transport_ = MakeTransport("tcp", &loop_, &pool_, {}).value();
    LinkIdentity coordinator;
    coordinator.role = Role::kServer;
    coordinator.control = true;
    address = transport_->Listen("tcp://127.0.0.1:0", coordinator, this).value();
  }
  ~OtherMembers() override {
    if (thread_.joinable()) {
      loop_.Stop();
      thread_.join();
    }
    links_.clear();
    transport_.reset();
  }

  // A member of the epoch at which the worker's links end, if it dials any.
  void Add(Role role, std::uint32_t index, const std::string& node) {
    Member& member = epoch.members.emplace_back();
    member.role = role;
    member.index = index;
    member.position = Position(index);
    member.incarnation = 100 + 10 * static_cast<std::uint64_t>(role) + index;
    member.host = "other";
    member.node = node;
    member.endpoints = {transport_->Listen("tcp://127.0.0.1:0", Identity(member), this).value()};
  }
  void Start() {
    epoch.epoch = EpochId(1);
    epoch.job_hash = kJob;
    epoch.job = "test";
    thread_ = std::thread([this] { loop_.Run(); });
  }

  // What this test says and when; on the loop.
  std::function<void(const JoinMessage& join)> on_join;
  std::function<void(const ControlMessage& message)> on_message;
  std::function<void(Link& link)> on_data_link;
  std::function<void(Link& link, const FrameHeader& header)> on_data_frame;
  std::function<Status(const LinkIdentity& peer)> on_hello;

  void Tell(const ControlMessage& message) {
    FrameHeader header;
    header.kind = FrameKind::kControl;
    letters_.push_back(EncodeControl(message));
    EXPECT_TRUE(control_->Send(header, letters_.back(), {}).ok());
  }
  // The epoch, of which the worker is a member.
  void Publish(const JoinMessage& join) {
    Member& member = epoch.members.emplace_back();
    member.index = join.index;
    member.position = Position(join.index);
    member.incarnation = join.incarnation;
    member.host = join.host;
    member.node = join.node;
    member.endpoints = join.endpoints;
    Tell(epoch);
  }
  // Dials the worker as that rank; `then` has the link.
  void DialAs(std::uint32_t rank, const JoinMessage& join, std::function<void(Link&)> then) {
    const auto member = std::ranges::find_if(epoch.members, [rank](const Member& m) {
      return m.role == Role::kWorker && m.index == rank;
    });
    transport_->Connect(join.endpoints.front(), Identity(*member),
                        [this, rank, join, then = std::move(then)](Result<std::unique_ptr<Link>> made) {
                          if (!made.ok()) {  // it does not know the epoch yet
                            loop_.After(std::chrono::milliseconds(20), [=, this] { DialAs(rank, join, then); });
                            return;
                          }
                          Keep(std::move(made).value());
                          then(*links_.back());
                        });
  }

  Status OnHello(const LinkIdentity& peer) override {
    return on_hello && !peer.control ? on_hello(peer) : Status::Ok();
  }
  void OnAccepted(std::unique_ptr<Link> link) override {
    const bool control = link->peer().control;
    Keep(std::move(link));
    if (control) control_ = links_.back().get();
    if (!control && on_data_link) on_data_link(*links_.back());
  }
  void OnFrame(Link& link, Frame& frame) override {
    if (&link != control_) {
      if (on_data_frame) on_data_frame(link, frame.header);
      return;
    }
    const Result<ControlMessage> message = DecodeControl(frame.payload);
    ASSERT_TRUE(message.ok()) << message.status().text();
    if (const auto* join = std::get_if<JoinMessage>(&*message)) on_join(*join);
    if (std::get_if<HeartbeatMessage>(&*message) != nullptr) Tell(HeartbeatMessage{1});
    if (on_message) on_message(*message);
  }
  void OnClosed(Link&, const Status&) override {}

  // On the loop; waits.
  void Do(const std::function<void()>& task) {
    std::promise<void> done;
    loop_.Post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }
  void After(Nanos delay, std::function<void()> task) { loop_.After(delay, std::move(task)); }
  // On the loop: ends all data links but one.
  void CloseDataLinks(const Link* but) {
    for (const auto& link : links_) {
      if (link.get() != control_ && link.get() != but) link->Close();
    }
  }

  std::string address;
  EpochMessage epoch;

 private:
  LinkIdentity Identity(const Member& m) const { return {kJob, EpochId(1), m.incarnation, m.role, m.index, false}; }
  void Keep(std::unique_ptr<Link> link) {
    link->handler = this;
    links_.push_back(std::move(link));
  }

  EventLoop loop_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<Link>> links_;
  Link* control_ = nullptr;
  std::deque<std::vector<std::byte>> letters_;  // may be on their way
  std::thread thread_;
};

// Rank 1 of `workers`.
Result<std::unique_ptr<Client>> Join(const OtherMembers& others, std::uint32_t workers,
                                     const std::vector<std::string>& settings) {
  ConfigSources sources;
  sources.overrides = {"job.name=test", "job.workers=" + std::to_string(workers), "worker.rank=1", "topology.node=a",
                       "membership.heartbeat=250ms", "membership.dead=20s", "membership.join_timeout=20s",
                       "step.timeout=20s", "log.level=off", "link.transport=tcp", "servers.transport=tcp",
                       "link.shm=false", "coordinator.address=" + others.address};
  sources.overrides.insert(sources.overrides.end(), settings.begin(), settings.end());
  TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, LoadConfig(sources));
  return Client::Join(config);
}

// What the job ended with, whether the worker got into it or not.
Status End(Result<std::unique_ptr<Client>> client) { return client.ok() ? (*client)->Barrier() : client.status(); }

FrameHeader Header(Role role, std::uint32_t position, FrameKind kind, std::uint32_t group,
                   std::vector<std::uint32_t> slabs) {
  FrameHeader header;
  header.job_hash = kJob;
  header.epoch = EpochId(1);
  header.group = GroupId(group);
  header.role = role;
  header.position = position;
  header.kind = kind;
  header.slabs = std::move(slabs);
  return header;
}

TEST(Hostile, AFarewellBeforeTheEpochChangesNothing) {
  OtherMembers others;
  others.Add(Role::kWorker, 0, "b");
  others.on_join = [&](const JoinMessage& join) {
    others.Tell(LeaveMessage{"rank 7 has left"});
    others.Publish(join);
  };
  others.Start();
  auto client = Join(others, 2, {"aggregation.mode=ring"});
  ASSERT_TRUE(client.ok()) << client.status().text();
  EXPECT_TRUE((*client)->Leave().ok());
}

// A member at none of whose addresses anybody is: named with all of them, before the join times out.
TEST(Hostile, AddressesThatLeadNowhereAreAllNamed) {
  const std::vector<std::string> nowhere = {"tcp://127.0.0.4:1", "tcp://127.0.0.5:1"};
  for (const std::size_t addresses : {2UL, 1UL}) {
    OtherMembers others;
    others.Add(Role::kWorker, 0, "b");
    others.epoch.members[0].endpoints.assign(nowhere.begin(), nowhere.begin() + static_cast<std::ptrdiff_t>(addresses));
    others.on_join = [&](const JoinMessage& join) {
      others.Tell(WaitingMessage{"waiting for rank 0 of 2"});
      others.Publish(join);
    };
    others.Start();
    const Status status = End(Join(others, 2, {"aggregation.mode=ring", "membership.join_timeout=3s"}));
    EXPECT_EQ(status.kind(), addresses == 2 ? StatusKind::kUnavailable : StatusKind::kTimeout) << status.ToString();
    EXPECT_NE(status.text().find("rank 0 (other"), std::string::npos) << status.text();
    for (std::size_t i = 0; i < addresses; ++i) {
      EXPECT_NE(status.text().find(nowhere[i]), std::string::npos) << status.text();
    }
    EXPECT_EQ(status.text().find("waiting for rank 0"), std::string::npos) << "it is there: " << status.text();
  }
}

TEST(Hostile, ASecondEpochEndsTheJob) {
  OtherMembers others;
  others.Add(Role::kWorker, 0, "b");
  others.on_join = [&](const JoinMessage& join) {
    others.Publish(join);
    others.epoch.epoch = EpochId(2);
    others.Tell(others.epoch);
  };
  others.Start();
  const Status status = End(Join(others, 2, {"aggregation.mode=ring"}));
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << status.ToString();
  EXPECT_NE(status.text().find("published epoch 2, expected one epoch per job"), std::string::npos) << status.text();
}

TEST(Hostile, EpochZeroIsNone) {
  OtherMembers others;
  others.Add(Role::kWorker, 0, "b");
  others.on_join = [&](const JoinMessage& join) {
    others.epoch.epoch = EpochId(0);
    others.Publish(join);
  };
  others.Start();
  const Status status = End(Join(others, 2, {"aggregation.mode=ring"}));
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << status.ToString();
}

// What workers send each other, from a server.
TEST(Hostile, AServerThatSendsSomethingElseThanRepliesEndsTheJob) {
  for (const auto& [kind, group] : {std::pair(FrameKind::kPush, 1U), std::pair(FrameKind::kPartial, 1U),
                                    std::pair(FrameKind::kNodePush, 1U), std::pair(FrameKind::kPartial, 0U),
                                    std::pair(FrameKind::kReply, 0U)}) {
    OtherMembers others;
    others.Add(Role::kServer, 0, "b");
    others.Add(Role::kWorker, 0, "b");
    others.on_join = [&](const JoinMessage& join) { others.Publish(join); };
    others.on_data_link = [&, kind = kind, group = group](Link& link) {
      EXPECT_TRUE(link.Send(Header(Role::kServer, 0, kind, group, {0}), {}, {}).ok());
    };
    others.Start();
    const Status status = End(Join(others, 2, {"aggregation.mode=ps", "servers.addresses=" + others.address}));
    EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << status.ToString();
    EXPECT_NE(status.text().find("frame from server 0 (other"), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("servers send replies of groups only"), std::string::npos) << status.text();
  }
}

// Ranks 0 and 1 are on node a, 2 and 3 on b. Slab 2 of node b is rank 3's to send.
TEST(Hostile, AFrameBetweenNodesFromAnotherThanTheCarrierEndsTheJob) {
  OtherMembers others;
  others.Add(Role::kWorker, 0, "a");
  others.Add(Role::kWorker, 2, "b");
  others.Add(Role::kWorker, 3, "b");
  others.on_join = [&](const JoinMessage& join) {
    others.Publish(join);
    others.DialAs(3, join, [](Link&) {});
    others.DialAs(2, join, [](Link& link) {
      EXPECT_TRUE(link.Send(Header(Role::kWorker, 1, FrameKind::kPartial, 1, {2}), {}, {}).ok());
    });
  };
  others.Start();
  const Status status = End(Join(others, 4, {"aggregation.mode=hierarchical"}));
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt) << status.ToString();
  EXPECT_NE(status.text().find("slab 2 of its node from rank 2, expected from rank 3"), std::string::npos)
      << status.text();
}

// Rank 0's part in a broadcast from rank 1: an empty frame that says that it is there.
void AnswerBroadcast(Link& link, const FrameHeader& announced) {
  FrameHeader header = Header(Role::kWorker, 0, FrameKind::kPartial, 0, {0});
  header.step = announced.step;
  header.collective = announced.collective;
  (void)link.Send(header, {}, {});
}

// Until the log of a worker says that it has noticed.
void AwaitClosedLink(const std::string& log, const std::string& peer) {
  const auto noticed = [&] {
    std::ifstream in(log);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    return text.find("data link to " + peer) != std::string::npos && text.find("closed: ") != std::string::npos;
  };
  for (int i = 0; i < 20'000 && !noticed(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// In mode ps only calls want links between workers, and both ends dial. One whose dial is never answered does without
// once the other's is; one that ends between two calls is made anew, and a call that is slow afterwards is just slow.
TEST(LinksOfCalls, ThatFailOrEndBetweenCallsDoNoHarm) {
  constexpr auto kPatience = std::chrono::seconds(2);  // join_timeout, membership.dead
  const std::string log = testing::TempDir() + "tally_links_of_calls_" + std::to_string(getpid());
  std::filesystem::remove(log);
  OtherMembers others;
  others.Add(Role::kServer, 0, "b");
  others.Add(Role::kWorker, 0, "b");
  std::atomic<bool> ready{false}, slow{false};
  std::atomic<int> hellos{0};
  JoinMessage joined;
  const Link* to_server = nullptr;
  others.on_join = [&](const JoinMessage& join) {
    joined = join;
    others.Publish(join);
  };
  others.on_data_link = [&](Link& link) { to_server = to_server == nullptr ? &link : to_server; };
  others.on_hello = [&](const LinkIdentity&) {
    if (++hellos == 1 || ready) return Status::Ok();  // the first link is that to the server
    if (hellos == 2) others.DialAs(0, joined, [](Link&) {});
    return Unavailable("not ready: never");
  };
  others.on_data_frame = [&](Link& link, const FrameHeader& header) {
    if (header.group.value != 0 || !header.slabs.empty()) return;
    others.After(slow ? kPatience * 3 / 2 : Nanos(0), [&link, header] { AnswerBroadcast(link, header); });
  };
  others.Start();
  auto client = Join(others, 2, {"aggregation.mode=ps", "servers.addresses=" + others.address,
                                 "membership.join_timeout=2s", "membership.dead=2s", "log.level=debug",
                                 "log.file=" + log});
  ASSERT_TRUE(client.ok()) << client.status().text();
  std::int32_t number = 7;
  const auto call = [&] { return (*client)->Broadcast(std::span(&number, 1), Rank(1)); };
  const auto begin = std::chrono::steady_clock::now();
  do {
    const Status status = call();
    ASSERT_TRUE(status.ok()) << status.text();
  } while (std::chrono::steady_clock::now() - begin < kPatience * 3 / 2);  // its dial has failed meanwhile
  EXPECT_GT(hellos, 2) << "it has dialled, again and again";
  ready = slow = true;
  others.Do([&] { others.CloseDataLinks(to_server); });
  AwaitClosedLink(log, "rank 0");
  const Status status = call();
  EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_TRUE((*client)->Leave().ok());
  std::filesystem::remove(log);
}

// One of two connections to a server ends between steps. The next step goes without it, so one that is slow later is just
// slow.
TEST(LinksOfSteps, ThatAStepWentWithoutExplainNothingLater) {
  constexpr auto kDead = std::chrono::seconds(2);
  const std::string log = testing::TempDir() + "tally_links_of_steps_" + std::to_string(getpid());
  std::filesystem::remove(log);
  OtherMembers others;
  std::atomic<bool> slow{false};
  const Link* first = nullptr;
  const std::vector<std::byte> zeros(10 * sizeof(float));
  others.Add(Role::kServer, 0, "b");
  others.Add(Role::kWorker, 0, "b");
  others.on_join = [&](const JoinMessage& join) { others.Publish(join); };
  others.on_message = [&](const ControlMessage& message) {
    if (const auto* declared = std::get_if<DeclareMessage>(&message)) {
      Config job;
      job.aggregation.mode = Mode::kPs;
      job.servers.addresses = {others.address};
      LayoutMessage layout = PlanGroup(std::vector{*declared, *declared}, job).value();
      layout.group = GroupId(1);
      layout.epoch = EpochId(2);
      others.Tell(layout);
    }
    if (const auto* prepared = std::get_if<PreparedMessage>(&message)) {
      others.Tell(VerdictMessage{prepared->group, prepared->step, prepared->epoch, true, ""});
    }
  };
  others.on_data_link = [&](Link& link) { first = first == nullptr ? &link : first; };
  others.on_data_frame = [&](Link& link, const FrameHeader& push) {
    FrameHeader reply = Header(Role::kServer, 0, FrameKind::kReply, 1, push.slabs);
    reply.epoch = EpochId(2);
    reply.step = push.step;
    reply.codec = push.codec;
    reply.codec_version = push.codec_version;
    reply.weight = 2;
    others.After(slow ? kDead * 3 / 2 : Nanos(0), [&link, &zeros, reply] { (void)link.Send(reply, zeros, {}); });
  };
  others.Start();
  auto client = Join(others, 2, {"aggregation.mode=ps", "servers.addresses=" + others.address, "link.connections=2",
                                 "membership.dead=2s", "log.level=debug", "log.file=" + log});
  ASSERT_TRUE(client.ok()) << client.status().text();
  const std::vector<TensorSpec> tensors = {{"w", ElementCount(10), DType::kFloat32}};
  auto group = (*client)->DeclareGroup(tensors);
  ASSERT_TRUE(group.ok()) << group.status().text();
  const auto step = [&]() -> Status {
    TALLY_RETURN_IF_ERROR((*group)->Submit(BucketId(0)).status());
    return (*group)->EndStep().status();
  };
  Status status = step();
  ASSERT_TRUE(status.ok()) << status.text();
  others.Do([&] { others.CloseDataLinks(first); });
  AwaitClosedLink(log, "server 0");
  status = step();
  ASSERT_TRUE(status.ok()) << status.text();
  slow = true;
  status = step();
  EXPECT_TRUE(status.ok()) << status.text();
  std::filesystem::remove(log);
}

}  // namespace
}  // namespace tally::test
