#include "server/core/placement.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/transport/wire_speed.h"

namespace tally {
namespace {

bool HasNic(const JoinMessage& join) { return join.nic_bytes_per_s > 0 || !join.nic.empty(); }

}  // namespace

std::optional<Placement> PlaceMembers(std::span<const JoinMessage> workers, std::span<const JoinMessage> servers) {
  if (std::ranges::none_of(workers, HasNic) && std::ranges::none_of(servers, HasNic)) return std::nullopt;
  Placement placement;
  std::map<std::pair<std::string, std::string>, std::uint32_t> nics;
  const auto place = [&](const JoinMessage& join, std::vector<std::uint32_t>* members) {
    const char* role = join.role == Role::kServer ? "server " : "rank ";
    const std::string node = join.node.empty() ? role + std::to_string(join.index) : join.node;
    const auto [found, added] = nics.try_emplace({node, join.nic}, static_cast<std::uint32_t>(nics.size()));
    if (added) placement.nic_bytes_per_s.push_back(0);
    double& rate = placement.nic_bytes_per_s[found->second];
    if (join.nic_bytes_per_s > 0) rate = rate > 0 ? std::min(rate, join.nic_bytes_per_s) : join.nic_bytes_per_s;
    members->push_back(found->second);
  };
  for (const JoinMessage& join : workers) place(join, &placement.worker_nics);
  for (const JoinMessage& join : servers) place(join, &placement.server_nics);
  const double fastest = *std::ranges::max_element(placement.nic_bytes_per_s);
  for (double& rate : placement.nic_bytes_per_s) {
    if (rate == 0) rate = fastest > 0 ? fastest : kAssumedNicBytesPerS;
  }
  return placement;
}

}  // namespace tally
