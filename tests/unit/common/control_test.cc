#include "common/control.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace tally {
namespace {

std::vector<ControlMessage> Samples() {
  const std::vector<TensorSpec> tensors = {{"fc1.weight", ElementCount{65538}, DType::kFloat32, {32769, 2}},
                                           {"fc1.bias", ElementCount{1}, DType::kFloat16},
                                           {"fc2.weight", ElementCount{std::uint64_t{1} << 40}, DType::kBFloat16}};
  LayoutMessage layout;
  layout.group = GroupId{3};
  layout.name = "model";
  layout.epoch = EpochId{9};
  layout.tensors = tensors;
  layout.buckets = {{2, 1}, {}, {0}};
  layout.exchange = ExchangeKind::kSchedule;
  layout.schedule = "ring";
  layout.owner_list = {{Role::kServer, 1}, {Role::kWorker, 2}};
  layout.owners = {0, 1, 1, 0, 1};
  layout.codecs = {0, 3, 11};
  LayoutMessage large = layout;
  large.owners.assign(100000, 1);
  const FailureMessage failure{StatusKind::kPeerLost, "rank 1 went silent", true, Role::kWorker, 1};
  return {
      JoinMessage{kProtocolVersion, "0.1.0", Role::kServer, 2, 4, "resnet", 77, "hostA", "node-1", 4711,
                  {"tcp://10.0.0.1:4711", "tcp://[::1]:9"}, 0xDEADBEEF, "[job]\nname = \"resnet\"\n", 1.25e9, "eth0"},
      RefusedMessage{{StatusKind::kMismatch, "protocol 2 here, 1 there", false, Role::kWorker, 0}},
      WaitingMessage{"for ranks 2, 3"},
      EpochMessage{EpochId{5}, 123, "resnet",
                   {{Role::kServer, 0, Position{0}, 1, "hostA", "a", 10, {"tcp://127.0.0.1:1"}},
                    {Role::kWorker, 3, Position{2}, 8, "hostB", "b", 11, {}}},
                   "x = 1"},
      DeclareMessage{"model", tensors, {{"fc2.weight", "fc1.bias"}, {}, {"fc1.weight"}}},
      DeclareMessage{"model", {}, {}},
      layout,
      large,
      PreparedMessage{GroupId{1}, StepId{std::uint64_t{1} << 50}, EpochId{2}, true, false, "tensor fc1.weight"},
      PreparedMessage{GroupId{1}, StepId{1}, EpochId{2}, false, true, "", 0.5F},
      VerdictMessage{GroupId{1}, StepId{7}, EpochId{2}, true, ""},
      VerdictMessage{GroupId{1}, StepId{8}, EpochId{2}, false, "rank 0 voted skip"},
      HeartbeatMessage{std::uint64_t{1} << 60},
      failure,
      LeaveMessage{"done"},
      ReloadMessage{"[log]\nlevel = \"debug\"\n"},
      MeasuredMessage{1.5e9, kMaxLinkConnections},
      LinksMessage{4},
  };
}

TEST(Control, EveryMessageRoundTrips) {
  std::vector<bool> seen(std::variant_size_v<ControlMessage>, false);
  for (const ControlMessage& message : Samples()) {
    const auto bytes = EncodeControl(message);
    EXPECT_LE(bytes.size(), kMaxControlBytes);
    const auto back = DecodeControl(bytes);
    ASSERT_TRUE(back.ok()) << message.index() << ": " << back.status().text();
    EXPECT_TRUE(*back == message) << message.index();
    seen[message.index()] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), false), 0) << "a message has no sample";
}

TEST(Control, EveryTruncationIsRefused) {
  for (const ControlMessage& message : Samples()) {
    const auto bytes = EncodeControl(message);
    if (bytes.size() > 5000) continue;
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      const auto back = DecodeControl(std::vector<std::byte>(bytes.data(), bytes.data() + length));
      EXPECT_EQ(back.status().kind(), StatusKind::kCorrupt) << message.index() << " at " << length;
    }
  }
}

