// What a codec does to recorded gradients, step after step, with the residual that it carries: the numbers and pictures
// of tally explain. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/cli/codec_setting.h"
#include "worker/cli/gradient_file.h"

namespace tally::cli {

// Of one step; p = gradient + residual is what is encoded, d what receivers decode.
struct ExplainedStep {
  double error = 0;        // |p - d| / |p|
  double cosine = 0;       // between p and d
  double energy_sent = 0;  // 1 - |p - d|^2 / |p|^2, negative where d is further away than zeros
  double residual = 0;     // |p - d| / mean over steps of |gradient|
};

struct Explanation {
  std::string codec;               // as asked for
  std::uint64_t bytes = 0;         // of a step, all metadata included
  double ratio = 0;                // fp32 bytes / bytes
  std::vector<ExplainedStep> steps;
  double error = 0, cosine = 0, energy_sent = 0;  // means over steps
  // |sum of gradients - sum of d| / |sum of gradients| over all steps: with error feedback and without.
  double lost = 0, lost_without = 0;
  std::vector<float> decoded, residual;  // of the first step, where p is the gradient
  std::vector<std::string> warnings;
};

// Share of the elements that are not zero, over all steps.
double NonZeroShare(const RecordedGradients& gradients);

// Encodes every tensor, however small, the first `steps` steps. Requires 1 <= steps <= gradients.steps.size().
// Errors: kInvalidArgument (codec, options).
Result<Explanation> Explain(const RecordedGradients& gradients, std::size_t steps, const std::string& codec);

}  // namespace tally::cli
