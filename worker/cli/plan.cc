#include "worker/cli/plan.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/linear.h"

namespace tally::cli {
namespace {

AdviceQuestion AdviceFor(const Way& way, const Placement& placement) {
  AdviceQuestion advice;
  advice.bytes_per_s = placement.nic_bytes_per_s[way.table.busiest_nic];
  advice.workers = static_cast<std::uint32_t>(placement.worker_nics.size());
  advice.servers = static_cast<std::uint32_t>(placement.server_nics.size());
  advice.server_shares = way.kind == WayKind::kPs || way.kind == WayKind::kHybrid;
  advice.worker_shares = way.kind != WayKind::kPs;
  return advice;
}

class Planner {
 public:
  explicit Planner(const PlanQuestion& question) : question_(question) {}

  Result<Plan> Make() {
    const Config::Compression& compression = question_.compression;
    TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(compression.codec, compression));
    if (compression.codec == "powersgd") {
      return Unsupported("codec powersgd: its size depends on the shapes of the tensors, and it takes two rounds");
    }
    const std::string scheduled = traits.linear ? compression.codec : "none";
    TALLY_ASSIGN_OR_RETURN(const std::vector<Way> owner_ways, Owners("none"));
    for (const Way& plain : owner_ways) {
      const std::string codec = CodecOf(plain);
      TALLY_ASSIGN_OR_RETURN(const std::vector<Way> priced, Owners(codec));
      Add(*std::ranges::find(priced, plain.kind, &Way::kind), codec, true);
      TALLY_ASSIGN_OR_RETURN(const WayQuestion asked, Ask(codec));
      plan_.bound_s = BoundSeconds(asked);  // at last with what hybrid carries, or direct where there are no servers
    }
    TALLY_ASSIGN_OR_RETURN(const WayQuestion by_schedule, Ask(scheduled));
    for (const ScheduleEntry& schedule : Schedules()) {
      const bool named = question_.schedule == schedule.name || question_.schedule == kScheduleAuto;
      Add(PriceSchedule(schedule, by_schedule), scheduled, traits.linear && named);
    }
    TALLY_ASSIGN_OR_RETURN(const WayQuestion between, Ask("none"));
    const std::string codec = CodecOf(PriceHierarchical(between));
    TALLY_ASSIGN_OR_RETURN(WayQuestion nodes, Ask(codec));
    if (traits.linear && question_.schedule != kScheduleAuto) {
      TALLY_ASSIGN_OR_RETURN(nodes.schedule_between, FindSchedule(question_.schedule));
    }
    const std::set<std::uint32_t> nics(question_.placement.worker_nics.begin(), question_.placement.worker_nics.end());
    Add(PriceHierarchical(nodes), codec, question_.local && nics.size() < question_.placement.worker_nics.size());
    Choose();
    return std::move(plan_);
  }

 private:
  Result<WayQuestion> Ask(const std::string& codec) const {
    Config::Compression compression = question_.compression;
    compression.codec = codec;
    const auto workers = static_cast<std::uint32_t>(question_.placement.worker_nics.size());
    TALLY_ASSIGN_OR_RETURN(const TravelBytes bytes,
                           TensorBytes({"", ElementCount(question_.elements)}, workers, compression));
    WayQuestion way;
    way.placement = question_.placement;
    way.alpha_s = question_.alpha_s;
    way.servers_between = question_.servers_between;
    way.owned = {static_cast<double>(bytes.push), static_cast<double>(bytes.reply)};
    way.scheduled_bytes = way.owned.up;
    AddCpu(codec, workers, &way);
    return way;
  }

  const CodecCost* CostOf(const std::string& codec) const {
    const auto cost = std::ranges::find(question_.costs, codec, &CodecCost::codec);
    return cost == question_.costs.end() ? nullptr : &*cost;
  }

  void AddCpu(const std::string& codec, std::uint32_t workers, WayQuestion* way) const {
    const CodecCost* cost = CostOf(codec);
    if (!question_.frames.has_value() || cost == nullptr) return;
    const double slabs = static_cast<double>(CutTensor(question_.elements, workers).count);
    const double largest = std::max(way->owned.up, way->owned.down);
    const auto limit = static_cast<double>(Config::LinkSettings{}.frame_bytes);
    CpuQuestion cpu;
    cpu.cores = question_.cores;
    cpu.one_machine = question_.one_machine;
    cpu.elements = static_cast<double>(question_.elements);
    cpu.frames = std::max(std::min(slabs, static_cast<double>(workers)), std::ceil(largest / limit));
    cpu.workers = cpu.servers = *question_.frames;
    cpu.owned = cpu.scheduled = {cost->encode_s, cost->decode_s, cost->decode_add_s};
    if (cpu.frames > 0) way->frame_bytes = largest / cpu.frames;
    way->cpu = cpu;
  }

  Result<std::vector<Way>> Owners(const std::string& codec) const {
    TALLY_ASSIGN_OR_RETURN(const WayQuestion way, Ask(codec));
    return PriceOwnerWays(way);
  }

  std::string CodecOf(const Way& plain) const {
    if (question_.compression.codec != kCodecAuto) return question_.compression.codec;
    return AdviseCodecs(AdviceFor(plain, question_.placement), question_.costs).codecs.fp32;
  }

  void Add(Way way, const std::string& codec, bool candidate) {
    const CodecCost* cost = CostOf(codec);
    if (cost != nullptr && way.cpu_seconds == 0) {
      const auto elements = static_cast<double>(question_.elements);
      way.seconds += CodecSeconds(AdviceFor(way, question_.placement), *cost) * elements;
    }
    plan_.rows.push_back({std::move(way), codec, candidate});
  }

  void Choose() {
    std::vector<Way> candidates;
    std::vector<std::size_t> rows;
    for (std::size_t i = 0; i < plan_.rows.size(); ++i) {
      if (!plan_.rows[i].candidate) continue;
      candidates.push_back(plan_.rows[i].way);
      rows.push_back(i);
    }
    Choice choice = ChooseWay(candidates);
    plan_.chosen = rows[choice.way];
    plan_.reason = std::move(choice.reason);
  }

  const PlanQuestion& question_;
  Plan plan_;
};

std::string Members(const char* role, const std::vector<std::uint32_t>& nics, std::uint32_t nic) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t i = 0; i < nics.size(); ++i) {
    if (nics[i] == nic) members.push_back(i);
  }
  if (members.empty()) return "";
  if (members.size() == 1) return std::string(role) + " " + std::to_string(members[0]);
  const bool run = members.back() - members.front() + 1 == members.size();
  return std::string(role) + "s " + std::to_string(members.front()) + (run ? " to " : " … ") +
         std::to_string(members.back());
}

}  // namespace

Result<Plan> MakePlan(const PlanQuestion& question) { return Planner(question).Make(); }

std::string NicName(const Placement& placement, std::uint32_t nic) {
  const std::string workers = Members("worker", placement.worker_nics, nic);
  const std::string servers = Members("server", placement.server_nics, nic);
  return workers + (workers.empty() || servers.empty() ? "" : " and ") + servers;
}

}  // namespace tally::cli
