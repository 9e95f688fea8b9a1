// What the runs of the gates say together: per codec the mean over seeds, its spread, and whether its gate holds. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/gates/training_run.h"

namespace tally::gates {

// Mean and its standard error (0 for fewer than two numbers).
struct Estimate {
  double mean = 0, error = 0;
};
Estimate EstimateOf(std::span<const double> values);

struct SummaryRow {
  std::string codec;
  bool error_feedback = true;
  std::uint32_t workers = 0;
  std::size_t seeds = 0;
  std::uint64_t push_bytes = 0, reply_bytes = 0;
  Estimate accuracy = {};
  // Accuracy minus that of uncompressed runs, and of the twin without error feedback, over equal seeds.
  std::optional<Estimate> below_none = {}, above_twin = {};
  std::size_t reached = 0;        // seeds whose curve reached `target`
  double steps_to_target = 0;     // mean over those
  std::optional<bool> passed = {};  // of the gate; none: no gate, or what it compares with did not run
  std::string gate = {};          // the gate in words, empty if none
};

// One row per codec, feedback and number of workers, in the order in which they first appear.
std::vector<SummaryRow> Summarize(std::span<const TrainingResult> results, double target);

}  // namespace tally::gates
