#include "common/schedule/cpu_load.h"

#include <algorithm>
#include <map>

namespace tally {
namespace {

double Traffic(const FrameCosts& costs, double frames, double bytes) {
  return (frames * costs.frame_s + bytes * costs.byte_s) / 2;
}

}  // namespace

CpuLoad CpuLoadOfOwners(const Placement& placement, std::span<const Share> shares, const ExchangeBytes& bytes,
                        const CpuQuestion& question) {
  const auto n = static_cast<double>(placement.worker_nics.size());
  const CodingCosts& coding = question.owned;
  CpuLoad load{std::vector<double>(placement.worker_nics.size()), std::vector<double>(placement.server_nics.size())};
  double all = 0, of_servers = 0;
  for (const Share& share : shares) all += share.share;
  const double owning_s = (n * coding.decode_add_s + coding.encode_s) * question.elements;
  std::vector<double> own(load.workers.size(), 0.0);
  for (const Share& share : shares) {
    const double part = all > 0 ? share.share / all : 0;
    if (share.owner.role == Role::kWorker) {
      own[share.owner.index] = part;
      continue;
    }
    of_servers += part;
    load.servers[share.owner.index] =
        part * (owning_s + Traffic(question.servers, 2 * n * question.frames, n * (bytes.up + bytes.down)));
  }
  const double both_ways = bytes.up + bytes.down;
  for (std::size_t w = 0; w < own.size(); ++w) {
    const double to_others = 1 - of_servers - own[w] + (n - 1) * own[w];
    load.workers[w] = (coding.encode_s + coding.decode_s) * question.elements + own[w] * owning_s +
                      Traffic(question.servers, of_servers * 2 * question.frames, of_servers * both_ways) +
                      Traffic(question.workers, to_others * 2 * question.frames, to_others * both_ways) +
                      Traffic(question.workers, 2 * question.notes, 0);
  }
  return load;
}

CpuLoad CpuLoadOfSchedule(const Placement& placement, double bytes, const CpuQuestion& question) {
  const auto n = static_cast<double>(placement.worker_nics.size());
  const CodingCosts& coding = question.scheduled;
  const double passed = 4 * (n - 1) / n;  // each worker's gradients sent and received
  const double each = (coding.encode_s + coding.decode_s + (n - 1) / n * coding.decode_add_s) * question.elements +
                      Traffic(question.workers, passed * question.frames + 2 * question.notes, passed * bytes);
  return {std::vector<double>(placement.worker_nics.size(), each), std::vector<double>(placement.server_nics.size())};
}

CpuLoad CpuLoadOfNodes(const Placement& placement, const CpuLoad& between, const CpuQuestion& question) {
  std::map<std::uint32_t, std::uint32_t> workers_of;
  std::vector<std::uint32_t> nodes;  // NICs in the order of the between's workers
  for (const std::uint32_t nic : placement.worker_nics) {
    if (workers_of[nic]++ == 0) nodes.push_back(nic);
  }
  CpuLoad load{std::vector<double>(placement.worker_nics.size()), between.servers};
  const CodingCosts& coding = question.scheduled;
  for (std::size_t w = 0; w < load.workers.size(); ++w) {
    const std::uint32_t nic = placement.worker_nics[w];
    const auto node = static_cast<std::size_t>(std::ranges::find(nodes, nic) - nodes.begin());
    const double local = workers_of[nic];
    const double inside_s = (coding.decode_add_s + coding.decode_s / local) * question.elements;
    load.workers[w] = between.workers[node] / local + inside_s +
                      Traffic(question.workers, 2 * question.notes, 0);
  }
  return load;
}

double CpuSeconds(const Placement& placement, const CpuLoad& load, const CpuQuestion& question) {
  std::map<std::uint32_t, double> machines;
  double busiest = 0;
  const auto add = [&](double seconds, std::uint32_t nic) {
    machines[question.one_machine ? 0 : nic] += seconds;
    busiest = std::max(busiest, seconds);
  };
  for (std::size_t w = 0; w < load.workers.size(); ++w) add(load.workers[w], placement.worker_nics[w]);
  for (std::size_t s = 0; s < load.servers.size(); ++s) add(load.servers[s], placement.server_nics[s]);
  for (const auto& [machine, seconds] : machines) busiest = std::max(busiest, seconds / question.cores);
  return busiest;
}

}  // namespace tally
