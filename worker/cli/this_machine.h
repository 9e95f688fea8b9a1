// NUMA nodes and NICs of this machine, as hwloc tells.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/status.h"

namespace tally::cli {

struct ThisMachine {
  struct Numa {
    std::uint32_t index = 0;
    std::uint32_t cores = 0;
    std::uint64_t memory_bytes = 0;
  };
  struct Nic {
    std::string name;
    std::vector<std::uint32_t> near;  // NUMA nodes that it hangs below
  };
  std::vector<Numa> numa;
  std::vector<Nic> nics;
};

// Errors: kUnavailable when the system does not tell.
Result<ThisMachine> LookAround();

}  // namespace tally::cli
