// The data-parallel training loop on Tally's client library: each bucket is handed over as soon as backward has
// produced its gradients, the optimizer runs on the delivered mean.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "benchmarks/mlp/model.h"
#include "benchmarks/mlp/record.h"
#include "common/status.h"
#include "worker/client.h"

namespace tally::mlp {

struct TrainOptions {
  std::uint64_t steps = 400;
  std::uint64_t seed = 1;
  std::uint64_t batch = 64;  // per worker
  double lr = 0.01;
  double momentum = 0.9;
  std::uint64_t eval_every = 50;      // steps between points of the accuracy curve; 0 = none
  double target = 0;                  // accuracy to time; 0 = none
  std::uint64_t lone_exchanges = 0;   // after training: exchange the last gradient so often with nothing else to do
  bool own_buckets = true;            // a bucket per layer; else the client's, by bucket.cap
  // After each step, with this rank's own gradients, tensor by tensor.
  std::function<void(std::uint64_t step, const std::array<std::span<float>, kTensors>&)> on_gradients;
  std::function<void(std::string_view)> on_progress;  // rank 0: a line at each evaluation
};

// Trains `model` (equal on all ranks at the start) on this rank's shard. `test` may be empty on other ranks than 0.
// Between steps nobody waits for an evaluation: it is outside every rank's times.
Result<TrainRecord> Train(Client& client, Mlp& model, const Dataset& shard, const Dataset& test,
                          const TrainOptions& options);

}  // namespace tally::mlp
