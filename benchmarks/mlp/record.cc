#include "benchmarks/mlp/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tally::mlp {
namespace {

nlohmann::json NullIfNegative(double value) { return value < 0 ? nlohmann::json(nullptr) : nlohmann::json(value); }

}  // namespace

double MedianAfterWarmUp(const std::vector<StepTime>& times, double StepTime::*part) {
  std::vector<double> values;
  for (std::size_t i = times.size() > kWarmUpSteps ? kWarmUpSteps : 0; i < times.size(); ++i) {
    values.push_back(times[i].*part);
  }
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

nlohmann::json ToJson(const TrainRecord& r) {
  const double step_s = MedianAfterWarmUp(r.times, &StepTime::total);
  const double exposed_s = MedianAfterWarmUp(r.times, &StepTime::exposed);
  nlohmann::json curve = nlohmann::json::array();
  for (const CurvePoint& point : r.curve) curve.push_back({point.seconds, point.step, point.accuracy});
  return {
      {"rank", r.rank},
      {"workers", r.workers},
      {"servers", r.servers},
      {"exchange", r.exchange},
      {"seed", r.seed},
      {"batch", r.batch},
      {"steps", r.steps},
      {"skipped", r.skipped},
      {"exchanges", r.exchanges},
      {"tensor_elements", r.tensor_elements},
      {"buckets", r.buckets},
      {"lr", r.lr},
      {"momentum", r.momentum},
      {"samples_per_s", step_s > 0 ? static_cast<double>(r.batch * r.workers) / step_s : 0.0},
      {"step_ms", step_s * 1e3},
      {"compute_ms", MedianAfterWarmUp(r.times, &StepTime::compute) * 1e3},
      {"comm_exposed_ms", exposed_s * 1e3},
      {"comm_share", step_s > 0 ? exposed_s / step_s : 0.0},
      {"lone_comm_ms", NullIfNegative(r.lone_comm_ms)},
      {"sent_bytes_per_step", r.sent_bytes_per_step},
      {"received_bytes_per_step", r.received_bytes_per_step},
      {"residual_bytes", r.residual_bytes},
      {"comm_cpu_s", r.comm_cpu_s},
      {"process_cpu_s", r.process_cpu_s},
      {"peak_rss_mb", r.peak_rss_mb},
      {"train_loss", r.train_loss},
      {"test_loss", NullIfNegative(r.test_loss)},
      {"test_accuracy", NullIfNegative(r.test_accuracy)},
      {"accuracy_curve", curve},
      {"target", r.target > 0 ? nlohmann::json(r.target) : nlohmann::json(nullptr)},
      {"time_to_target_s", NullIfNegative(r.time_to_target_s)},
      {"weights_sha256", r.weights_sha256},
  };
}

}  // namespace tally::mlp
