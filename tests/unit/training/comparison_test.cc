// Rows, JSON, table, verdict and report of a comparison, from records as train_mlp and tally-server write them.
#include "worker/cli/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "worker/cli/comparison_table.h"
#include "worker/cli/prediction.h"
#include "worker/cli/report.h"

namespace tally::cli {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// Differs by rank: step 20, 22, 24, 26 ms; exposed 10, 12, 14, 16 ms.
Json RankRecord(std::uint32_t rank, const std::string& exchange) {
  return {{"rank", rank},
          {"workers", 4},
          {"servers", 2},
          {"exchange", exchange},
          {"seed", 1},
          {"batch", 64},
          {"steps", 400},
          {"skipped", 0},
          {"exchanges", 412},
          {"tensor_elements", {62720, 320, 102400, 320, 102400, 320, 102400, 320, 3200, 10}},
          {"step_ms", 20.0 + 2 * rank},
          {"compute_ms", 10.0},
          {"comm_exposed_ms", 10.0 + 2 * rank},
          {"lone_comm_ms", 24.0 + rank},
          {"sent_bytes_per_step", 1500000.0 + rank},
          {"received_bytes_per_step", 1500002.0 + rank},
          {"residual_bytes", 1000u + rank},
          {"comm_cpu_s", 0.25},
          {"peak_rss_mb", 40.0 + rank},
          {"train_loss", 0.5 + rank * 0.25},
          {"test_loss", rank == 0 ? Json(0.5) : Json(nullptr)},
          {"test_accuracy", rank == 0 ? Json(0.85) : Json(nullptr)},
          {"accuracy_curve", rank == 0 ? Json::parse("[[0.5, 25, 0.6], [8.0, 400, 0.86]]") : Json::array()},
          {"target", 0.8},
          {"time_to_target_s", rank == 0 ? Json(3.5) : Json(nullptr)},
          {"weights_sha256", "ab12"}};
}

std::vector<Json> RankRecords(const std::string& exchange) {
  std::vector<Json> records;
  for (std::uint32_t rank = 0; rank < 4; ++rank) records.push_back(RankRecord(rank, exchange));
  return records;
}

std::vector<Json> ServerReports() {
  return {Json{{"bytes_received", 412 * 3000000.0}, {"bytes_sent", 412 * 3000100.0}},
          Json{{"bytes_received", 412 * 3000200.0}, {"bytes_sent", 412 * 3000300.0}}};
}

Setting PsSetting() {
  Setting setting;
  setting.mode = Mode::kPs;
  setting.servers = 2;
  setting.rate = "1gbit";
  setting.rate_bits = 1e9;
  setting.target = 0.8;
  return setting;
}

Row PsRow() { return MakeRow(PsSetting(), RankRecords("owners on 2 servers over zmq"), ServerReports(), 0.5).value(); }

Row WithResult(Mode mode, const std::string& codec, double samples_per_s, double accuracy) {
  Row row = PsRow();
  row.setting.mode = mode;
  row.setting.servers = mode == Mode::kRing ? 0 : 2;
  row.setting.compression.codec = codec;
  row.samples_per_s = samples_per_s;
  row.test_accuracy = accuracy;
  return row;
}

Comparison Several() {
  Comparison comparison{.version = "1.2.3", .cpus = 2, .rate = "1gbit", .rows = {}};
  comparison.rows = {WithResult(Mode::kPs, "none", 8000, 0.85), WithResult(Mode::kRing, "none", 10000, 0.85),
                     WithResult(Mode::kPs, "int8", 20000, 0.84), WithResult(Mode::kRing, "int8", 16000, 0.84),
                     WithResult(Mode::kPs, "topk", 30000, 0.74)};
  comparison.rows.back().setting.compression.error_feedback = false;
  comparison.rows.front().setting.colocated = true;
  return comparison;
}

TEST(MakeRow, AveragesOverRanksAndServers) {
  const Row row = PsRow();
  EXPECT_EQ(row.exchange, "owners");
  EXPECT_FALSE(row.schedule.has_value());
  EXPECT_EQ(row.step_ms, 23);
  EXPECT_EQ(row.comm_exposed_ms, 13);
  EXPECT_EQ(row.compute_ms(), 10);
  EXPECT_NEAR(row.comm_share, 13.0 / 23, 1e-12);
  EXPECT_NEAR(row.samples_per_s, 256 / 0.023, 1e-6);
  EXPECT_EQ(row.worker_sent_bytes, 1500001.5);
  EXPECT_EQ(row.worker_received_bytes, 1500003.5);
  EXPECT_NEAR(row.server_received_bytes, 3000100, 1e-6);
  EXPECT_NEAR(row.server_sent_bytes, 3000200, 1e-6);
  EXPECT_EQ(row.measured_comm_ms, 25.5);
  EXPECT_EQ(row.comm_cpu_s, 1.5);
  EXPECT_EQ(row.peak_rss_mb, 43);
  EXPECT_EQ(row.residual_bytes, 1003u);
  EXPECT_EQ(row.final_loss, 0.875);
  EXPECT_TRUE(row.ranks_agree);
}

TEST(MakeRow, NamesTheSchedule) {
  Setting setting = PsSetting();
  setting.mode = Mode::kRing;
  setting.servers = 0;
  const Row row = MakeRow(setting, RankRecords("schedule ring over tcp"), {}, 0).value();
  EXPECT_EQ(row.exchange, "schedule");
  EXPECT_EQ(row.schedule, "ring");
  EXPECT_EQ(row.server_received_bytes, 0);
}

TEST(MakeRow, SeesThatARankEndedElsewhere) {
  std::vector<Json> records = RankRecords("schedule ring over tcp");
  records[3]["weights_sha256"] = "cd34";
  EXPECT_FALSE(MakeRow(PsSetting(), records, {}, 0).value().ranks_agree);
}

TEST(MakeRow, RefusesRecordsWithMissingFields) {
  std::vector<Json> records = RankRecords("schedule ring over tcp");
  records[2].erase("step_ms");
  const auto row = MakeRow(PsSetting(), records, {}, 0);
  ASSERT_FALSE(row.ok());
  EXPECT_EQ(row.status().kind(), StatusKind::kCorrupt);
  EXPECT_THAT(row.status().text(), HasSubstr("step_ms"));
  EXPECT_FALSE(MakeRow(PsSetting(), {}, {}, 0).ok());
}

TEST(ComparisonJson, HasExactlyTheFieldsOfTheContract) {
  const Json json = ToJson(Comparison{.version = "1.2.3", .cpus = 2, .rate = "1gbit", .rows = {PsRow()}});
  std::set<std::string> top, keys;
  for (const auto& [key, value] : json.items()) top.insert(key);
  EXPECT_EQ(top, (std::set<std::string>{"version", "host", "emulated_rate", "median_prediction_error", "rows"}));
  EXPECT_EQ(json.at("host"), (Json{{"cpus", 2}}));
  EXPECT_EQ(json.at("emulated_rate"), "1gbit");
  const Json& row = json.at("rows").at(0);
  for (const auto& [key, value] : row.items()) keys.insert(key);
  EXPECT_EQ(keys, (std::set<std::string>{
                      "mode", "exchange", "schedule", "codec", "error_feedback", "workers", "servers", "ps_placement",
                      "nics", "rate", "seed", "steps", "samples_per_s", "step_ms", "comm_exposed_ms", "comm_share",
                      "worker_sent_bytes_per_step", "worker_received_bytes_per_step", "server_received_bytes_per_step",
                      "predicted_comm_ms", "measured_comm_ms", "prediction_error", "comm_cpu_s", "peak_rss_mb",
                      "residual_bytes",
                      "final_loss", "test_accuracy", "target", "time_to_target_s", "accuracy_curve",
                      "weights_sha256"}));
  EXPECT_EQ(row.at("mode"), "ps");
  EXPECT_TRUE(row.at("schedule").is_null());
  EXPECT_EQ(row.at("ps_placement"), "separate");
  EXPECT_EQ(row.at("nics"), 6);
  EXPECT_EQ(row.at("time_to_target_s"), 3.5);
  EXPECT_EQ(row.at("accuracy_curve"), Json::parse("[[0.5, 25, 0.6], [8.0, 400, 0.86]]"));
}

TEST(ComparisonJson, NullWhereThereIsNothing) {
  Setting setting;
  setting.mode = Mode::kRing;
  std::vector<Json> records = RankRecords("schedule ring over tcp");
  records[0]["time_to_target_s"] = nullptr;
  const Row made = MakeRow(setting, records, {}, 0).value();
  const Json json = ToJson(Comparison{.version = "1", .cpus = 2, .rate = "", .rows = {made}});
  EXPECT_TRUE(json.at("emulated_rate").is_null());
  for (const char* key : {"ps_placement", "rate", "predicted_comm_ms", "target", "time_to_target_s"}) {
    EXPECT_TRUE(json.at("rows").at(0).at(key).is_null()) << key;
  }
  EXPECT_EQ(json.at("rows").at(0).at("nics"), 4);
}

TEST(PredictedComm, IsTheModelsTimeOfTheEncodedBytes) {
  const GradientShape elements = {{1 << 20}, {}};
  Setting setting = PsSetting();
  const double wire_ms = 4.0 * (1 << 20) / 1e9 * 8 * 1e3;
  // Four workers on two servers' NICs: 4/2 times the gradient.
  EXPECT_NEAR(*PredictedCommMs(setting, std::nullopt, elements), 2 * wire_ms, 0.05 * wire_ms);
  // 2(N-1)/N of it around a ring, twice through a tree; halving and doubling has the ring's bytes in fewer rounds.
  const double ring = *PredictedCommMs(setting, "ring", elements);
  EXPECT_GT(ring, 1.5 * wire_ms - 1e-9);
  EXPECT_GT(*PredictedCommMs(setting, "tree", elements), ring);
  EXPECT_LT(*PredictedCommMs(setting, "halving_doubling", elements), ring);
  const double dense = *PredictedCommMs(setting, std::nullopt, elements);
  setting.compression.codec = "int8";
  EXPECT_LT(*PredictedCommMs(setting, std::nullopt, elements), dense / 3);
  setting.rate_bits = 0;
  EXPECT_FALSE(PredictedCommMs(setting, std::nullopt, elements).has_value());
}

MachineCosts FastMachine() {
  MachineCosts machine;
  machine.probe.cores = 2;
  machine.probe.links = {{"tcp", 1e-6, 1e9, 1e9, {1e-6, 1e-12}}, {"zmq", 1e-6, 1e9, 1e9, {1e-6, 1e-12}},
                         {"shm", 1e-6, 1e9, 1e9, {1e-6, 1e-12}}};
  machine.codecs["none"] = {"none", 4, 1e-12, 1e-12, 1e-12};
  machine.codecs["int8"] = {"int8", 1, 1e-12, 1e-12, 1e-12};
  return machine;
}

TEST(PredictedComm, CountsCoresWhereTheyAreSlowerThanTheWire) {
  const GradientShape shape = {{1 << 20, 1 << 20}, {{1}, {0}}};
  Setting setting = PsSetting();
  MachineCosts machine = FastMachine();
  const double wire = *PredictedCommMs(setting, std::nullopt, shape);
  const double fast = *PredictedCommMs(setting, std::nullopt, shape, &machine);
  // The last 256 KiB go to four workers when all else is done.
  EXPECT_NEAR(fast, wire + 4 * 262144 / 1e9 * 8 * 1e3, 0.02 * wire);
  // Four workers encode on two cores.
  machine.codecs["none"].encode_s = 1e-6;
  EXPECT_GT(*PredictedCommMs(setting, std::nullopt, shape, &machine), 4 * 2 * (1 << 20) * 1e-6 / 2 * 1e3);
  // On loopback cores are all there is, and nothing is known of a codec that could not be measured.
  setting.rate_bits = 0;
  setting.rate.clear();
  EXPECT_GT(*PredictedCommMs(setting, std::nullopt, shape, &machine), 4 * 2 * (1 << 20) * 1e-6 / 2 * 1e3);
  machine.codecs.erase("none");
  EXPECT_FALSE(PredictedCommMs(setting, std::nullopt, shape, &machine).has_value());
}

TEST(PredictedComm, ErrorsAreOfAllRowsThatHaveOne) {
  std::vector<Row> rows(4);
  const double measured[] = {10, 10, 10, 10};
  const std::optional<double> predicted[] = {10.5, 7, std::nullopt, 12};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].measured_comm_ms = measured[i];
    rows[i].predicted_comm_ms = predicted[i];
  }
  const Comparison comparison{.version = "1", .cpus = 2, .rate = "", .rows = rows};
  EXPECT_NEAR(*MedianPredictionError(comparison), 0.2, 1e-12);
  EXPECT_NEAR(*rows[1].PredictionError(), 0.3, 1e-12);
  EXPECT_FALSE(rows[2].PredictionError().has_value());
  EXPECT_FALSE(MedianPredictionError(Comparison{}).has_value());
  EXPECT_TRUE(ToJson(Comparison{}).at("median_prediction_error").is_null());
}

