#include "worker/cli/comparison_table.h"

#include <algorithm>
#include <map>

#include "common/schedule/schedule.h"

namespace tally::cli {
namespace {

constexpr double kSameSpeed = 1.1;      // runs of one setting differ by as much
constexpr double kNicIsTheLimit = 0.5;  // of the step's time

std::string Megabytes(double bytes) { return bytes > 0 ? Fixed(bytes / 1e6, bytes < 1e5 ? 3 : 2) : "-"; }
std::string Percent(double fraction) { return Fixed(fraction * 100, 0) + " %"; }
std::string Name(const Row& row) { return row.Pattern() + " with " + row.setting.Codec(); }

bool Faster(const Row& a, const Row& b) { return a.samples_per_s < b.samples_per_s; }

double BestAccuracy(const Comparison& comparison) {
  double best = 0;
  for (const Row& row : comparison.rows) best = std::max(best, row.test_accuracy);
  return best;
}

// The fastest row that learned and that `admits` lets in; null if there is none.
template <typename Predicate>
const Row* Fastest(const Comparison& comparison, Predicate admits) {
  const double floor = BestAccuracy(comparison) - kAccuracySlack;
  const Row* fastest = nullptr;
  for (const Row& row : comparison.rows) {
    if (row.test_accuracy < floor || !admits(row)) continue;
    if (fastest == nullptr || Faster(*fastest, row)) fastest = &row;
  }
  return fastest;
}

std::string BySoMuch(const Row& winner, const Row& other) {
  const double ratio = other.samples_per_s > 0 ? winner.samples_per_s / other.samples_per_s : 1;
  if (ratio < kSameSpeed) return "about as fast as";
  return ratio >= 1.5 ? Fixed(ratio, 1) + " times" : Fixed((ratio - 1) * 100, 0) + " % faster than";
}

// "each server's NIC, incoming (3.00 MB, 92 % of the step)"
std::string Load(const BusiestNic& nic) {
  std::string text = nic.name + " (" + Fixed(nic.bytes / 1e6, 2) + " MB";
  if (nic.busy > 0) text += ", " + Percent(std::min(nic.busy, 1.0)) + " of the step";
  return text + ")";
}

std::string Bottleneck(const Row& row) {
  const BusiestNic nic = FindBusiestNic(row);
  if (nic.busy >= kNicIsTheLimit) return "the bottleneck was " + Load(nic);
  return "the CPU was the bottleneck, no NIC: the busiest was " + Load(nic);
}

}  // namespace

Table ComparisonTable(const Comparison& comparison) {
  using enum Table::Align;
  Table table({{"pattern", kLeft},
               {"codec", kLeft},
               {"NICs", kRight},
               {"samples/s", kRight},
               {"step ms", kRight},
               {"exposed ms", kRight},
               {"share", kRight},
               {"MB/worker", kRight},
               {"MB/server", kRight},
               {"comm ms", kRight},
               {"model ms", kRight},
               {"off", kRight},
               {"accuracy", kRight}});
  for (const Row& row : comparison.rows) {
    table.AddRow({row.Pattern(), row.setting.Codec(), std::to_string(row.setting.nics()),
                  Fixed(row.samples_per_s, 0), Fixed(row.step_ms, 1), Fixed(row.comm_exposed_ms, 1),
                  Percent(row.comm_share), Megabytes(row.worker_sent_bytes), Megabytes(row.server_sent_bytes),
                  Fixed(row.measured_comm_ms, 1), row.predicted_comm_ms ? Fixed(*row.predicted_comm_ms, 1) : "-",
                  row.PredictionError() ? Percent(*row.PredictionError()) : "-",
                  Fixed(row.test_accuracy * 100, 1) + " %"});
  }
  return table;
}

const Row* Winner(const Comparison& comparison) {
  return Fastest(comparison, [](const Row&) { return true; });
}

std::string Verdict(const Comparison& comparison) {
  const Row* winner = Winner(comparison);
  if (winner == nullptr) return "";
  const Row* plain = Fastest(comparison, [](const Row& row) { return row.setting.compression.codec == "none"; });
  const Row* other = Fastest(comparison, [&](const Row& row) { return row.setting.mode != winner->setting.mode; });
  if (plain == winner) plain = nullptr;
  std::string text = Name(*winner) + " won here with " + Fixed(winner->samples_per_s, 0) + " samples/s on " +
                     std::to_string(winner->setting.nics()) + " NICs";
  if (plain != nullptr) text += ", " + BySoMuch(*winner, *plain) + " the best uncompressed, " + Name(*plain);
  if (other != nullptr && other != plain) {
    text += std::string(plain != nullptr ? ", and " : ", ") + BySoMuch(*winner, *other) + " " + Name(*other) + " (" +
            std::to_string(other->setting.nics()) + " NICs)";
  }
  if (plain == nullptr) return text + ". There " + Bottleneck(*winner) + ".";
  return text + ". Uncompressed, " + Bottleneck(*plain) + "; in the winner " + Bottleneck(*winner) + ".";
}

std::string Agreement(const Comparison& comparison) {
  std::map<std::uint64_t, std::vector<std::string>> by_seed;
  for (const Row& row : comparison.rows) {
    // A schedule with an order of addition of its own has bits of its own.
    const auto schedule = FindSchedule(row.schedule.value_or("ring"));
    const bool comparable = schedule.ok() && (*schedule)->ring_order;
    if (row.setting.compression.codec == "none" && comparable) by_seed[row.setting.seed].push_back(row.weights_sha256);
  }
  bool several = false, same = true;
  for (const auto& [seed, hashes] : by_seed) {
    several = several || hashes.size() > 1;
    same = same && std::all_of(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash == hashes.front(); });
  }
  if (!several) return "";
  return same ? "Uncompressed, every pattern ended with the same weights, bit for bit."
              : "Uncompressed, the patterns ended with different weights (deterministic sums would give the same).";
}

std::string Provenance(const Comparison& comparison) {
  const std::string machine = "All processes ran on this machine's " + std::to_string(comparison.cpus) + " CPUs";
  if (comparison.rate.empty()) return machine + " over loopback, unpaced: times show the CPU, not a network.";
  return machine + "; the NICs are emulated at " + comparison.rate +
         " each way: bytes and their times are real, the wire is not.";
}

}  // namespace tally::cli
