#include "common/topology/switch_map.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <set>

#include "common/schedule/topology.h"
#include "common/utf8.h"

namespace tally {
namespace {

std::string Quoted(std::string_view text) {
  std::string shown(Utf8Prefix(text, 60));
  std::ranges::replace_if(shown, [](char c) { return c < ' ' || c > '~'; }, '?');
  return "\"" + shown + "\"";
}

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// The text up to `end`, which is taken away with it.
std::string_view Next(std::string_view* text, std::string_view end) {
  const std::size_t at = std::min(text->find_first_of(end), text->size());
  const std::string_view part = text->substr(0, at);
  text->remove_prefix(std::min(at + 1, text->size()));
  return part;
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.size() <= 9 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// "01-03" or "7" between a name's head and tail.
Status ExpandRange(std::string_view head, std::string_view range, std::string_view tail,
                   std::vector<std::string>* names) {
  const std::size_t dash = std::min(range.find('-'), range.size());
  const std::string_view low = range.substr(0, dash), high = dash < range.size() ? range.substr(dash + 1) : low;
  if (!IsDigits(low) || !IsDigits(high)) {
    return InvalidArgument(Quoted(range) + " is no range of numbers, as 1-4 or 07");
  }
  std::uint32_t first = 0, last = 0;
  std::from_chars(low.data(), low.data() + low.size(), first);
  std::from_chars(high.data(), high.data() + high.size(), last);
  if (last < first || last - first >= kMaxTopologyHosts || names->size() + last - first >= kMaxTopologyHosts) {
    return InvalidArgument(Quoted(range) + ": a host list has up to " + std::to_string(kMaxTopologyHosts) +
                           " names, ranges rise");
  }
  for (std::uint32_t i = first; i <= last; ++i) {
    std::string number = std::to_string(i);
    if (number.size() < low.size()) number.insert(0, low.size() - number.size(), '0');
    names->push_back(std::string(head) + number + std::string(tail));
  }
  return Status::Ok();
}

Status ExpandName(std::string_view name, std::vector<std::string>* names) {
  const std::size_t open = name.find('['), close = name.find(']');
  const bool printable = std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~' && c != '/'; });
  if (name.empty() || name.size() > 4096 || !printable) return InvalidArgument(Quoted(name) + " is no host name");
  if (open == std::string_view::npos && close == std::string_view::npos) {
    if (names->size() >= kMaxTopologyHosts) return InvalidArgument("more than " + std::to_string(kMaxTopologyHosts));
    names->emplace_back(name);
    return Status::Ok();
  }
  if (open == std::string_view::npos || close == std::string_view::npos || close < open ||
      name.find('[', open + 1) != std::string_view::npos || name.find(']', close + 1) != std::string_view::npos) {
    return InvalidArgument(Quoted(name) + " has brackets that do not match, or several pairs");
  }
  std::string_view ranges = name.substr(open + 1, close - open - 1);
  do {
    TALLY_RETURN_IF_ERROR(ExpandRange(name.substr(0, open), Next(&ranges, ","), name.substr(close + 1), names));
  } while (!ranges.empty());
  return Status::Ok();
}

// What a file says, switch by switch.
class SwitchTree {
 public:
  // The next lines are of this switch.
  Status Begin(std::string_view name) {
    TALLY_ASSIGN_OR_RETURN(const std::vector<std::string> names, ExpandHostList(name));
    if (names.size() != 1) return InvalidArgument(Quoted(name) + ": one switch at a time");
    current_ = names.front();
    if (!switches_.insert(current_).second) return InvalidArgument("switch " + Quoted(current_) + " stands twice");
    if (switches_.size() > kMaxTopologyHosts) return InvalidArgument("too many switches");
    return Status::Ok();
  }
  bool begun() const { return !current_.empty(); }
  Status AddHosts(std::string_view list) { return Add(list, "host ", &switch_of_host_); }
  Status AddSwitches(std::string_view list) { return Add(list, "switch ", &switch_of_switch_); }

  Result<SwitchMap> Paths() const {
    SwitchMap paths;
    for (const auto& [host, below] : switch_of_host_) {
      std::string path = below;
      std::string_view at = below;
      for (auto up = switch_of_switch_.find(at); up != switch_of_switch_.end(); up = switch_of_switch_.find(at)) {
        at = up->second;
        path = up->second + "/" + path;
        if (path.size() > kMaxSwitchPathBytes) {
          return InvalidArgument("the switches above host " + Quoted(host) + " have no end, or names of more than " +
                                 std::to_string(kMaxSwitchPathBytes) + " bytes in all");
        }
      }
      TALLY_RETURN_IF_ERROR(CheckSwitchPath(path));
      paths.emplace(host, std::move(path));
    }
    return paths;
  }

 private:
  using Above = std::map<std::string, std::string, std::less<>>;

  Status Add(std::string_view list, std::string_view what, Above* above) {
    TALLY_ASSIGN_OR_RETURN(std::vector<std::string> names, ExpandHostList(list));
    for (std::string& name : names) {
      const auto [found, added] = above->try_emplace(std::move(name), current_);
      if (!added) {
        return InvalidArgument(std::string(what) + Quoted(found->first) + " is below " + Quoted(found->second) +
                               " and below " + Quoted(current_));
      }
    }
    if (above->size() > kMaxTopologyHosts) {
      return InvalidArgument("more than " + std::to_string(kMaxTopologyHosts) + " names");
    }
    return Status::Ok();
  }

  std::string current_;
  std::set<std::string, std::less<>> switches_;
  Above switch_of_host_, switch_of_switch_;
};

bool Is(std::string_view key, std::string_view name) {
  return std::ranges::equal(key, name, [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
  });
}

// One line of topology.conf, without its comment.
Status ReadConfLine(std::string_view line, SwitchTree* tree) {
  bool named = false;
  for (std::string_view rest = Trim(line); !rest.empty(); rest = Trim(rest)) {
    std::string_view value = Next(&rest, " \t");
    const std::string_view key = Next(&value, "=");
    if (Is(key, "SwitchName")) {
      named = true;
      TALLY_RETURN_IF_ERROR(tree->Begin(value));
    } else if (!named) {
      return InvalidArgument(Quoted(key) + ": a line begins with SwitchName=");
    } else if (Is(key, "Nodes")) {
      TALLY_RETURN_IF_ERROR(tree->AddHosts(value));
    } else if (Is(key, "Switches")) {
      TALLY_RETURN_IF_ERROR(tree->AddSwitches(value));
    } else if (!Is(key, "LinkSpeed")) {
      return InvalidArgument(Quoted(key) + " is unknown: expected Nodes, Switches or LinkSpeed");
    }
  }
  return Status::Ok();
}

// One line of topology.yaml, without its comment. `topologies`: how many have begun; of the first one all is read.
Status ReadYamlLine(std::string_view line, std::uint32_t* topologies, SwitchTree* tree) {
  std::string_view rest = Trim(line);
  if (rest.empty() || rest == "---" || *topologies > 1) return Status::Ok();
  if (rest.starts_with("- ")) rest = Trim(rest.substr(2));
  const std::size_t colon = rest.find(':');
  if (colon == std::string_view::npos) return InvalidArgument(Quoted(rest) + " is not \"key: value\"");
  const std::string_view key = Trim(rest.substr(0, colon));
  std::string_view value = Trim(rest.substr(colon + 1));
  if (value.size() >= 2 && (value.front() == '"' || value.front() == '\'') && value.back() == value.front()) {
    value = value.substr(1, value.size() - 2);
  }
  if (key == "topology") {
    ++*topologies;
    return Status::Ok();
  }
  if (key == "cluster_default") return Status::Ok();
  if ((key == "tree" || key == "switches") && value.empty()) return Status::Ok();
  if (key == "switch") return tree->Begin(value);
  if (key == "block" || key == "flat") {
    return Unsupported("a topology of kind " + std::string(key) + " names no switches; a tree is read");
  }
  if (key != "nodes" && key != "children") {
    return InvalidArgument(Quoted(key) + " is unknown: expected topology, cluster_default, tree, switches, switch, "
                                         "nodes or children");
  }
  if (!tree->begun()) return InvalidArgument(Quoted(key) + " stands before any switch");
  return key == "nodes" ? tree->AddHosts(value) : tree->AddSwitches(value);
}

template <typename ReadLine>
Result<SwitchMap> ReadLines(std::string_view text, const ReadLine& read) {
  if (text.size() > kMaxTopologyBytes) return InvalidArgument("larger than 1 MiB");
  SwitchTree tree;
  for (std::size_t number = 1; !text.empty(); ++number) {
    std::string_view line = Next(&text, "\n");
    if (const Status status = read(line.substr(0, line.find('#')), &tree); !status.ok()) {
      return status.WithContext("line " + std::to_string(number));
    }
  }
  return tree.Paths();
}

}  // namespace

Result<std::vector<std::string>> ExpandHostList(std::string_view text) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i < text.size() && (text[i] != ',' || depth != 0)) continue;
    TALLY_RETURN_IF_ERROR(ExpandName(text.substr(begin, i - begin), &names));
    begin = i + 1;
  }
  return names;
}

Result<SwitchMap> ParseTopologyConf(std::string_view text) { return ReadLines(text, ReadConfLine); }

Result<SwitchMap> ParseTopologyYaml(std::string_view text) {
  std::uint32_t topologies = 0;
  return ReadLines(text, [&](std::string_view line, SwitchTree* tree) { return ReadYamlLine(line, &topologies, tree); });
}

std::string SwitchPathOfAddress(std::string_view address, std::string_view pattern) {
  std::string path;
  while (!pattern.empty()) {
    const std::string_view kind = Next(&pattern, "."), part = Next(&address, ".");
    if (kind == "node") break;
    if (part.empty()) return {};
    path += (path.empty() ? "" : "/") + std::string(part);
  }
  return CheckSwitchPath(path).ok() ? path : std::string();
}

}  // namespace tally
