#include "worker/cli/topology_sources.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "common/control.h"

namespace tally::cli {
namespace {

Status TooMany() { return InvalidArgument("more than " + std::to_string(kMaxTopologyMembers) + " members"); }

// "2(x3),1" -> 2 2 2 1; one number counts for all `hosts`.
Result<std::vector<std::uint32_t>> TasksPerHost(std::string_view text, std::size_t hosts) {
  const Status wrong = InvalidArgument("\"" + std::string(text.substr(0, 60)) +
                                       "\" are no tasks for each of " + std::to_string(hosts) + " hosts, as 2(x3),1");
  std::vector<std::uint32_t> tasks;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view part = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const auto number = [&wrong](std::string_view digits) -> Result<std::uint32_t> {
      std::uint32_t value = 0;
      const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
      if (error != std::errc() || end != digits.data() + digits.size() || value > kMaxTopologyMembers) return wrong;
      return value;
    };
    const std::size_t times_at = part.find("(x");
    TALLY_ASSIGN_OR_RETURN(const std::uint32_t count, number(part.substr(0, times_at)));
    std::uint32_t times = 1;
    if (times_at != std::string_view::npos) {
      if (!part.ends_with(')')) return wrong;
      TALLY_ASSIGN_OR_RETURN(times, number(part.substr(times_at + 2, part.size() - times_at - 3)));
    }
    if (tasks.size() + times > hosts) return wrong;
    tasks.insert(tasks.end(), times, count);
  }
  if (tasks.size() == 1) tasks.assign(hosts, tasks.front());
  if (tasks.size() != hosts) return wrong;
  return tasks;
}

}  // namespace

Result<std::vector<Placed>> MembersOfJson(std::string_view text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto wrong = [](const std::string& what) {
    return InvalidArgument(what + R"(; expected {"members": [{"rank": 0, "node": "a", "switch": "spine1/leaf3"}, …]})");
  };
  if (!json.is_object() || !json.contains("members") || !json["members"].is_array()) return wrong("no list of members");
  const auto& list = json["members"];
  if (list.size() > kMaxTopologyMembers) return TooMany();
  std::vector<Placed> members(list.size());
  std::vector<bool> seen(list.size(), false);
  for (const auto& entry : list) {
    const auto text_of = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string() ? entry[key].get<std::string>() : "";
    };
    if (!entry.is_object() || !entry.contains("rank") || !entry["rank"].is_number_unsigned()) {
      return wrong("a member without a rank");
    }
    const auto rank = entry["rank"].get<std::uint64_t>();
    if (rank >= members.size() || seen[rank]) {
      return wrong("rank " + std::to_string(rank) + " of " + std::to_string(members.size()) + " members");
    }
    seen[rank] = true;
    members[rank] = {text_of("node"), text_of("switch")};
    if (members[rank].node.empty() || !IsPrintableName(members[rank].node)) {
      return wrong("rank " + std::to_string(rank) + " is on no node whose name can be printed");
    }
    TALLY_RETURN_IF_ERROR(CheckSwitchPath(members[rank].switch_path));
  }
  return members;
}

Result<std::vector<Placed>> MembersOfHosts(std::string_view hosts, std::string_view tasks, bool cyclic,
                                           const SwitchMap& switches) {
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ExpandHostList(hosts));
  TALLY_ASSIGN_OR_RETURN(std::vector<std::uint32_t> left, TasksPerHost(tasks, names.size()));
  std::vector<Placed> members;
  for (bool more = true; more;) {
    more = false;
    for (std::size_t host = 0; host < names.size(); ++host) {
      const auto found = switches.find(names[host]);
      for (std::uint32_t i = cyclic ? std::min(left[host], 1u) : left[host]; i > 0; --i) {
        if (members.size() == kMaxTopologyMembers) return TooMany();
        members.push_back({names[host], found == switches.end() ? "" : found->second});
        --left[host];
      }
      more = more || left[host] > 0;
    }
  }
  return members;
}

Result<std::string> ReadInput(std::string_view option, const std::string& path, std::size_t most) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(most + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad() || (in.gcount() == 0 && errno != 0)) {
    return InvalidArgument(std::string(option) + " " + path + ": " + std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > most) return InvalidArgument(std::string(option) + " " + path + ": too large");
  return text;
}

}  // namespace tally::cli
