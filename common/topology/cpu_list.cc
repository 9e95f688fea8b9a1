#include "common/topology/cpu_list.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace tally {

Result<std::vector<std::uint32_t>> ParseCpuList(std::string_view text) {
  const Status wrong = InvalidArgument("\"" + std::string(text.substr(0, 60)) + "\" is no list of cores below " +
                                       std::to_string(kMaxCpus) + ", as 0-3,8");
  if (text.empty() || text.ends_with(',')) return wrong;
  std::vector<bool> member(kMaxCpus, false);
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view part = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    const char* end = part.data() + part.size();
    std::uint32_t first = 0, last = 0;
    auto read = std::from_chars(part.data(), end, first);
    last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc() || read.ptr != end || last < first || last >= kMaxCpus) return wrong;
    for (std::uint32_t cpu = first; cpu <= last; ++cpu) member[cpu] = true;
  }
  std::vector<std::uint32_t> cpus;
  for (std::uint32_t cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (member[cpu]) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace tally
