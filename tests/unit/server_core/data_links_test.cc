// Who answers a dialled data link: the member, or somebody that has its address.
#include "server/core/data_links.h"

#include <gmock/gmock.h>

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

}  // namespace
}  // namespace tally
