// A comparison for a person's eyes: the closing table and the verdict.
#pragma once

#include <string>

#include "worker/cli/comparison.h"
#include "worker/cli/table.h"

namespace tally::cli {

Table ComparisonTable(const Comparison& comparison);

// Two sentences: which row is the fastest of those whose accuracy is near the best, by how much over the plainest one;
// which NIC was the bottleneck there and without compression. Empty for a comparison of no rows.
std::string Verdict(const Comparison& comparison);

// What the numbers can and cannot carry: emulated NICs, one machine.
std::string Provenance(const Comparison& comparison);

// How far below the best accuracy a row may be and still count as having learned as much.
inline constexpr double kAccuracySlack = 0.03;

}  // namespace tally::cli
