// Who answers a dialled data link: the member, or somebody that has its address.
#include "server/core/data_links.h"

#include <gmock/gmock.h>

#include <deque>

#include "tests/unit/common/link_harness.h"

namespace tally {
namespace {

using ::testing::HasSubstr;
using testing::End;
using testing::RunUntil;

constexpr std::uint64_t kJob = 77;

Member Worker(std::uint32_t rank, std::uint32_t position) {
  Member member;
  member.index = rank;
  member.position = Position(position);
  member.incarnation = 100 + rank;
  member.host = "host" + std::to_string(rank);
  return member;
}

LinkIdentity Identity(std::uint32_t rank, std::uint64_t incarnation) {
  return {kJob, EpochId(1), incarnation, Role::kWorker, rank, false};
}

class DataLinksTest : public ::testing::Test {
 protected:
  DataLinksTest() {
    Config::Log log;
    log.level = "off";
    logger_ = Logger::Make(log).value();
    links_ = std::make_unique<DataLinks>(&loop_, &end_, logger_.get(), std::uint64_t{1} << 20);
    links_->on_error = [this](const Status& why) { error_ = why; };
    epoch_.epoch = EpochId(1);
    epoch_.job_hash = kJob;
    epoch_.members = {Worker(0, 0), Worker(1, 2), Worker(2, 1)};
    links_->Admit(epoch_, Identity(0, 100));
    dialling_ = MakeTransport("tcp", &loop_, &pool_, {}).value();
  }
  // A listener that answers as `identity`, at `endpoint` or at any port.
  std::string Listen(const LinkIdentity& identity, const std::string& endpoint = "tcp://127.0.0.1:0") {
    listening_.reset();
    listening_ = MakeTransport("tcp", &loop_, &pool_, {}).value();
    const Result<std::string> bound = listening_->Listen(endpoint, identity, &door_);
    EXPECT_TRUE(bound.ok()) << bound.status().text();
    return bound.ok() ? *bound : "";
  }

  EventLoop loop_;
  BufferPool pool_;
  End end_;
  testing::Server door_;
  EpochMessage epoch_;
  Status error_;
  std::unique_ptr<Logger> logger_;
  std::unique_ptr<DataLinks> links_;
  std::unique_ptr<Transport> dialling_, listening_;
};

constexpr OwnerRef kRank1{Role::kWorker, 2};  // it stands at position 2

// Keeps what is sent until it goes.
class HeldLink final : public Link {
 public:
  HeldLink(LinkIdentity peer, std::uint64_t* bytes) : peer_(peer), bytes_(bytes) {}
  ~HeldLink() override {
    for (const Release& release : releases_) release();
  }
  Status Send(const FrameHeader&, std::span<const std::byte> payload, Release on_release) override {
    *bytes_ += payload.size();
    releases_.push_back(on_release);
    return Status::Ok();
  }
  // Of the first frame; the rest of them is in the system's hands.
  void LetGo() {
    const Release release = releases_.front();
    releases_.pop_front();
    release();
  }
  bool empty() const { return releases_.empty(); }
  void Close() override {}
  void PauseReceive(bool) override {}
  const LinkIdentity& peer() const override { return peer_; }
  std::string Describe() const override { return "held"; }
  std::uint64_t queued_bytes() const override { return 0; }  // the socket takes all at once
  const LinkStats& stats() const override { return stats_; }

 private:
  LinkIdentity peer_;
  std::uint64_t* bytes_;
  LinkStats stats_;
  std::deque<Release> releases_;
};

// Dials such links.
class HeldTransport final : public Transport {
 public:
  explicit HeldTransport(EventLoop* loop) : loop_(loop) {}
  std::string_view name() const override { return "held"; }
  Result<std::string> Listen(std::string_view, const LinkIdentity&, Acceptor*) override { return Unavailable("never"); }
  void Connect(std::string_view endpoint, const LinkIdentity&, ConnectDone done) override {
    dialled.emplace_back(endpoint);
    auto link = std::make_shared<std::unique_ptr<HeldLink>>(
        std::make_unique<HeldLink>(Identity(1, 101), &sent.emplace_back(0)));
    links.push_back(link->get());
    loop_->Post([link, done = std::move(done)] { done(std::unique_ptr<Link>(std::move(*link))); });
  }

