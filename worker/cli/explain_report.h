// The HTML report of tally explain: what each codec does to the same gradients, side by side, in pictures.
#pragma once

#include <span>
#include <string>

#include "worker/cli/explain.h"

namespace tally::cli {

struct ExplainedGradients {
  const RecordedGradients& gradients;
  std::size_t steps = 0;  // that were encoded
  std::string source;     // the file
  std::string version;    // Tally's
};

std::string ExplainReport(const ExplainedGradients& what, std::span<const Explanation> codecs);

}  // namespace tally::cli
