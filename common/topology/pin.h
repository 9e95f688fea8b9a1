// Pin: which cores and whose memory the thread that moves bytes should use: those near its NIC. hwloc says what is
// where; the decision is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/log.h"
#include "common/status.h"

namespace tally {

struct NumaNode {
  std::uint32_t index = 0;
  std::vector<std::uint32_t> cpus;  // rising
};
// Of this machine, or of one that hwloc makes of a description ("numa:2 core:4 pu:1"). Errors: kUnavailable.
Result<std::vector<NumaNode>> NumaNodes(const std::string& synthetic = "");

// The NUMA node that the system says a network interface hangs at; none if it does not say.
std::optional<std::uint32_t> NumaNodeOfNic(const std::string& nic);

// Cores that the calling thread may use.
std::vector<std::uint32_t> AllowedCpus();

struct PinPlan {
  std::vector<std::uint32_t> cpus;    // empty: anywhere, as it is
  std::optional<std::uint32_t> numa;  // whose memory is preferred
  std::string why;                    // for people
  bool refused = false;               // what was asked for cannot be done
};
// `setting`: topology.pin (auto, none, or a list of cores). Never a core outside `allowed`.
PinPlan PlanPin(const std::string& setting, std::span<const NumaNode> nodes, const std::string& nic,
                std::optional<std::uint32_t> near, std::span<const std::uint32_t> allowed);
// The same for this machine, the calling thread and an interface ("": none); hwloc is asked only if it can matter.
PinPlan PlanPinHere(const std::string& setting, const std::string& nic);

// For the calling thread: its cores, and where memory comes from that it touches first. Errors: kUnavailable, from the
// system; the thread is then as it was, or has the cores alone.
Status Pin(const PinPlan& plan);
// All of it, logged where it does something or cannot do what was asked for.
void PinThread(const std::string& setting, const std::string& nic, Logger& logger);

}  // namespace tally
