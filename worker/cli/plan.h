// What each way of summing would take for a job, and which one mode auto takes; by the coordinator's own functions
// (common/schedule/ways.h). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/schedule/ways.h"
#include "common/status.h"
#include "compress/advisor.h"

namespace tally::cli {

struct PlanQuestion {
  Placement placement;
  std::uint64_t elements = 0;  // fp32 numbers of a worker's gradient
  double alpha_s = kUsualAlphaS;
  Config::Compression compression;
  std::string schedule = "ring";  // aggregation.schedule
  bool servers_between = false;   // aggregation.between = ps
  bool local = true;              // aggregation.local is not off: auto may sum inside nodes first
  std::vector<CodecCost> costs;   // of codecs; where one is known its own time counts. Wanted for codec auto
  std::optional<FrameCosts> frames;  // of links; with a codec's costs CPU time is priced as a resource of its own
  double cores = 1;                  // of each machine
  bool one_machine = false;          // that all members share
};

struct PlanRow {
  Way way;
  std::string codec;      // that the way should carry: the configured one where it can, the advised one for auto
  bool candidate = false;  // mode auto may take it
};

struct Plan {
  std::vector<PlanRow> rows;
  double bound_s = 0;      // ways.h, with the codec of hybrid or, without servers, direct
  std::size_t chosen = 0;  // a candidate
  std::string reason;
};

// Errors: kUnsupported for a codec whose size shapes decide; kInvalidArgument: options of a codec.
Result<Plan> MakePlan(const PlanQuestion& question);

// "worker 1", "worker 0 and server 0", "workers 0 to 3": who is behind a NIC.
std::string NicName(const Placement& placement, std::uint32_t nic);

}  // namespace tally::cli
