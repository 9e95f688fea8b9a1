#include "worker/cli/prediction.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/schedule/layout.h"
#include "common/schedule/ways.h"
#include "compress/codec.h"
#include "compress/linear.h"
#include "compress/stages.h"
#include "worker/cli/free_cores.h"
#include "worker/cli/link_probe.h"

namespace tally::cli {
namespace {

constexpr Nanos kEachRate = std::chrono::milliseconds(100);
constexpr double kNoNic = 1e18;  // bytes per second: nothing waits for it

// What a worker's gradient fills on its way to the owners, as worker/frame_plan.h packs it: slabs of a bucket that have
// one owner and one codec share frames.
struct Frames {
  double count = 0, largest_bytes = 0;
};

Result<Frames> CountFrames(const Setting& setting, const GradientShape& shape, std::uint32_t positions, double owners) {
  const auto limit = static_cast<double>(Config::LinkSettings{}.frame_bytes);
  std::vector<std::vector<std::uint32_t>> buckets = shape.buckets;
  if (buckets.empty()) {
    buckets.emplace_back(shape.elements.size());
    std::iota(buckets.front().begin(), buckets.front().end(), 0U);
  }
  Frames frames;
  for (const std::vector<std::uint32_t>& bucket : buckets) {
    struct Packed {
      double slabs = 0, bytes = 0;
    };
    std::map<std::uint8_t, Packed> by_codec;
    for (const std::uint32_t t : bucket) {
      if (t >= shape.elements.size()) return Corrupt("a bucket names tensor " + std::to_string(t));
      const std::uint64_t n = shape.elements[t];
      TALLY_ASSIGN_OR_RETURN(const TravelBytes bytes,
                             TensorBytes({"", ElementCount(n)}, positions, setting.compression));
      Packed& packed = by_codec[CodecForTensor("", n, setting.compression)];
      packed.slabs += static_cast<double>(CutTensor(n, positions).count);
      packed.bytes += static_cast<double>(std::max(bytes.push, bytes.reply));
    }
    for (const auto& [codec, packed] : by_codec) {
      if (packed.slabs == 0) continue;
      const double each = packed.bytes / packed.slabs;
      const double a_frame = std::max(1.0, std::floor(limit / each));
      const double count = std::max(std::min(packed.slabs, owners), std::ceil(packed.slabs / a_frame));
      frames.count += count;
      frames.largest_bytes = std::max(frames.largest_bytes, packed.bytes / count);
    }
  }
  return frames;
}

OwnerSet OwnersOf(const Setting& setting) {
  if (!setting.with_servers()) return OwnerSet::kWorkers;
  return setting.mode == Mode::kPs ? OwnerSet::kServers : OwnerSet::kBoth;
}

bool HasNodeStages(const Setting& setting) {
  return setting.mode == Mode::kHierarchical || setting.mode == Mode::kAuto;
}

// On loopback mode auto finds all workers on this machine, one node.
std::uint32_t WorkersPerNode(const Setting& setting) {
  return setting.mode == Mode::kAuto && setting.rate_bits <= 0 ? setting.workers : setting.workers_per_node;
}

// Without node stages workers that share an emulated NIC send each other, too, through it: each has its part of it.
Placement Place(const Setting& setting) {
  const double rate = setting.rate_bits > 0 ? setting.rate_bits / 8 : kNoNic;
  const bool parts = !HasNodeStages(setting) && setting.workers_per_node > 1 && !setting.colocated;
  const std::uint32_t sharing = parts ? 1 : WorkersPerNode(setting);
  const std::uint32_t nodes = (setting.workers + sharing - 1) / sharing;
  Placement placement;
  placement.nic_bytes_per_s.assign(nodes, parts ? rate / setting.workers_per_node : rate);
  for (std::uint32_t w = 0; w < setting.workers; ++w) placement.worker_nics.push_back(w / sharing);
  for (std::uint32_t s = 0; s < setting.servers; ++s) {
    placement.server_nics.push_back(setting.colocated ? s : nodes + s);
    if (!setting.colocated) placement.nic_bytes_per_s.push_back(rate);
  }
  return placement;
}

CodingCosts Coding(const MachineCosts& machine, const std::string& codec) {
  const CodecCost& cost = machine.codecs.at(codec);
  return {cost.encode_s, cost.decode_s, cost.decode_add_s};
}

// False if nothing is known of what the codec takes.
bool AddCpu(const Setting& setting, const GradientShape& shape, const Frames& frames, const MachineCosts& machine,
            WayQuestion* question) {
  if (!machine.codecs.contains(setting.CodecText())) return false;
  CpuQuestion cpu;
  cpu.cores = machine.probe.cores;
  cpu.one_machine = true;
  cpu.elements = static_cast<double>(std::accumulate(shape.elements.begin(), shape.elements.end(), std::uint64_t{0}));
  cpu.frames = frames.count;
  // Each bucket is handed to the engine's thread, all of them back; `prepared` and the verdict.
  cpu.notes = static_cast<double>(std::max<std::size_t>(shape.buckets.size(), 1)) + 3;
  // An emulated NIC has no links in memory, nor have hierarchical's nodes among each other.
  const bool in_memory = setting.rate_bits <= 0 && setting.mode != Mode::kHierarchical;
  const LinkRates& workers = machine.probe.link(in_memory ? "shm" : setting.worker_transport);
  cpu.workers = workers.cpu;
  cpu.servers = machine.probe.link(in_memory ? "shm" : setting.server_transport).cpu;
  // Numbers as they are, in memory, are added where they lie; that is decode_add's time.
  if (in_memory && setting.compression.codec == "none") cpu.workers.byte_s = cpu.servers.byte_s = 0;
  cpu.owned = cpu.scheduled = Coding(machine, setting.CodecText());
  question->alpha_s = workers.alpha_s;
  question->cpu = cpu;
  return true;
}

std::optional<Way> Price(const Setting& setting, const std::optional<std::string>& schedule, WayQuestion question) {
  const ScheduleEntry* entry = nullptr;
  if (schedule.has_value()) {
    const auto found = FindSchedule(*schedule);
    if (!found.ok()) return std::nullopt;
    entry = *found;
  }
  if (HasNodeStages(setting)) {
    question.schedule_between = entry;
    const Way peers = PriceHierarchical(question);
    if (entry != nullptr || !setting.with_servers()) return peers;
    question.servers_between = true;
    const Way servers = PriceHierarchical(question);
    return servers.seconds < peers.seconds ? servers : peers;
  }
  if (entry != nullptr) return PriceSchedule(*entry, question);
  const std::vector<Way> ways = PriceOwnerWays(question);
  const WayKind kind = OwnersOf(setting) == OwnerSet::kWorkers   ? WayKind::kDirect
                       : OwnersOf(setting) == OwnerSet::kServers ? WayKind::kPs
                                                                 : WayKind::kHybrid;
  return *std::ranges::find(ways, kind, &Way::kind);
}

}  // namespace

Result<MachineCosts> MeasureMachine(std::span<const Setting> settings) {
  MachineCosts machine;
  machine.probe.cores = FreeCores();
  TALLY_ASSIGN_OR_RETURN(machine.probe.links, ProbeLoopback({.each = kEachRate, .progress = nullptr}));
  const SteadyClock clock;
  TALLY_ASSIGN_OR_RETURN(machine.codecs["none"], MeasureCodecCost("none", {}, clock));
  for (const Setting& setting : settings) {
    if (machine.codecs.contains(setting.CodecText())) continue;
    const auto cost = MeasureCodecCost(setting.compression.codec, setting.compression, clock);
    if (cost.ok()) machine.codecs[setting.CodecText()] = *cost;
  }
  return machine;
}

std::optional<double> PredictedCommMs(const Setting& setting, const std::optional<std::string>& schedule,
                                      const GradientShape& shape, const MachineCosts* machine) {
  if (setting.rate_bits <= 0 && machine == nullptr) return std::nullopt;
  if (setting.steps <= CodecStages(setting.compression).back().first_step) return std::nullopt;
  if (setting.compression.codec == "powersgd") return std::nullopt;
  WayQuestion question;
  question.placement = Place(setting);
  question.one_machine = setting.rate_bits <= 0;
  const std::uint32_t sharing = HasNodeStages(setting) ? WorkersPerNode(setting) : 1;
  const std::uint32_t positions = (setting.workers + sharing - 1) / sharing;
  for (const std::uint64_t elements : shape.elements) {
    const auto tensor = TensorBytes({"", ElementCount(elements)}, setting.workers, setting.compression);
    if (!tensor.ok()) return std::nullopt;
    question.owned.up += static_cast<double>(tensor->push);
    question.owned.down += static_cast<double>(tensor->reply);
  }
  question.scheduled_bytes = question.owned.up;
  if (machine != nullptr) {
    const double owners = (setting.with_servers() ? setting.servers : 0) +
                          (OwnersOf(setting) == OwnerSet::kServers ? 0 : positions);
    const Result<Frames> frames = CountFrames(setting, shape, setting.workers, owners);
    if (!frames.ok() || !AddCpu(setting, shape, *frames, *machine, &question)) return std::nullopt;
    question.frame_bytes = frames->largest_bytes;
  }
  const std::optional<Way> way = Price(setting, schedule, question);
  if (!way.has_value()) return std::nullopt;
  const double verdict_s = machine == nullptr ? 0 : 2 * machine->probe.link("tcp").alpha_s;
  return (way->seconds + verdict_s) * 1e3;
}

}  // namespace tally::cli
