#include "benchmarks/gates/summary.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tally::gates {
namespace {

struct Gate {
  const char* codec;
  double points;         // of accuracy that it may lose against uncompressed runs
  bool two_errors;       // or two standard errors, if that is more
  double twin_points;    // at least so much above the twin without error feedback; < 0: that has no gate
};

constexpr Gate kGates[] = {
    {"fp16", 0.5, true, -1},         {"bf16", 0.5, true, -1},           {"int8", 0.5, true, -1},
    {"topk", 2, false, 5},           {"topk:ratio=0.001", 3.5, false, 5}, {"onebit", 3, false, 5},
};

std::string Points(double points) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", points);
  return text;
}

bool SameKind(const TrainingResult& a, const SummaryRow& row) {
  return a.codec == row.codec && a.error_feedback == row.error_feedback && a.workers == row.workers;
}

// Mean of (row's accuracy - the other's) over the seeds that both have.
template <typename IsOther>
std::optional<Estimate> Difference(std::span<const TrainingResult> results, const SummaryRow& row,
                                   const IsOther& is_other) {
  std::vector<double> differences;
  for (const TrainingResult& mine : results) {
    if (!SameKind(mine, row)) continue;
    for (const TrainingResult& other : results) {
      if (is_other(other) && other.workers == mine.workers && other.seed == mine.seed && other.steps == mine.steps) {
        differences.push_back(mine.accuracy - other.accuracy);
      }
    }
  }
  if (differences.empty()) return std::nullopt;
  return EstimateOf(differences);
}

void Judge(SummaryRow* row) {
  if (!row->error_feedback || row->codec == "none") return;
  const auto* gate = std::ranges::find_if(kGates, [&](const Gate& g) { return g.codec == row->codec; });
  if (gate == std::end(kGates)) {
    if (!row->above_twin) return;
    row->gate = "better than without feedback";
    row->passed = row->above_twin->mean > 0;
    return;
  }
  row->gate = "within " + Points(gate->points) + (gate->two_errors ? " or 2 errors" : "");
  if (gate->twin_points >= 0) row->gate += ", " + Points(gate->twin_points) + " above without feedback";
  if (!row->below_none || (gate->twin_points >= 0 && !row->above_twin)) return;
  double allowed = gate->points / 100;
  if (gate->two_errors) allowed = std::max(allowed, 2 * row->below_none->error);
  row->passed = -row->below_none->mean <= allowed &&
                (gate->twin_points < 0 || row->above_twin->mean * 100 >= gate->twin_points);
}

}  // namespace

Estimate EstimateOf(std::span<const double> values) {
  Estimate estimate;
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return estimate;
  for (const double value : values) estimate.mean += value / n;
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  estimate.error = std::sqrt(squares / (n - 1) / n);
  return estimate;
}

std::vector<SummaryRow> Summarize(std::span<const TrainingResult> results, double target) {
  std::vector<SummaryRow> rows;
  for (const TrainingResult& result : results) {
    if (std::ranges::none_of(rows, [&](const SummaryRow& row) { return SameKind(result, row); })) {
      rows.push_back({.codec = result.codec, .error_feedback = result.error_feedback, .workers = result.workers});
    }
  }
  for (SummaryRow& row : rows) {
    std::vector<double> accuracies;
    for (const TrainingResult& result : results) {
      if (!SameKind(result, row)) continue;
      accuracies.push_back(result.accuracy);
      row.push_bytes = result.push_bytes;
      row.reply_bytes = result.reply_bytes;
      const auto point = std::ranges::find_if(result.curve, [&](const auto& p) { return p.second >= target; });
      if (point == result.curve.end()) continue;
      ++row.reached;
      row.steps_to_target += static_cast<double>(point->first);
    }
    row.seeds = accuracies.size();
    row.accuracy = EstimateOf(accuracies);
    if (row.reached > 0) row.steps_to_target /= static_cast<double>(row.reached);
    row.below_none = Difference(results, row, [](const TrainingResult& r) { return r.codec == "none"; });
    if (row.error_feedback) {
      row.above_twin = Difference(
          results, row, [&](const TrainingResult& r) { return r.codec == row.codec && !r.error_feedback; });
    }
    Judge(&row);
  }
  return rows;
}

}  // namespace tally::gates
