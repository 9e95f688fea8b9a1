#include "worker/cli/this_machine.h"

#include <hwloc.h>

#include <memory>

namespace tally::cli {

Result<ThisMachine> LookAround() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return Unavailable("hwloc does not start");
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)> owner(topology, hwloc_topology_destroy);
  hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(topology) != 0) return Unavailable("hwloc cannot read this machine's topology");
  ThisMachine machine;
  for (hwloc_obj_t node = nullptr; (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)) != nullptr;) {
    const int cores = hwloc_get_nbobjs_inside_cpuset_by_type(topology, node->cpuset, HWLOC_OBJ_CORE);
    machine.numa.push_back({node->os_index, cores > 0 ? static_cast<std::uint32_t>(cores) : 0,
                            node->attr->numanode.local_memory});
  }
  for (hwloc_obj_t device = nullptr; (device = hwloc_get_next_osdev(topology, device)) != nullptr;) {
    const auto type = device->attr->osdev.type;
    if (type != HWLOC_OBJ_OSDEV_NETWORK && type != HWLOC_OBJ_OSDEV_OPENFABRICS) continue;
    ThisMachine::Nic nic;
    nic.name = device->name == nullptr ? "" : device->name;
    const hwloc_obj_t above = hwloc_get_non_io_ancestor_obj(topology, device);
    for (const ThisMachine::Numa& numa : machine.numa) {
      if (above != nullptr && hwloc_bitmap_isset(above->nodeset, numa.index) != 0) nic.near.push_back(numa.index);
    }
    machine.nics.push_back(std::move(nic));
  }
  return machine;
}

}  // namespace tally::cli
