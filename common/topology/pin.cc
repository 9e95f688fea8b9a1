#include "common/topology/pin.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "common/topology/cpu_list.h"

namespace tally {
namespace {

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)>;

Result<Topology> Load(const std::string& synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return Unavailable("hwloc does not start");
  Topology topology(raw, hwloc_topology_destroy);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0) {
    return Unavailable("hwloc makes no machine of \"" + synthetic + "\"");
  }
  if (hwloc_topology_load(raw) != 0) return Unavailable("hwloc cannot read this machine's topology");
  return topology;
}

std::vector<std::uint32_t> Both(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b) {
  std::vector<std::uint32_t> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both));
  return both;
}

Status PreferMemoryOf(std::uint32_t numa) {
  TALLY_ASSIGN_OR_RETURN(const Topology topology, Load(""));
  const std::unique_ptr<hwloc_bitmap_s, void (*)(hwloc_bitmap_s*)> nodes(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  if (nodes == nullptr || hwloc_bitmap_only(nodes.get(), numa) != 0 ||
      hwloc_set_membind(topology.get(), nodes.get(), HWLOC_MEMBIND_BIND,
                        HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) != 0) {
    return Unavailable("memory of NUMA node " + std::to_string(numa) + " cannot be preferred: " + std::strerror(errno));
  }
  return Status::Ok();
}

}  // namespace

Result<std::vector<NumaNode>> NumaNodes(const std::string& synthetic) {
  TALLY_ASSIGN_OR_RETURN(const Topology topology, Load(synthetic));
  std::vector<NumaNode> nodes;
  for (hwloc_obj_t node = nullptr;
       (node = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    NumaNode numa{node->os_index, {}};
    for (int cpu = hwloc_bitmap_first(node->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(node->cpuset, cpu)) {
      numa.cpus.push_back(static_cast<std::uint32_t>(cpu));
    }
    nodes.push_back(std::move(numa));
  }
  return nodes;
}

std::optional<std::uint32_t> NumaNodeOfNic(const std::string& nic) {
  if (nic.empty() || nic.find('/') != std::string::npos) return std::nullopt;
  std::ifstream file("/sys/class/net/" + nic + "/device/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return static_cast<std::uint32_t>(node);
}

std::vector<std::uint32_t> AllowedCpus() {
  std::vector<std::uint32_t> cpus;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxCpus), [](cpu_set_t* s) { CPU_FREE(s); });
  const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
  if (set == nullptr || sched_getaffinity(0, bytes, set.get()) != 0) return cpus;
  for (std::uint32_t cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
  }
  return cpus;
}

PinPlan PlanPin(const std::string& setting, std::span<const NumaNode> nodes, const std::string& nic,
                std::optional<std::uint32_t> near, std::span<const std::uint32_t> allowed) {
  PinPlan plan;
  if (setting == "none") {
    plan.why = "topology.pin = none";
    return plan;
  }
  if (setting != "auto") {
    const Result<std::vector<std::uint32_t>> cores = ParseCpuList(setting);
    if (cores.ok()) plan.cpus = Both(*cores, allowed);
    plan.refused = plan.cpus.empty();
    plan.why = "topology.pin = " + setting + (plan.refused ? ": this process may use none of these cores" : "");
    const auto home = std::ranges::find_if(nodes, [&plan](const NumaNode& node) {
      return !plan.cpus.empty() && std::ranges::includes(node.cpus, plan.cpus);
    });
    if (nodes.size() > 1 && home != nodes.end()) plan.numa = home->index;
    return plan;
  }
  if (near.has_value() && nodes.size() < 2) {
    plan.why = "one NUMA node";
    return plan;
  }
  const auto node = std::ranges::find_if(nodes, [near](const NumaNode& n) { return near == n.index; });
  if (node == nodes.end()) {
    plan.why = nic.empty() ? "no NIC" : "the system does not say which NUMA node NIC " + nic + " is near";
    return plan;
  }
  const std::string place = "NUMA node " + std::to_string(node->index) + ", near NIC " + nic;
  plan.cpus = Both(node->cpus, allowed);
  if (plan.cpus.empty()) {
    plan.why = "this process may use no core of " + place;
    return plan;
  }
  plan.numa = node->index;
  plan.why = place;
  return plan;
}

PinPlan PlanPinHere(const std::string& setting, const std::string& nic) {
  const std::optional<std::uint32_t> near = NumaNodeOfNic(nic);
  std::vector<NumaNode> nodes;
  if (setting != "none" && (setting != "auto" || near.has_value())) {
    if (Result<std::vector<NumaNode>> here = NumaNodes(); here.ok()) nodes = std::move(here).value();
  }
  return PlanPin(setting, nodes, nic, near, AllowedCpus());
}

Status Pin(const PinPlan& plan) {
  if (!plan.cpus.empty()) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(kMaxCpus), [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(kMaxCpus);
    if (set == nullptr) return Unavailable("no memory for a set of cores");
    CPU_ZERO_S(bytes, set.get());
    for (const std::uint32_t cpu : plan.cpus) CPU_SET_S(cpu, bytes, set.get());
    if (sched_setaffinity(0, bytes, set.get()) != 0) {
      return Unavailable(std::string("cores cannot be chosen: ") + std::strerror(errno));
    }
  }
  return plan.numa.has_value() ? PreferMemoryOf(*plan.numa) : Status::Ok();
}

void PinThread(const std::string& setting, const std::string& nic, Logger& logger) {
  const PinPlan plan = PlanPinHere(setting, nic);
  if (plan.refused) return logger.Warn("the thread that moves bytes runs on any core", {{"why", plan.why}});
  if (plan.cpus.empty()) return;
  if (const Status pinned = Pin(plan); !pinned.ok()) {
    return logger.Warn("the thread that moves bytes is not where it was to be", {{"why", pinned.text()}});
  }
  logger.Info("the thread that moves bytes keeps to its cores", {{"cores", plan.cpus.size()}, {"why", plan.why}});
}

}  // namespace tally
