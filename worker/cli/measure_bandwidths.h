// Measures what the nodes of a job carry to each other, in rounds in which each node meets one other, so that a pair is
// alone on its NICs. Every rank calls it, under a launcher: for `tally topology --measure`.
#pragma once

#include <functional>
#include <string>

#include "common/config/config.h"
#include "common/status.h"
#include "common/topology/bandwidth_matrix.h"

namespace tally::cli {

struct BandwidthOptions {
  Nanos each = std::chrono::milliseconds(200);  // of a pair, after a tenth of it for warming up
  std::function<void(const std::string&)> progress;
};

// Bytes per second that one connection carries in each direction, both at once, between the first ranks of each two
// nodes; equal on all ranks. Rows are named by host, by node where two nodes are on one host. On the diagonal 0.
// Takes (nodes - 1) rounds of a pair's time; what a peer may take to answer is bounded (link_probe.h).
// Errors: as Client::Join; kPeerLost and the like of a pair, on all ranks.
Result<BandwidthMatrix> MeasureBandwidths(const LoadedConfig& config, const BandwidthOptions& options);

}  // namespace tally::cli
