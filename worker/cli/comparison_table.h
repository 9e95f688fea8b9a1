// A comparison for a person's eyes: the closing table and the verdict.
#pragma once

#include <string>

#include "worker/cli/comparison.h"
#include "worker/cli/table.h"

namespace tally::cli {

Table ComparisonTable(const Comparison& comparison);

// The fastest row of those that learned: accuracy at most kAccuracySlack below the best. Null if there are no rows.
inline constexpr double kAccuracySlack = 0.03;
const Row* Winner(const Comparison& comparison);

// Two sentences: the winner and its lead over the best uncompressed row and over the best of another pattern; which NIC
// was the bottleneck. Empty for a comparison of no rows.
std::string Verdict(const Comparison& comparison);

// Whether the uncompressed rows of one seed ended with the same weights, as deterministic sums must. Empty if there are
// not two of them.
std::string Agreement(const Comparison& comparison);

// What the numbers can and cannot carry: emulated NICs, one machine.
std::string Provenance(const Comparison& comparison);

}  // namespace tally::cli
