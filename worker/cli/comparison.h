// Comparison: what the training job cost in one setting (mode, codec, placement, network), as a row. Pure: rows are
// made of what the processes reported (comparison_run.h starts those) and of the closed-form model.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/status.h"

namespace tally::cli {

struct Setting {
  Mode mode = Mode::kPs;
  Config::Compression compression;
  std::string codec_text;      // as it was asked for: "topk:ratio=0.001"; empty: the codec's name
  std::uint32_t workers = 4;
  std::uint32_t servers = 0;   // 0 for modes that use none
  std::uint32_t workers_per_node = 1;  // that share a NIC and, in mode hierarchical, memory
  std::string worker_transport = "tcp", server_transport = "zmq";  // between hosts
  bool colocated = false;      // server i on node i's NIC; servers <= nodes
  std::string rate;            // of each emulated NIC and direction, "1gbit"; empty = not emulated
  double rate_bits = 0;        // the same as a number
  std::uint64_t seed = 1;
  std::uint64_t steps = 400;
  double target = 0;           // accuracy; 0 = none

  bool with_servers() const { return servers > 0; }
  std::uint32_t nodes() const { return (workers + workers_per_node - 1) / workers_per_node; }
  // NICs that the pattern occupies: with servers of their own one for each besides the nodes'.
  std::uint32_t nics() const { return nodes() + (colocated ? 0 : servers); }
  // "ps colocated", "ring": mode and, where it is not the usual one, placement.
  std::string Pattern() const;
  const std::string& CodecText() const { return codec_text.empty() ? compression.codec : codec_text; }
  // "topk", "topk no feedback"
  std::string Codec() const;
};

struct CurvePoint {
  double seconds = 0;
  std::uint64_t step = 0;
  double accuracy = 0;
};

// Times are means over ranks of each rank's median; bytes are means over workers (servers) and steps.
struct Row {
  // The setting's, and the schedule where it is not the usual one: "ring (tree)".
  std::string Pattern() const;

  Setting setting;
  std::string exchange;                 // "owners" or "schedule"
  std::optional<std::string> schedule;  // "ring", "tree", …
  double samples_per_s = 0, step_ms = 0, comm_exposed_ms = 0, comm_share = 0;
  double worker_sent_bytes = 0, worker_received_bytes = 0;  // per step
  double server_received_bytes = 0, server_sent_bytes = 0;
  std::optional<double> predicted_comm_ms;  // prediction.h
  double measured_comm_ms = 0;              // a whole gradient exchanged with no computation beside it
  double comm_cpu_s = 0;                    // engine threads of all workers, servers whole
  double peak_rss_mb = 0;                   // of the largest worker
  std::uint64_t residual_bytes = 0;         // per worker
  double final_loss = 0;                    // training loss over the last tenth of the steps
  double test_accuracy = 0;
  std::optional<double> time_to_target_s;
  std::vector<CurvePoint> curve;
  std::string weights_sha256;           // of rank 0
  bool ranks_agree = true;              // all ranks ended with the same weights; else the result is wrong

  // |predicted - measured| / measured.
  std::optional<double> PredictionError() const;
  double compute_ms() const { return step_ms - comm_exposed_ms; }
};

// `ranks`: the JSON of train_mlp, one per rank; `servers`: the reports of tally-server. Errors: kCorrupt naming a field
// that is missing.
// `machine`: what was measured of it before, for the prediction; may be null.
struct MachineCosts;
Result<Row> MakeRow(const Setting& setting, const std::vector<nlohmann::json>& ranks,
                    const std::vector<nlohmann::json>& servers, double server_cpu_s,
                    const MachineCosts* machine = nullptr);

// The NIC and direction that carry most, and the fraction of the step's time that those bytes occupy it.
struct BusiestNic {
  std::string name;  // "each server's NIC, incoming"
  double bytes = 0;  // per step
  double busy = 0;   // 0 without a rate
};
BusiestNic FindBusiestNic(const Row& row);

struct Comparison {
  std::string version;
  unsigned cpus = 0;
  std::string rate;  // emulated; empty = none
  std::vector<Row> rows;
};
// Over all rows that have a prediction; none if no row has.
std::optional<double> MedianPredictionError(const Comparison& comparison);
nlohmann::json ToJson(const Comparison& comparison);  // CLI.md of the design, `compare`

}  // namespace tally::cli
