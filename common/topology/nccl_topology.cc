#include "common/topology/nccl_topology.h"

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>

#include <algorithm>
#include <sstream>

#include "common/control.h"
#include "common/topology/switch_map.h"

namespace tally {
namespace {

constexpr int kMaxDepth = 64;

// The parser below recurses, so nesting is counted before it sees the text. Comments and the like count too: hostile text
// may be refused for them, files of NCCL have none.
bool TooDeep(std::string_view xml) {
  int depth = 0;
  for (std::size_t i = 0; i + 1 < xml.size(); ++i) {
    if (xml[i] == '<') depth += xml[i + 1] == '/' ? -1 : xml[i + 1] == '?' || xml[i + 1] == '!' ? 0 : 1;
    if (xml[i] == '/' && xml[i + 1] == '>') --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

using Tree = boost::property_tree::ptree;

void FindNics(const Tree& tree, const std::string& numa, std::vector<NcclNic>* nics) {
  for (const auto& [name, child] : tree) {
    if (name == "net") {
      const double megabits = child.get<double>("<xmlattr>.speed", 0.0);
      nics->push_back({child.get<std::string>("<xmlattr>.name", ""), numa, megabits > 0 ? megabits * 1e6 / 8 : 0});
    } else {
      FindNics(child, name == "cpu" ? child.get<std::string>("<xmlattr>.numaid", "") : numa, nics);
    }
  }
}

}  // namespace

Result<std::vector<NcclNic>> ParseNcclTopology(std::string_view xml) {
  if (xml.size() > kMaxTopologyBytes) return InvalidArgument("larger than 1 MiB");
  if (TooDeep(xml)) return InvalidArgument("nested deeper than " + std::to_string(kMaxDepth));
  Tree tree;
  try {
    std::istringstream in{std::string(xml)};
    boost::property_tree::read_xml(in, tree);
  } catch (const boost::property_tree::xml_parser_error& error) {
    return InvalidArgument("line " + std::to_string(error.line()) + " is not XML: " + error.message());
  }
  const auto system = tree.get_child_optional("system");
  if (!system) return InvalidArgument("there is no <system>: expected a topology file of NCCL");
  std::vector<NcclNic> nics;
  FindNics(*system, "", &nics);
  const bool printable = std::ranges::all_of(
      nics, [](const NcclNic& nic) { return IsPrintableName(nic.name) && IsPrintableName(nic.numa); });
  if (!printable) return InvalidArgument("a NIC's name cannot be printed, or is longer than 128 bytes");
  return nics;
}

}  // namespace tally
