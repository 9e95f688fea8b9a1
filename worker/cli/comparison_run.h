// Runs one setting of a comparison: servers and workers (train_mlp) as processes on this machine, each on an emulated
// NIC where the setting has a rate.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "worker/cli/command.h"
#include "worker/cli/comparison.h"

namespace tally::cli {

struct ComparisonPrograms {
  std::string server;   // tally-server
  std::string trainer;  // train_mlp
};
// Beside this binary, or where they are installed. Errors: kUnavailable naming the program and where it was looked for.
Result<ComparisonPrograms> FindComparisonPrograms(const CommandContext& context);

struct ComparisonRun {
  ComparisonPrograms programs;
  std::map<std::string, std::string> environment;
  std::string config_file;
  std::vector<std::string> overrides;  // of the user; the setting's own come after them
  const MachineCosts* machine = nullptr;  // for predictions
  std::function<void(std::string_view)> on_progress;  // lines of rank 0
};

// Errors: as LocalJob::Start and Wait, with the last lines that the processes wrote; as MakeRow.
Result<Row> RunSetting(const ComparisonRun& run, const Setting& setting);

}  // namespace tally::cli