TEST(BusiestNic, AddsRolesThatShareOne) {
  Row row = PsRow();
  EXPECT_EQ(FindBusiestNic(row).name, "each server's NIC, outgoing");
  EXPECT_NEAR(FindBusiestNic(row).busy, 3000200.0 * 8 / 1e9 / 0.023, 1e-9);
  row.setting.colocated = true;
  EXPECT_NEAR(FindBusiestNic(row).bytes, 4500201.5, 1e-6);
  EXPECT_EQ(row.setting.nics(), 4u);
  row = WithResult(Mode::kRing, "none", 1, 1);
  row.server_received_bytes = row.server_sent_bytes = 0;
  EXPECT_EQ(FindBusiestNic(row).name, "each worker's NIC, incoming");
}

TEST(Verdict, TheFastestThatLearnedWinsAndTheBottleneckIsNamed) {
  const std::string verdict = Verdict(Several());
  EXPECT_THAT(verdict, testing::StartsWith("ps with int8 won here"));
  EXPECT_THAT(verdict, HasSubstr("2.0 times"));             // the best uncompressed: the ring
  EXPECT_THAT(verdict, HasSubstr("25 % faster than ring with int8"));
  EXPECT_THAT(verdict, HasSubstr("bottleneck"));
  EXPECT_THAT(Provenance(Several()), HasSubstr("emulated"));
  EXPECT_EQ(Verdict({}), "");
}

