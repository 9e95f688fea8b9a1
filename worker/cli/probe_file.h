// What `tally probe` measured, and its file, which `tally plan` and `tally model` take as --probe FILE.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "common/schedule/cpu_load.h"
#include "common/status.h"
#include "compress/advisor.h"

namespace tally::cli {

// Of one transport between two processes.
struct LinkRates {
  std::string transport;
  double alpha_s = 0;                // half of a small frame's way there and back, median
  double one_way_bytes_per_s = 0;    // payload of large frames, one connection
  double both_ways_bytes_per_s = 0;  // in each direction, both at once
  FrameCosts cpu = {};               // of one core, both ends together; zeros in files of earlier versions
};

struct Probe {
  std::string peer;  // "10.0.0.2:7171"; empty: another thread of this process, over loopback
  std::vector<LinkRates> links;  // tcp first; shm only over loopback
  double copy_bytes_per_s = 0, add_bytes_per_s = 0;  // of fp32 numbers copied, added into others; one core, from memory
  std::vector<CodecCost> codecs;                     // one core
  double cores = 1;                                  // that were free

  const LinkRates& link(std::string_view transport) const;  // tcp's if that one was not measured
  double alpha_s() const { return links.front().alpha_s; }
  double nic_bytes_per_s() const { return links.front().both_ways_bytes_per_s; }
};

nlohmann::json ToJson(const Probe& probe);
// Errors: kInvalidArgument: a file that cannot be read or is not of `tally probe --json`, naming the field.
Result<Probe> ReadProbe(const std::string& path);

}  // namespace tally::cli
