#include "benchmarks/mlp/record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tally::mlp {
namespace {

TEST(MedianAfterWarmUp, LeavesTheFirstStepsOut) {
  std::vector<StepTime> times;
  EXPECT_EQ(MedianAfterWarmUp(times, &StepTime::total), 0);
  for (const double total : {100.0, 100.0, 100.0, 4.0, 1.0, 2.0}) times.push_back({.total = total, .exposed = total / 2});
  EXPECT_EQ(MedianAfterWarmUp(times, &StepTime::total), 2);
  EXPECT_EQ(MedianAfterWarmUp(times, &StepTime::exposed), 1);
  times.push_back({.total = 3});
  EXPECT_EQ(MedianAfterWarmUp(times, &StepTime::total), 2.5);
  times.resize(3);  // no more than the warm-up
  EXPECT_EQ(MedianAfterWarmUp(times, &StepTime::total), 100);
}

TEST(RecordJson, MedianStepGivesSamplesAndShare) {
  TrainRecord record;
  record.workers = 4;
  record.batch = 64;
  record.times.assign(5, {.total = 0.5, .compute = 0.125, .exposed = 0.375});
  record.curve = {{1.5, 50, 0.75}};
  const nlohmann::json json = ToJson(record);
  EXPECT_EQ(json.at("samples_per_s"), 512.0);
  EXPECT_EQ(json.at("step_ms"), 500.0);
  EXPECT_EQ(json.at("comm_share"), 0.75);
  EXPECT_EQ(json.at("accuracy_curve"), nlohmann::json::parse("[[1.5, 50, 0.75]]"));
  for (const char* key : {"target", "time_to_target_s", "test_accuracy", "lone_comm_ms"}) {
    EXPECT_TRUE(json.at(key).is_null()) << key;
  }
}

}  // namespace
}  // namespace tally::mlp
