// What a topology file of NCCL (NCCL_TOPO_DUMP_FILE, NCCL_TOPO_FILE) says of one machine's NICs. Takes hostile text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

struct NcclNic {
  std::string name;          // "mlx5_0"
  std::string numa;          // id of the CPU it hangs below
  double bytes_per_s = 0;    // 0: not said
};

// Errors: kInvalidArgument: larger than 1 MiB, nested deeper than 64, not XML, no <system>, a name that cannot be printed.
Result<std::vector<NcclNic>> ParseNcclTopology(std::string_view xml);

}  // namespace tally
