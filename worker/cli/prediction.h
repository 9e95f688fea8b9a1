// Prediction: what the model (common/schedule/ways.h) says of a comparison's setting, from what was measured of this
// machine before it ran: links, codecs, cores. Nothing is taken from the run itself but what it exchanged.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "compress/advisor.h"
#include "worker/cli/comparison.h"
#include "worker/cli/probe_file.h"

namespace tally::cli {

// Of the machine on which all processes of a setting run.
struct MachineCosts {
  Probe probe;  // over loopback and in shared memory; free cores
  std::map<std::string, CodecCost> codecs;  // by Setting::CodecText(); "none" is there
};
// Takes seconds. Errors: of the loopback links. Codecs that cannot be measured are left out.
Result<MachineCosts> MeasureMachine(std::span<const Setting> settings);

// The tensors of a gradient and the buckets that they travel in.
struct GradientShape {
  std::vector<std::uint64_t> elements;
  std::vector<std::vector<std::uint32_t>> buckets;  // of tensors; empty: all in one
};

// Milliseconds of one exchange of a gradient with nothing beside it, from the hand-over to the verdict. `schedule`: the
// one that ran; none: owners. Without `machine` bytes and rounds of 50 us alone. None where the model has no formula
// (powersgd, whose bytes depend on shapes; codec auto; a run that ended before its codec began), and where nothing is
// known of the time: no rate and no machine.
std::optional<double> PredictedCommMs(const Setting& setting, const std::optional<std::string>& schedule,
                                      const GradientShape& shape, const MachineCosts* machine = nullptr);

}  // namespace tally::cli