TEST(Agreement, IsAboutUncompressedRowsOfOneSeed) {
  Comparison comparison = Several();
  EXPECT_THAT(Agreement(comparison), HasSubstr("the same weights, bit for bit"));
  comparison.rows[1].weights_sha256 = "cd34";
  EXPECT_THAT(Agreement(comparison), HasSubstr("different weights"));
  comparison.rows[1].setting.seed = 2;
  EXPECT_EQ(Agreement(comparison), "");
}

TEST(ComparisonTable, HasARowForEachSetting) {
  const std::string text = ComparisonTable(Several()).Text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
  EXPECT_THAT(text, HasSubstr("ps colocated"));
  EXPECT_THAT(text, HasSubstr("topk no feedback"));
}

TEST(HtmlReport, HoldsEveryRowAndNothingFromElsewhere) {
  Comparison comparison = Several();
  comparison.version = "<script>";
  const std::string html = HtmlReport(comparison);
  for (const char* name : {"ps colocated · none", "ring · none", "ps · int8", "ring · int8", "ps · topk no feedback"}) {
    EXPECT_THAT(html, HasSubstr(name));
  }
  for (const char* accuracy : {"85.00 %", "84.00 %", "74.00 %"}) EXPECT_THAT(html, HasSubstr(accuracy));
  for (const char* foreign : {"http", "//", "src=", "href", "url(", "@import", "<script", "<link", "nan", "inf\""}) {
    EXPECT_EQ(html.find(foreign), std::string::npos) << foreign;
  }
  EXPECT_THAT(html, HasSubstr(Verdict(comparison).substr(0, 20)));
  EXPECT_THAT(html, HasSubstr("emulated"));
  EXPECT_THAT(HtmlReport({}), HasSubstr("No setting"));
}

}  // namespace
}  // namespace tally::cli
