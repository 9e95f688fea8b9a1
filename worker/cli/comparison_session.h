// A whole comparison at the terminal: runs settings one after the other with progress, then prints table and verdict
// and writes JSON and report. Behind `tally demo` and `tally compare`.
#pragma once

#include <string>
#include <vector>

#include "worker/cli/command.h"
#include "worker/cli/comparison.h"
#include "worker/cli/options.h"

namespace tally::cli {

struct ComparisonSession {
  std::vector<Setting> settings;  // all with the same rate
  ConfigOptions config;
  JsonOption json;
  std::string report;  // path of the HTML file; empty = none
};

// Returns the exit code. A setting that fails ends the comparison; what was measured before it is still shown and
// written. 6 if the ranks of a setting ended with different weights.
int RunComparison(const ComparisonSession& session, CommandContext& context);

}  // namespace tally::cli
