// One training run of the gates: the job of train_mlp (Fashion-MNIST sorted by label, each worker with few classes,
// SGD with momentum) with its workers simulated in this process, one codec, one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/mlp/data.h"
#include "common/status.h"
#include "worker/cli/codec_setting.h"

namespace tally::gates {

struct TrainingData {
  std::vector<mlp::Dataset> shards;  // per worker
  mlp::Dataset test;
};
// Errors as LoadFashionMnist.
Result<TrainingData> LoadTrainingData(std::uint32_t workers, const std::string& folder);

struct TrainingJob {
  std::uint64_t steps = 1500;
  std::uint64_t batch = 64;  // per worker
  double lr = 0.01;
  double momentum = 0.9;
  std::uint64_t eval_every = 50;  // steps between points of the accuracy curve; 0 = none
};

struct TrainingResult {
  std::string codec;  // cli::CodecSetting::text
  bool error_feedback = true;
  std::uint32_t workers = 0;
  std::uint64_t seed = 0, steps = 0;
  std::uint64_t push_bytes = 0, reply_bytes = 0;  // payload of a worker and step
  double accuracy = 0, loss = 0;                  // on all test pictures
  std::vector<std::pair<std::uint64_t, double>> curve = {};  // step, accuracy on a fifth of the test pictures
};
nlohmann::json ToJson(const TrainingResult& result);
// Errors: kCorrupt.
Result<TrainingResult> TrainingResultFromJson(const nlohmann::json& json);

// Weights and batches come from `seed` alone: the same for every codec. Stops with kUnavailable when `stopped` says so.
Result<TrainingResult> RunTraining(const TrainingData& data, const TrainingJob& job,
                                   const cli::CodecSetting& setting, std::uint64_t seed,
                                   const std::function<bool()>& stopped = {});

}  // namespace tally::gates
