// GradientRecorder: keeps one worker's gradients of some consecutive steps and writes them for tally explain
// (worker/cli/gradient_file.h).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "benchmarks/mlp/model.h"
#include "common/status.h"
#include "worker/cli/gradient_file.h"

namespace tally::mlp {

struct RecordOptions {
  std::string file;         // empty = nothing is recorded
  std::string tensor;       // empty = all
  std::uint64_t from = 100;  // first step
  std::uint64_t steps = 20;
  std::uint64_t rows = 0;   // of each tensor at most, the first ones; 0 = all
  bool half = false;        // values as fp16
};

class GradientRecorder {
 public:
  // Errors: kInvalidArgument: no such tensor, or steps beyond the `trained` ones.
  static Result<GradientRecorder> Make(const RecordOptions& options, std::uint64_t trained);

  void Take(std::uint64_t step, const std::array<std::span<float>, kTensors>& gradients);
  std::vector<std::byte> Bytes() const;

 private:
  RecordOptions options_;
  std::vector<std::size_t> tensors_;
  cli::RecordedGradients recorded_;
};

}  // namespace tally::mlp
