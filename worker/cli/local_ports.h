// LocalPorts: MASTER_PORT and the port after it for a job on loopback. The second, where rank 0's coordinator binds,
// stays reserved until this object goes: bound but not listening, so the kernel gives it to nobody who asks for any
// port, while a member that names it (with SO_REUSEADDR, as ours do) may bind it.
#pragma once

#include <cstdint>
#include <utility>

#include "common/status.h"
#include "common/transport/sockets.h"

namespace tally::cli {

class LocalPorts {
 public:
  // Errors: kUnavailable (errno).
  static Result<LocalPorts> Reserve();

  std::uint16_t master() const { return master_; }
  std::uint16_t coordinator() const { return static_cast<std::uint16_t>(master_ + 1); }

 private:
  LocalPorts(std::uint16_t master, UniqueFd held) : master_(master), held_(std::move(held)) {}
  std::uint16_t master_;
  UniqueFd held_;
};

}  // namespace tally::cli