TEST(Control, RandomFlipsNeverCrash) {
  std::mt19937 random(3);
  for (const ControlMessage& message : Samples()) {
    const auto bytes = EncodeControl(message);
    if (bytes.size() > 5000) continue;
    for (int round = 0; round < 3000; ++round) {
      auto bad = bytes;
      for (auto flips = 1 + random() % 6; flips > 0; --flips) {
        bad[random() % bad.size()] ^= static_cast<std::byte>(1u << random() % 8);
      }
      const auto back = DecodeControl(bad);
      EXPECT_TRUE(back.ok() || back.status().kind() == StatusKind::kCorrupt ||
                  back.status().kind() == StatusKind::kUnsupported);
    }
  }
}

TEST(Control, RandomBytesNeverCrash) {
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::uint32_t> words(2 + 2 * (random() % 40));
    for (auto& word : words) word = random() % 4 == 0 ? static_cast<std::uint32_t>(random()) : random() % 16;
    words[0] = 0;
    words[1] = static_cast<std::uint32_t>(words.size() / 2 - 1);
    (void)DecodeControl(std::as_bytes(std::span(words)));
  }
}

TEST(Control, BytesBeyondTheBoundAreRefused) {
  ReloadMessage reload{std::string(kMaxControlBytes, 'x')};
  const auto bytes = EncodeControl(reload);
  EXPECT_GT(bytes.size(), kMaxControlBytes);
  EXPECT_EQ(DecodeControl(bytes).status().kind(), StatusKind::kCorrupt);
}

TEST(Control, AFewWordsCannotBecomeMuchMemory) {
  // An epoch whose member list claims 2^29 - 1 elements of no size.
  const std::vector<std::uint32_t> words = {
      0, 9,                  // one segment of nine words
      0, 0x00010001,         // root: one data word, one pointer
      3, 0,                  // the union's tag: epoch
      0, 0x00030002,         // Epoch: two data words, three pointers
      0, 0, 0, 0,            // its data
      0, 0,                  // job
      5, 7,                  // members: a composite list of no words, one word further on
      0, 0,                  // configuration
      0x1FFFFFFFu << 2, 0,   // the list's tag: 2^29 - 1 elements of no words
  };
  const Status status = DecodeControl(std::as_bytes(std::span(words))).status();
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_NE(status.text().find("limit"), std::string::npos) << status.text();
}

TEST(Control, ANewerMessageIsUnsupportedNotCorrupt) {
  // The place of the union's tag: where heartbeat (8) and leave (10) differ as their numbers do.
  const auto heartbeat = EncodeControl(HeartbeatMessage{0});
  const auto other = EncodeControl(LeaveMessage{""});
  bool tried = false;
  for (std::size_t i = 8; i < heartbeat.size() && i < other.size(); ++i) {
    if (heartbeat[i] != std::byte{8} || other[i] != std::byte{10}) continue;
    auto newer = heartbeat;
    newer[i] = std::byte{200};
    const Status status = DecodeControl(newer).status();
    EXPECT_EQ(status.kind(), StatusKind::kUnsupported);
    EXPECT_NE(status.text().find("200"), std::string::npos);
    tried = true;
  }
  EXPECT_TRUE(tried);
}

