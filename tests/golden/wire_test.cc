// Pins the bytes that leave a process: a changed byte is a changed protocol. pinned.h says how to change them on purpose.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "common/control.h"
#include "common/frame.h"
#include "common/transport/handshake.h"
#include "tests/golden/pinned.h"

namespace tally {
namespace {

// Preamble and header, as on a TCP stream.
void ExpectPinnedFrame(const std::string& name, const FrameHeader& header) {
  std::vector<std::byte> encoded;
  EncodeHeader(header, &encoded);
  std::array<std::byte, kPreambleBytes> preamble;
  EncodePreamble({static_cast<std::uint32_t>(encoded.size()), static_cast<std::uint32_t>(header.payload_bytes)},
                 encoded, preamble);
  std::vector<std::byte> wire(preamble.begin(), preamble.end());
  wire.insert(wire.end(), encoded.begin(), encoded.end());

  const std::vector<std::byte> pinned = Pinned(name, wire);
  ASSERT_GT(pinned.size(), kPreambleBytes);
  const std::span<const std::byte, kPreambleBytes> head(pinned.data(), kPreambleBytes);
  const auto body = std::span(pinned).subspan(kPreambleBytes);
  const auto lengths = DecodePreamble(head, kMaxPayloadBytes);
  ASSERT_TRUE(lengths.ok()) << lengths.status().text();
  EXPECT_EQ(lengths->header_bytes, body.size());
  EXPECT_TRUE(CheckHeaderCrc(head, body).ok());
  FrameHeader back;
  ASSERT_TRUE(DecodeHeader(body, &back).ok());
  std::vector<std::byte> again;
  EncodeHeader(back, &again);
  EXPECT_EQ(again, encoded);
}

void ExpectPinnedControl(const std::string& name, const ControlMessage& message) {
  const auto back = DecodeControl(Pinned(name, EncodeControl(message)));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_TRUE(*back == message);
}

TEST(GoldenFrame, Push) {
  FrameHeader header;
  header.job_hash = 0x0123456789ABCDEF;
  header.epoch = EpochId{7};
  header.incarnation = 0xFEDCBA9876543210;
  header.group = GroupId{1};
  header.step = StepId{1000};
  header.bucket = BucketId{2};
  header.position = 3;
  header.codec = 5;
  header.codec_version = 1;
  header.flags = kFlagPreviousCommitted;
  header.weight = 32;
  header.slabs = {4, 8, 12};
  header.payload_bytes = 3000;
  header.payload_crc = 0xA1B2C3D4;
  header.has_crc = true;
  ExpectPinnedFrame("frame_push", header);
}

TEST(GoldenFrame, PartialWithContributors) {
  FrameHeader header;
  header.kind = FrameKind::kPartial;
  header.role = Role::kServer;
  header.contributors = {0, 2};
  header.slabs = {0};
  header.weight = 0.1;
  ExpectPinnedFrame("frame_partial", header);
}

TEST(GoldenFrame, StandaloneCollective) {
  FrameHeader header;
  header.kind = FrameKind::kTotal;
  header.collective = {65537, DType::kBFloat16, ReduceOp::kMean, 7};
  ExpectPinnedFrame("frame_collective", header);
}

TEST(GoldenFrame, HelloAndWelcome) {
  const LinkIdentity worker{0x1111222233334444, EpochId{5}, 99, Role::kWorker, 3, false};
  const LinkIdentity control{0x1111222233334444, EpochId{5}, 99, Role::kServer, 1, true};
  ExpectPinnedFrame("hello_worker", HandshakeHeader(FrameKind::kHello, worker));
  const LinkIdentity probe{0x1111222233334444, EpochId{5}, 99, Role::kWorker, 3, false, true};
  ExpectPinnedFrame("hello_probe", HandshakeHeader(FrameKind::kHello, probe));
  ExpectPinnedFrame("hello_control", HandshakeHeader(FrameKind::kHello, control));
  ExpectPinnedFrame("welcome", HandshakeHeader(FrameKind::kWelcome, control));
  const auto refusal = Pinned("refusal", EncodeRefusal(Mismatch("protocol 2 here, 1 there")));
  EXPECT_EQ(DecodeRefusal(refusal).kind(), StatusKind::kMismatch);
}

TEST(GoldenControl, EveryMessage) {
  const std::vector<TensorSpec> tensors = {{"fc1.weight", ElementCount{65538}, DType::kFloat32, {32769, 2}},
                                           {"fc1.bias", ElementCount{128}, DType::kBFloat16}};
  const FailureMessage failure{StatusKind::kPeerLost, "rank 1 went silent", true, Role::kWorker, 1};
  ExpectPinnedControl("control_join", JoinMessage{1, "0.1.0", Role::kWorker, 2, 4, "resnet", 77, "hostA", "node-1",
                                                  4711, {"tcp://10.0.0.1:4711"}, 0xDEADBEEF, "[job]\n", 1.25e9,
                                                  "eth0", "spine1/leaf3"});
  ExpectPinnedControl("control_refused", RefusedMessage{failure});
  ExpectPinnedControl("control_waiting", WaitingMessage{"for rank 3"});
  ExpectPinnedControl("control_epoch",
                      EpochMessage{EpochId{5}, 123, "resnet",
                                   {{Role::kServer, 0, Position{0}, 1, "hostA", "a", 10, {"tcp://127.0.0.1:1"}, 3e9},
                                    {Role::kWorker, 3, Position{2}, 8, "hostB", "b", 11, {}, 0, "s/l2"}},
                                   "[job]\n"});
  ExpectPinnedControl("control_declare", DeclareMessage{"model", tensors, {{"fc1.bias", "fc1.weight"}}, StepId{70}});
  LayoutMessage layout;
  layout.group = GroupId{1};
  layout.name = "model";
  layout.epoch = EpochId{5};
  layout.tensors = tensors;
  layout.buckets = {{1}, {0}};
  layout.exchange = ExchangeKind::kSchedule;
  layout.schedule = "ring";
  layout.owner_list = {{Role::kServer, 0}, {Role::kWorker, 2}};
  layout.owners = {0, 1, 1};
  layout.codecs = {3, 0};
  layout.first_step = StepId{70};
  ExpectPinnedControl("control_layout", layout);
  ExpectPinnedControl("control_prepared",
                      PreparedMessage{GroupId{1}, StepId{9}, EpochId{5}, true, false, "tensor fc1.weight", 1024,
                                      0x123456789ABCDEF0, 0.125F});
  ExpectPinnedControl("control_verdict", VerdictMessage{GroupId{1}, StepId{9}, EpochId{5}, false, "non-finite"});
  ExpectPinnedControl("control_heartbeat", HeartbeatMessage{42});
  ExpectPinnedControl("control_failure", failure);
  ExpectPinnedControl("control_leave", LeaveMessage{"done"});
  ExpectPinnedControl("control_reload", ReloadMessage{"[log]\n"});
  ExpectPinnedControl("control_measured", MeasuredMessage{1.25e8, 4});
  ExpectPinnedControl("control_links", LinksMessage{2});
}

}  // namespace
}  // namespace tally
