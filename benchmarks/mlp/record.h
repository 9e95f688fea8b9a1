// What one rank of the training job measured, and its JSON: {rank}.json of train_mlp --json, read by tally compare.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tally::mlp {

// Wall-clock seconds of one step: total = compute + exposed.
struct StepTime {
  double total = 0;
  double compute = 0;  // drawing the batch, forward, backward, optimizer
  double exposed = 0;  // blocked on communication that backward did not hide
};

struct CurvePoint {
  double seconds = 0;  // of training, without evaluations
  std::uint64_t step = 0;
  double accuracy = 0;
};

struct TrainRecord {
  std::uint32_t rank = 0, workers = 0, servers = 0;
  std::string exchange;  // Client::Describe
  std::uint64_t seed = 0, batch = 0, steps = 0, skipped = 0;
  std::uint64_t exchanges = 0;  // of a whole gradient, lone ones included: what servers' counters cover
  std::vector<std::uint64_t> tensor_elements;
  std::vector<std::vector<std::uint32_t>> buckets;  // of tensors
  double lr = 0, momentum = 0;
  std::vector<StepTime> times;
  double sent_bytes_per_step = 0, received_bytes_per_step = 0;
  std::uint64_t residual_bytes = 0;
  double comm_cpu_s = 0;      // the engine's threads
  double process_cpu_s = 0;   // user and system
  double peak_rss_mb = 0;     // MB = 1e6
  double lone_comm_ms = -1;   // a whole gradient exchanged with nothing to hide behind, median; < 0: not measured
  double train_loss = 0;      // mean over the last tenth of the steps, this rank's batches
  double test_loss = -1, test_accuracy = -1;  // rank 0 only, all 10,000 pictures
  std::vector<CurvePoint> curve;              // rank 0 only
  double target = 0;             // accuracy asked for; 0 = none
  double time_to_target_s = -1;  // < 0: missed
  std::string weights_sha256;
};

inline constexpr std::size_t kWarmUpSteps = 3;

// Median over the steps after the warm-up; over all steps if there are no more than that. 0 without steps.
double MedianAfterWarmUp(const std::vector<StepTime>& times, double StepTime::*part);

nlohmann::json ToJson(const TrainRecord& record);

}  // namespace tally::mlp
