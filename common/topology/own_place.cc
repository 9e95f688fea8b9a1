#include "common/topology/own_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>

#include "common/schedule/topology.h"
#include "common/topology/switch_map.h"

namespace tally {
namespace {

enum class Format : std::uint8_t { kConf, kYaml, kLabels };

// Off the front of `text`, without the blanks around it; empty if it is one of comment.
std::string_view TakeLine(std::string_view* text) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t end = std::min(text->find('\n'), text->size());
  std::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
  line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
  return line.starts_with('#') ? std::string_view() : line;
}

// By the first line that says something.
Format FormatOf(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = TakeLine(&text);
    if (line.empty()) continue;
    if (line.starts_with("-")) return Format::kYaml;
    return line.find("=\"") != std::string_view::npos ? Format::kLabels : Format::kConf;
  }
  return Format::kConf;
}

Result<std::string> FromLabels(std::string_view text, const std::vector<std::string>& labels) {
  std::map<std::string, std::string, std::less<>> values;
  while (!text.empty()) {
    const std::string_view line = TakeLine(&text);
    const std::size_t equals = line.find("=\"");
    if (line.empty()) continue;
    if (equals == std::string_view::npos || !line.ends_with('"') || line.size() < equals + 3) {
      return InvalidArgument("a line of labels is not key=\"value\"");
    }
    values.emplace(line.substr(0, equals), line.substr(equals + 2, line.size() - equals - 3));
  }
  std::string path;
  for (const std::string& label : labels) {
    const auto found = values.find(label);
    if (found == values.end() || found->second.empty()) {
      return InvalidArgument("there is no label " + label + " (topology.labels)");
    }
    path += (path.empty() ? "" : "/") + found->second;
  }
  TALLY_RETURN_IF_ERROR(CheckSwitchPath(path));
  return path;
}

}  // namespace

Result<std::string> SwitchPathIn(std::string_view text, const std::string& host,
                                 const std::vector<std::string>& labels) {
  if (text.size() > kMaxTopologyBytes) return InvalidArgument("larger than 1 MiB");
  const Format format = FormatOf(text);
  if (format == Format::kLabels) return FromLabels(text, labels);
  TALLY_ASSIGN_OR_RETURN(const SwitchMap map,
                         format == Format::kYaml ? ParseTopologyYaml(text) : ParseTopologyConf(text));
  auto found = map.find(host);
  if (found == map.end()) found = map.find(host.substr(0, host.find('.')));  // SLURM's names are short
  if (found == map.end()) {
    return InvalidArgument("host " + host + " is below none of its switches; set topology.host to its name there");
  }
  return found->second;
}

Result<std::string> OwnSwitchPath(const Config::Topology& topology) {
  if (!topology.switch_path.empty() || topology.file.empty()) {
    TALLY_RETURN_IF_ERROR(CheckSwitchPath(topology.switch_path).WithContext("topology.switch"));
    return topology.switch_path;
  }
  errno = 0;
  std::ifstream in(topology.file, std::ios::binary);
  std::string text(kMaxTopologyBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad() || (in.gcount() == 0 && errno != 0)) {
    return InvalidArgument("topology.file " + topology.file + ": " + std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  std::string host = topology.host;
  if (host.empty()) {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) == 0) host = name.data();
  }
  Result<std::string> path = SwitchPathIn(text, host, topology.labels);
  if (!path.ok()) return path.status().WithContext("topology.file " + topology.file);
  return path;
}

}  // namespace tally
