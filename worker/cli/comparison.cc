#include "worker/cli/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "worker/cli/prediction.h"

namespace tally::cli {
namespace {

using Json = nlohmann::json;

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::optional<double> OptionalNumber(const Json& object, const char* key) {
  const Json& value = object.at(key);
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

double Mean(const std::vector<Json>& objects, const char* key) {
  double sum = 0;
  for (const Json& object : objects) sum += object.at(key).get<double>();
  return objects.empty() ? 0 : sum / static_cast<double>(objects.size());
}

// "owners on 2 servers over zmq" or "schedule ring over tcp", maybe behind "node stages around ".
void ParseExchange(std::string described, Row* row) {
  constexpr std::string_view kStages = "node stages around ";
  if (described.starts_with(kStages)) described.erase(0, kStages.size());
  const std::size_t space = std::min(described.find(' '), described.size());
  row->exchange = described.substr(0, space);
  if (row->exchange != "schedule" || space == described.size()) return;
  const std::size_t end = std::min(described.find(' ', space + 1), described.size());
  row->schedule = described.substr(space + 1, end - space - 1);
}

// May throw Json::exception for a field that is missing or of another type.
Row RowFromRecords(const Setting& setting, const std::vector<Json>& ranks, const std::vector<Json>& servers,
                   double server_cpu_s, const MachineCosts* machine) {
  const Json& first = ranks.front();
  Row row;
  row.setting = setting;
  ParseExchange(first.at("exchange").get<std::string>(), &row);
  row.step_ms = Mean(ranks, "step_ms");
  row.comm_exposed_ms = Mean(ranks, "comm_exposed_ms");
  row.comm_share = row.step_ms > 0 ? row.comm_exposed_ms / row.step_ms : 0;
  const double samples = first.at("batch").get<double>() * static_cast<double>(ranks.size());
  row.samples_per_s = row.step_ms > 0 ? samples / row.step_ms * 1e3 : 0;
  row.worker_sent_bytes = Mean(ranks, "sent_bytes_per_step");
  row.worker_received_bytes = Mean(ranks, "received_bytes_per_step");
  const double exchanges = first.at("exchanges").get<double>();
  if (exchanges > 0) {
    row.server_received_bytes = Mean(servers, "bytes_received") / exchanges;
    row.server_sent_bytes = Mean(servers, "bytes_sent") / exchanges;
  }
  row.measured_comm_ms = Mean(ranks, "lone_comm_ms");
  row.comm_cpu_s = server_cpu_s + Mean(ranks, "comm_cpu_s") * static_cast<double>(ranks.size());
  for (const Json& rank : ranks) {
    row.peak_rss_mb = std::max(row.peak_rss_mb, rank.at("peak_rss_mb").get<double>());
    row.residual_bytes = std::max(row.residual_bytes, rank.at("residual_bytes").get<std::uint64_t>());
    row.ranks_agree = row.ranks_agree && rank.at("weights_sha256") == first.at("weights_sha256");
  }
  row.final_loss = Mean(ranks, "train_loss");
  row.test_accuracy = first.at("test_accuracy").get<double>();
  row.time_to_target_s = OptionalNumber(first, "time_to_target_s");
  for (const Json& point : first.at("accuracy_curve")) {
    row.curve.push_back({point.at(0).get<double>(), point.at(1).get<std::uint64_t>(), point.at(2).get<double>()});
  }
  row.weights_sha256 = first.at("weights_sha256").get<std::string>();
  GradientShape shape{first.at("tensor_elements").get<std::vector<std::uint64_t>>(), {}};
  if (first.contains("buckets")) first.at("buckets").get_to(shape.buckets);
  row.predicted_comm_ms = PredictedCommMs(setting, row.schedule, shape, machine);
  return row;
}

Json RowToJson(const Row& row) {
  const Setting& setting = row.setting;
  Json curve = Json::array();
  for (const CurvePoint& point : row.curve) curve.push_back({point.seconds, point.step, point.accuracy});
  return {
      {"mode", ModeName(setting.mode)},
      {"exchange", row.exchange},
      {"schedule", OrNull(row.schedule)},
      {"codec", setting.CodecText()},
      {"error_feedback", setting.compression.error_feedback},
      {"workers", setting.workers},
      {"servers", setting.servers},
      {"ps_placement", setting.with_servers() ? Json(setting.colocated ? "colocated" : "separate") : Json(nullptr)},
      {"nics", setting.nics()},
      {"rate", setting.rate.empty() ? Json(nullptr) : Json(setting.rate)},
      {"seed", setting.seed},
      {"steps", setting.steps},
      {"samples_per_s", row.samples_per_s},
      {"step_ms", row.step_ms},
      {"comm_exposed_ms", row.comm_exposed_ms},
      {"comm_share", row.comm_share},
      {"worker_sent_bytes_per_step", row.worker_sent_bytes},
      {"worker_received_bytes_per_step", row.worker_received_bytes},
      {"server_received_bytes_per_step", row.server_received_bytes},
      {"predicted_comm_ms", OrNull(row.predicted_comm_ms)},
      {"measured_comm_ms", row.measured_comm_ms},
      {"prediction_error", OrNull(row.PredictionError())},
      {"comm_cpu_s", row.comm_cpu_s},
      {"peak_rss_mb", row.peak_rss_mb},
      {"residual_bytes", row.residual_bytes},
      {"final_loss", row.final_loss},
      {"test_accuracy", row.test_accuracy},
      {"target", setting.target > 0 ? Json(setting.target) : Json(nullptr)},
      {"time_to_target_s", OrNull(row.time_to_target_s)},
      {"accuracy_curve", curve},
      {"weights_sha256", row.weights_sha256},
  };
}

}  // namespace

std::string Setting::Pattern() const { return std::string(ModeName(mode)) + (colocated ? " colocated" : ""); }

std::string Row::Pattern() const {
  const std::string pattern = setting.Pattern();
  return schedule.value_or(pattern) == pattern ? pattern : pattern + " (" + *schedule + ")";
}

std::string Setting::Codec() const {
  const bool lossless = compression.codec == "none";
  return CodecText() + (compression.error_feedback || lossless ? "" : " no feedback");
}

Result<Row> MakeRow(const Setting& setting, const std::vector<Json>& ranks, const std::vector<Json>& servers,
                    double server_cpu_s, const MachineCosts* machine) {
  if (ranks.empty()) return InvalidArgument("a row needs the record of at least one rank");
  try {
    return RowFromRecords(setting, ranks, servers, server_cpu_s, machine);
  } catch (const Json::exception& error) {
    return Corrupt(std::string("a report of ") + setting.Pattern() + " " + setting.Codec() + ": " + error.what());
  }
}

std::optional<double> Row::PredictionError() const {
  if (!predicted_comm_ms.has_value() || measured_comm_ms <= 0) return std::nullopt;
  return std::abs(*predicted_comm_ms - measured_comm_ms) / measured_comm_ms;
}

std::optional<double> MedianPredictionError(const Comparison& comparison) {
  std::vector<double> errors;
  for (const Row& row : comparison.rows) {
    if (const std::optional<double> error = row.PredictionError(); error.has_value()) errors.push_back(*error);
  }
  if (errors.empty()) return std::nullopt;
  std::ranges::sort(errors);
  const std::size_t middle = errors.size() / 2;
  return errors.size() % 2 == 1 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2;
}

BusiestNic FindBusiestNic(const Row& row) {
  const bool shared = row.setting.colocated;
  const char* worker = shared ? "the NICs that a worker and a server share" : "each worker's NIC";
  const std::array<BusiestNic, 4> nics = {{
      {std::string(worker) + ", outgoing", row.worker_sent_bytes + (shared ? row.server_sent_bytes : 0)},
      {std::string(worker) + ", incoming", row.worker_received_bytes + (shared ? row.server_received_bytes : 0)},
      {"each server's NIC, outgoing", shared ? 0 : row.server_sent_bytes},
      {"each server's NIC, incoming", shared ? 0 : row.server_received_bytes},
  }};
  const auto less = [](const BusiestNic& a, const BusiestNic& b) { return a.bytes < b.bytes; };
  BusiestNic busiest = *std::max_element(nics.begin(), nics.end(), less);
  const double capacity = row.setting.rate_bits / 8 * row.step_ms * 1e-3;
  busiest.busy = capacity > 0 ? busiest.bytes / capacity : 0;
  return busiest;
}

Json ToJson(const Comparison& comparison) {
  Json rows = Json::array();
  for (const Row& row : comparison.rows) rows.push_back(RowToJson(row));
  return {{"version", comparison.version},
          {"host", {{"cpus", comparison.cpus}}},
          {"emulated_rate", comparison.rate.empty() ? Json(nullptr) : Json(comparison.rate)},
          {"median_prediction_error", OrNull(MedianPredictionError(comparison))},
          {"rows", rows}};
}

}  // namespace tally::cli
