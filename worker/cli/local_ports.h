// LocalPorts: MASTER_PORT and the port after it for a job on loopback. The second, where rank 0's coordinator binds,
// stays reserved until this object goes: bound but not listening, so the kernel gives it to nobody who asks for any
// port, while a member that names it (with SO_REUSEADDR, as ours do) may bind it.
#pragma once

#include <cstdint>

#include "common/status.h"

namespace tally::cli {

class LocalPorts {
 public:
  // Errors: kUnavailable (errno).
  static Result<LocalPorts> Reserve();

  LocalPorts(LocalPorts&& other) noexcept;
  LocalPorts& operator=(LocalPorts&&) = delete;
  ~LocalPorts();

  std::uint16_t master() const { return master_; }
  std::uint16_t coordinator() const { return static_cast<std::uint16_t>(master_ + 1); }

 private:
  LocalPorts(std::uint16_t master, int held) : master_(master), held_(held) {}
  std::uint16_t master_;
  int held_;
};

}  // namespace tally::cli