  std::vector<std::string> dialled;
  std::vector<HeldLink*> links;
  std::deque<std::uint64_t> sent;  // bytes on each

 private:
  EventLoop* loop_;
};

TEST_F(DataLinksTest, TheMemberIsTaken) {
  links_->Dial(dialling_.get(), kRank1, {Listen(Identity(1, 101))}, 1, std::chrono::seconds(20));
  EXPECT_TRUE(RunUntil(loop_, [&] { return links_->complete(kRank1, 1); }));
  EXPECT_EQ(links_->rejected(), 0U);
}

TEST_F(DataLinksTest, AnotherIsNotTakenAndDiallingGoesOnUntilTheMemberIsThere) {
  // Another member, the same rank of an earlier life, a server of that number.
  LinkIdentity server = Identity(1, 101);
  server.role = Role::kServer;
  std::string endpoint = Listen(Identity(2, 102));
  links_->Dial(dialling_.get(), kRank1, {endpoint}, 1, std::chrono::seconds(60));
  for (const LinkIdentity& wrong : {Identity(1, 999), server}) {
    const std::uint64_t before = links_->rejected();
    EXPECT_TRUE(RunUntil(loop_, [&] { return links_->rejected() > before + 1; })) << "it dials again";
    EXPECT_FALSE(links_->complete(kRank1, 1));
    endpoint = Listen(wrong, endpoint);
  }
  endpoint = Listen(Identity(1, 101), endpoint);
  EXPECT_TRUE(RunUntil(loop_, [&] { return links_->complete(kRank1, 1); }));
  EXPECT_TRUE(error_.ok()) << error_.text();
}

TEST_F(DataLinksTest, InTheEndTheErrorNamesBoth) {
  links_->Dial(dialling_.get(), kRank1, {Listen(Identity(2, 102))}, 1, std::chrono::milliseconds(100));
  EXPECT_TRUE(RunUntil(loop_, [&] { return !error_.ok(); }));
  EXPECT_THAT(error_.text(), HasSubstr("dialled rank 1 (host1"));
  EXPECT_THAT(error_.text(), HasSubstr("rank 2 (host2"));
  EXPECT_FALSE(links_->complete(kRank1, 1));
}

TEST_F(DataLinksTest, MoreConnectionsTakeTheNextEndpoints) {
  HeldTransport held(&loop_);
  const std::vector<std::string> endpoints = {"held://h:1", "held://h:2", "held://h:3"};
  links_->Dial(&held, kRank1, endpoints, 1, std::chrono::seconds(20));
  links_->Dial(&held, kRank1, endpoints, 3, std::chrono::seconds(20), nullptr, Nanos::max(), 1);
  ASSERT_TRUE(RunUntil(loop_, [&] { return links_->complete(kRank1, 4); }));
  EXPECT_EQ(held.dialled, (std::vector{endpoints[0], endpoints[1], endpoints[2], endpoints[0]}));
  links_->CloseAll();
}

// What waits for the window counts as well: the sockets themselves look empty.
TEST_F(DataLinksTest, ABurstIsDealtOutEvenly) {
  HeldTransport held(&loop_);
  links_->Dial(&held, kRank1, {"held://h:1"}, 2, std::chrono::seconds(20));
  ASSERT_TRUE(RunUntil(loop_, [&] { return links_->complete(kRank1, 2); }));
  const std::vector<std::byte> payload(std::size_t{1} << 20);
  // Large and small ones in turns, as many as four windows.
  std::uint64_t total = 0;
  for (int i = 0; i < 64; ++i) {
    const std::size_t bytes = i % 2 == 0 ? 100000 : 20000;
    links_->Send(kRank1, {}, std::span(payload).first(bytes), {});
    total += bytes;
  }
  for (bool some = true; some;) {
    some = false;
    for (HeldLink* const link : held.links) {
      if (link->empty()) continue;
      link->LetGo();
      some = true;
    }
  }
  ASSERT_EQ(held.sent.size(), 2u);
  EXPECT_EQ(held.sent[0] + held.sent[1], total);
  EXPECT_NEAR(static_cast<double>(held.sent[0]), static_cast<double>(total) / 2, static_cast<double>(total) / 8);
  links_->CloseAll();
}

}  // namespace
}  // namespace tally
