// Lists of cores as Linux writes them: "0-3,8".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::uint32_t kMaxCpus = 4096;

// Rising, each once. Errors: kInvalidArgument: empty, not numbers and ranges, or a number from kMaxCpus on.
Result<std::vector<std::uint32_t>> ParseCpuList(std::string_view text);

}  // namespace tally