TEST(Control, RefusesWhatItsReaderMayNotSee) {
  const auto expect_refused = [](const ControlMessage& message, const char* field) {
    const auto back = DecodeControl(EncodeControl(message));
    EXPECT_EQ(back.status().kind(), StatusKind::kCorrupt) << field;
    EXPECT_NE(back.status().text().find(field), std::string::npos) << back.status().text();
  };
  JoinMessage join;
  join.job = "a\nb";
  expect_refused(join, "job");
  join = {};
  join.host = std::string(129, 'h');
  expect_refused(join, "host");
  join = {};
  join.role = static_cast<Role>(2);
  expect_refused(join, "role");
  join = {};
  join.endpoints = {"tcp://\x1b[2J"};
  expect_refused(join, "endpoint");
  DeclareMessage declare;
  declare.tensors = {{"", ElementCount{1}, DType::kFloat32}};
  expect_refused(declare, "tensor name");
  declare.tensors = {{"a", ElementCount{(std::uint64_t{1} << 40) + 1}, DType::kFloat32}};
  expect_refused(declare, "elements");
  for (const std::vector<std::uint64_t>& shape : std::vector<std::vector<std::uint64_t>>{
           {5}, {2, 4}, {0}, {std::uint64_t{1} << 63, 2}, {std::uint64_t{1} << 32, std::uint64_t{1} << 32, 6},
           std::vector<std::uint64_t>(17, 1)}) {
    declare.tensors = {{"a", ElementCount{6}, DType::kFloat32, shape}};
    expect_refused(declare, shape.size() > 16 ? "tensor dimensions" : "tensor shape");
  }
  declare.tensors = {{"a", ElementCount{1}, static_cast<DType>(3)}};
  expect_refused(declare, "dtype");
  declare.tensors.clear();
  declare.buckets = {{"a", "", "b"}};
  expect_refused(declare, "bucket");
  LayoutMessage layout;
  layout.buckets = {{0}};
  expect_refused(layout, "bucket");
  layout.buckets.clear();
  layout.owners = {0};
  expect_refused(layout, "owners");
  layout.owners.clear();
  layout.exchange = static_cast<ExchangeKind>(2);
  expect_refused(layout, "exchange");
  expect_refused(MeasuredMessage{-1, 1}, "measured rate");
  expect_refused(MeasuredMessage{1, 0}, "connections");
  expect_refused(LinksMessage{0}, "connections");
  expect_refused(LinksMessage{kMaxLinkConnections + 1}, "connections");
  FailureMessage failure;
  failure.kind = StatusKind::kOk;
  expect_refused(failure, "kind");
  failure.kind = static_cast<StatusKind>(99);
  expect_refused(failure, "kind");
}

TEST(Control, ADocumentHoldsNoZero) {
  auto bytes = EncodeControl(ReloadMessage{"abc#def"});
  std::ranges::replace(bytes, std::byte{'#'}, std::byte{0});
  EXPECT_EQ(DecodeControl(bytes).status().kind(), StatusKind::kCorrupt);
}

TEST(Control, NamesOfExactly128BytesPass) {
  JoinMessage join;
  join.host = std::string(128, 'h');
  EXPECT_TRUE(DecodeControl(EncodeControl(join)).ok());
}

TEST(Control, ANicsRateIsANumberOfBytes) {
  for (const double rate : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    JoinMessage join;
    join.nic_bytes_per_s = rate;
    EXPECT_EQ(DecodeControl(EncodeControl(join)).status().kind(), StatusKind::kCorrupt);
    EpochMessage epoch;
    epoch.members.emplace_back().nic_bytes_per_s = rate;
    EXPECT_EQ(DecodeControl(EncodeControl(epoch)).status().kind(), StatusKind::kCorrupt);
  }
}

TEST(Control, TextForPeopleLosesWhatCannotBePrinted) {
  const auto back = DecodeControl(EncodeControl(LeaveMessage{"bye\x1b[2J\r\nnext\tline\x7f"}));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(std::get<LeaveMessage>(*back).reason, "bye?[2J?\nnext\tline?");
  EXPECT_FALSE(DecodeControl(EncodeControl(LeaveMessage{std::string(70000, 'x')})).ok());
}

TEST(Control, SwitchPathsAreNamesFromTheTopDown) {
  for (const auto& [path, good] : std::vector<std::pair<std::string, bool>>{
           {"", true}, {"spine1/leaf3", true}, {"a//b", false}, {"/a", false}, {"a b", false}, {"a\nb", false},
           {std::string(200, 'a'), false}}) {
    JoinMessage join;
    join.switch_path = path;
    const Result<ControlMessage> joined = DecodeControl(EncodeControl(join));
    EXPECT_EQ(joined.ok(), good) << path;
    if (joined.ok()) {
      EXPECT_EQ(std::get<JoinMessage>(*joined).switch_path, path);
    }
    EpochMessage epoch;
    epoch.members.emplace_back().switch_path = path;
    EXPECT_EQ(DecodeControl(EncodeControl(epoch)).ok(), good) << path;
  }
}

TEST(Control, DescribesAMember) {
  EXPECT_EQ(Describe({Role::kWorker, 2, Position{0}, 0, "hostA", "", 4711, {}}), "rank 2 (hostA, pid 4711)");
  EXPECT_EQ(Describe({Role::kServer, 0, Position{0}, 0, "hostB", "", 12, {}}), "server 0 (hostB, pid 12)");
}

}  // namespace
}  // namespace tally
