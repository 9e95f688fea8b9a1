// What of a group's tensors travels when a linear codec stands in for some of them.
#include "server/core/wire_layout.h"

#include <gtest/gtest.h>

#include "compress/half_numbers.h"
#include "server/core/group_plan.h"
#include "server/core/group_tables.h"

namespace tally {
namespace {

constexpr std::uint8_t kRandomk = 8;

std::vector<TensorSpec> Tensors() {
  return {{"a", ElementCount(100'000)}, {"b", ElementCount(1000)}, {"c", ElementCount(50'000)}};
}

Config Job(const std::string& codec, Mode mode) {
  Config job;
  job.compression.codec = codec;
  job.aggregation.mode = mode;
  job.servers.addresses = {"tcp://127.0.0.1:7070"};
  if (mode == Mode::kRing) job.servers.addresses.clear();
  return job;
}

TEST(WireLayout, WithoutLinearCodecsItIsTheDeclaration) {
  const std::vector<std::vector<std::uint32_t>> buckets = {{2, 1}, {0}};
  const std::vector<std::uint8_t> codecs = {3, 0, 4};
  const WireLayout wire = std::move(MakeWireStages(Tensors(), buckets, codecs, ExchangeKind::kOwners, {}, 2).value().back());
  EXPECT_TRUE(wire.linear.empty());
  EXPECT_EQ(wire.layout.tensors, Tensors());
  EXPECT_EQ(wire.layout.buckets, buckets);
  EXPECT_EQ(wire.layout.slabs.size(), wire.dense.slabs.size());
}

TEST(WireLayout, VectorsStandForTheirTensors) {
  const std::vector<std::vector<std::uint32_t>> buckets = {{2, 1}, {0}};
  const WireLayout wire = std::move(
      MakeWireStages(Tensors(), buckets, std::vector<std::uint8_t>{kRandomk, 0, kRandomk}, ExchangeKind::kOwners, {},
                     2).value().back());
  ASSERT_EQ(wire.layout.tensors.size(), 5U);
  EXPECT_EQ(wire.layout.tensors[3].name, "c/values");
  EXPECT_EQ(wire.layout.tensors[4], (TensorSpec{"a/values", ElementCount(502 + 499)}));
  EXPECT_EQ(wire.layout.tensors[0].elements.value, 0U);
  EXPECT_EQ(wire.layout.tensors[1].elements.value, 1000U);
  EXPECT_EQ(wire.layout.buckets, (std::vector<std::vector<std::uint32_t>>{{2, 1, 3}, {0, 4}}));
  EXPECT_EQ(wire.dense.tensors[0].elements.value, 100'000U);
  EXPECT_EQ(wire.dense.tensors[4].elements.value, 0U);
  EXPECT_EQ(wire.second_bucket, (std::vector<std::uint32_t>{0, 0}));
  ASSERT_EQ(wire.linear.size(), 2U);
  EXPECT_EQ(wire.linear[1].tensor, 0U);
  EXPECT_EQ(wire.linear[1].first, 4U);
  EXPECT_FALSE(wire.linear[1].two_phases());
  EXPECT_TRUE(wire.is_vector(3));
  EXPECT_FALSE(wire.is_vector(2));
}

TEST(WireLayout, PlansAndTablesAgree) {
  for (const Mode mode : {Mode::kPs, Mode::kRing, Mode::kHybrid}) {
    const Config job = Job("randomk", mode);
    std::vector<DeclareMessage> declared(3, DeclareMessage{"default", Tensors(), {}});
    const LayoutMessage message = PlanGroup(declared, job).value();
    EXPECT_EQ(message.codecs, (std::vector<std::uint8_t>{kRandomk, 0, kRandomk})) << "b is too small";
    EXPECT_EQ(message.tensors, Tensors());
    const auto tables = MakeGroupTables(message, job, 3, 3);
    ASSERT_TRUE(tables.ok()) << tables.status().ToString();
    EXPECT_EQ((*tables)->message.owners.size(), (*tables)->layout.slabs.size());
    for (const Codec* codec : (*tables)->tensor_codec) EXPECT_EQ(codec->id(), kCodecNone) << "vectors travel as they are";
    EXPECT_EQ(message.exchange == ExchangeKind::kSchedule, mode == Mode::kRing);
  }
}

TEST(WireLayout, StagesBeforeTheConfiguredCodec) {
  Config job = Job("topk", Mode::kPs);
  job.compression.start_step = 5;
  job.compression.warmup = {0.25, 0.0625};
  job.compression.warmup_steps = 10;
  const std::vector<DeclareMessage> declared(2, DeclareMessage{"default", Tensors(), {}});
  const LayoutMessage message = PlanGroup(declared, job).value();
  const auto stages = StagesOf(MakeGroupTables(message, job, 2, 2).value());
  ASSERT_EQ(stages.size(), 4U);
  const std::vector<std::uint64_t> first_steps = {0, 5, 15, 25};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(stages[i]->first_step, first_steps[i]);
    EXPECT_EQ(stages[i]->owners, message.owners) << "the same slabs have the same owners";
    EXPECT_EQ(stages[i]->renumbered, i == 0);
  }
  EXPECT_EQ(stages[0]->encoded_bytes(0), 4U * 50'176);
  EXPECT_EQ(stages[1]->encoded_bytes(0), 6U * 12'544);
  EXPECT_EQ(stages[2]->encoded_bytes(0), 6U * 3'136);
  EXPECT_EQ(stages[3]->encoded_bytes(0), 6U * 502);

  LayoutMessage more = message;
  more.owners.push_back(0);
  EXPECT_EQ(MakeGroupTables(more, job, 2, 2).status().kind(), StatusKind::kCorrupt);
  more.owners.resize(message.owners.size() - 1);
  EXPECT_EQ(MakeGroupTables(more, job, 2, 2).status().kind(), StatusKind::kCorrupt);
}

TEST(WireLayout, LinearCodecsNumberTheirSlabsAnew) {
  Config job = Job("randomk", Mode::kPs);
  job.compression.start_step = 3;
  const std::vector<DeclareMessage> declared(2, DeclareMessage{"default", Tensors(), {}});
  const LayoutMessage message = PlanGroup(declared, job).value();
  const auto stages = StagesOf(MakeGroupTables(message, job, 2, 2).value());
  ASSERT_EQ(stages.size(), 2U);
  EXPECT_EQ(stages[0]->layout.tensors, Tensors());
  EXPECT_TRUE(stages[1]->renumbered);
  EXPECT_EQ(stages[0]->owners.size() + stages[1]->owners.size(), message.owners.size());
}

// What an owner keeps of 16-bit means before the codec begins must have an heir afterwards.
TEST(WireLayout, TensorsOf16BitsWaitForTheCodecInTheirOwnTypeOrAsFp32) {
  const std::vector<TensorSpec> tensors = {{"w", ElementCount(256 * 256), DType::kFloat32, {256, 256}},
                                           {"h", ElementCount(100'000), DType::kFloat16},
                                           {"small", ElementCount(100), DType::kFloat16}};
  const std::uint8_t fp16 = PlainCodec(DType::kFloat16);
  using Ids = std::vector<std::uint8_t>;
  const auto stages = [&](const char* codec, Mode mode, const char* reply = "same") {
    Config job = Job(codec, mode);
    job.compression.start_step = 3;
    job.compression.reply = reply;
    const LayoutMessage message =
        PlanGroup(std::vector<DeclareMessage>(2, DeclareMessage{"default", tensors, {}}), job).value();
    return StagesOf(MakeGroupTables(message, job, 2, 2).value());
  };
  const auto int8 = stages("int8", Mode::kPs);
  EXPECT_EQ(int8[0]->codec_ids, (Ids{0, fp16, fp16}));
  EXPECT_EQ(int8[1]->codec_ids, (Ids{3, 3, fp16}));
  const auto shared = stages("int8_shared", Mode::kPs);
  EXPECT_EQ(shared[0]->codec_ids, (Ids{0, 0, fp16})) << "owners of int8_shared keep nothing";
  EXPECT_EQ(stages("topk", Mode::kPs)[0]->codec_ids, (Ids{0, fp16, fp16}));
  EXPECT_EQ(stages("topk", Mode::kPs, "union")[0]->codec_ids, (Ids{0, 0, fp16}));
  const auto linear = stages("powersgd", Mode::kPs);
  EXPECT_EQ(linear[0]->codec_ids, (Ids{0, 0, 0})) << "slabs change their owners";
  EXPECT_EQ(linear[1]->codec_ids, (Ids{0, fp16, fp16, 0, 0}));
  EXPECT_EQ(stages("none", Mode::kPs).size(), 1U);
}

TEST(WireLayout, CollectivesAreExact) {
  const std::vector<DeclareMessage> declared(2, DeclareMessage{"collective.1", {{"sum", ElementCount(100'000)}}, {}});
  const Config job = Job("randomk", Mode::kRing);
  const auto tables = MakeGroupTables(PlanGroup(declared, job).value(), job, 2, 2);
  ASSERT_TRUE(tables.ok()) << tables.status().ToString();
  EXPECT_TRUE((*tables)->linear.empty());
}

// With node stages owners are among nodes, of which there are fewer than workers.
TEST(GroupTables, OwnersAreAmongTheExchangesPositions) {
  Config job;
  job.job.workers = 4;
  job.aggregation.mode = Mode::kRing;
  DeclareMessage declared;
  declared.group = "default";
  declared.tensors = {{"w", ElementCount(100000), DType::kFloat32}};
  const LayoutMessage message = PlanGroup(std::vector<DeclareMessage>(4, declared), job).value();
  ASSERT_EQ(message.owner_list.size(), 4U);
  EXPECT_TRUE(MakeGroupTables(message, job, 4, 4).ok());
  const Status status = MakeGroupTables(message, job, 4, 2).status();
  EXPECT_EQ(status.kind(), StatusKind::kCorrupt);
  EXPECT_NE(status.text().find("position 2"), std::string::npos) << status.text();
}

}  // namespace
}  // namespace tally
