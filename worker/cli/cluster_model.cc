#include "worker/cli/cluster_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/human.h"
#include "common/schedule/shares.h"
#include "common/schedule/simulate.h"
#include "worker/cli/model_question.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

// A way to aggregate: its column, and what it needs.
struct Way {
  std::string name;
  const ScheduleEntry* schedule = nullptr;
  OwnerSet owners = OwnerSet::kServers;  // without a schedule
  bool node_stages = false;
  enum class Servers : std::uint8_t { kNone, kOne, kAsInFile, kSeparate, kColocated } servers = Servers::kNone;
};

const std::vector<Way>& Ways() {
  using Servers = Way::Servers;
  static const std::vector<Way> ways = [] {
    std::vector<Way> all = {{"ps_central", nullptr, OwnerSet::kServers, false, Servers::kOne},
                            {"ps_sharded", nullptr, OwnerSet::kServers, false, Servers::kSeparate},
                            {"ps_colocated", nullptr, OwnerSet::kServers, false, Servers::kColocated}};
    for (const ScheduleEntry& schedule : Schedules()) {
      all.push_back({std::string(schedule.name), &schedule, {}, false, Servers::kNone});
    }
    all.push_back({"direct", nullptr, OwnerSet::kWorkers, false, Servers::kNone});
    all.push_back({"hybrid", nullptr, OwnerSet::kBoth, false, Servers::kAsInFile});
    all.push_back({"hierarchical_ring", *FindSchedule("ring"), {}, true, Servers::kNone});
    all.push_back({"hierarchical_ps", nullptr, OwnerSet::kServers, true, Servers::kAsInFile});
    return all;
  }();
  return ways;
}

std::string Seconds(const Way& way) { return way.name + "_s"; }

// Nothing if the file has no servers for it, or, with node stages, no host of several workers.
std::optional<Cluster> ClusterOf(const ClusterFile& file, const Way& way, std::uint32_t workers) {
  Cluster cluster = file.At(workers);
  if (way.node_stages && cluster.workers_per_host == 1) return std::nullopt;
  switch (way.servers) {
    case Way::Servers::kNone: cluster.servers = 0; return cluster;
    case Way::Servers::kOne:
      cluster.servers = std::min(cluster.servers, 1u);
      cluster.servers_colocated = false;
      break;
    case Way::Servers::kSeparate: cluster.servers_colocated = false; break;
    case Way::Servers::kColocated: cluster.servers_colocated = true; break;
    case Way::Servers::kAsInFile: break;
  }
  return cluster.servers > 0 ? std::optional(cluster) : std::nullopt;
}

// Owners' shares solved over the NICs that they share (shares.h), with whom the file's servers live.
void SolveFor(const Cluster& cluster, const Way& way, SimulatedExchange* exchange) {
  const ClusterMap map(cluster);
  Placement placement;
  for (std::uint32_t host = 0; host < map.hosts(); ++host) {
    placement.nic_bytes_per_s.push_back(map.BytesPerS({LinkKind::kNicOut, host}));
  }
  const std::uint32_t positions = way.node_stages ? map.worker_hosts() : cluster.workers;
  for (std::uint32_t p = 0; p < positions; ++p) {
    placement.worker_nics.push_back(way.node_stages ? p : map.HostOf(p));
  }
  for (std::uint32_t s = 0; s < cluster.servers; ++s) {
    placement.server_nics.push_back(map.HostOf(cluster.workers + s));
  }
  if (way.owners != OwnerSet::kWorkers) exchange->server_shares.assign(cluster.servers, 0);
  if (way.owners != OwnerSet::kServers) exchange->position_shares.assign(positions, 0);
  const ShareTable table = SolveShares(placement, way.owners, {exchange->up_bytes, exchange->down_bytes});
  double sum = 0;
  for (const Share& share : table.shares) sum += share.share;
  for (const Share& share : table.shares) {
    auto& shares = share.owner.role == Role::kServer ? exchange->server_shares : exchange->position_shares;
    shares[share.owner.index] = share.share / sum;
  }
}

Result<SimulatedTime> SimulateWay(const ClusterFile& file, const Cluster& cluster, const Way& way) {
  SimulatedExchange exchange;
  exchange.schedule = way.schedule;
  exchange.node_stages = way.node_stages;
  exchange.bytes = static_cast<double>(file.bytes);
  bool linear = false;
  TALLY_ASSIGN_OR_RETURN(const Ratios ratios, CodecRatios(file.codec, cluster.workers, &linear));
  exchange.up_bytes = exchange.bytes * (way.schedule == nullptr || linear ? ratios.push : 1);
  exchange.down_bytes = exchange.bytes * (way.schedule == nullptr ? ratios.reply : linear ? ratios.push : 1);
  if (way.schedule == nullptr) SolveFor(cluster, way, &exchange);
  return Simulate(cluster, exchange);
}

// By how much one has to be faster to count as such: what the simulation's chunks leave open.
constexpr double kFaster = 0.99;

// From which of the sizes on `faster` is faster than `than`; each time that it changes.
void AddCrossings(const nlohmann::json& rows, const std::string& a, const std::string& b, nlohmann::json* crossings) {
  std::string leader;
  for (const auto& row : rows) {
    const auto& x = row[a + "_s"];
    const auto& y = row[b + "_s"];
    if (x.is_null() || y.is_null()) continue;
    const double first = x.get<double>(), second = y.get<double>();
    const std::string now = first < kFaster * second ? a : second < kFaster * first ? b : leader;
    if (now == leader) continue;
    crossings->push_back({{"faster", now}, {"than", now == a ? b : a}, {"from_workers", row["workers"]}});
    leader = now;
  }
}

std::string Title(std::string name) {
  std::ranges::replace(name, '_', ' ');
  const std::size_t ps = name.starts_with("ps") ? 0 : name.ends_with(" ps") ? name.size() - 2 : std::string::npos;
  if (ps != std::string::npos) name.replace(ps, 2, "PS");
  return name;
}

void PrintRows(const nlohmann::json& result, Console& console) {
  const auto right = Table::Align::kRight;
  std::vector<Table::Column> columns = {{"workers", right}, {"hosts", right}, {"servers", right}};
  std::vector<const Way*> shown;
  for (const Way& way : Ways()) {
    const auto simulated = [&](const auto& row) { return !row[Seconds(way)].is_null(); };
    if (std::none_of(result["rows"].begin(), result["rows"].end(), simulated)) continue;
    columns.push_back({Title(way.name), right});
    shown.push_back(&way);
  }
  columns.push_back({"fastest"});
  Table table(std::move(columns));
  for (const auto& row : result["rows"]) {
    std::vector<std::string> cells = {row["workers"].dump(), row["hosts"].dump(), row["servers"].dump()};
    for (const Way* way : shown) {
      const auto& seconds = row[Seconds(*way)];
      cells.push_back(seconds.is_null() ? "-" : HumanSeconds(seconds.get<double>()));
    }
    cells.push_back(Title(row["fastest"].get<std::string>()));
    table.AddRow(std::move(cells));
  }
  std::string text = table.Text();
  text.pop_back();
  console.Print(text);
  for (const auto& crossing : result["crossings"]) {
    console.Print(Title(crossing["faster"]) + " is faster than " + Title(crossing["than"]) + " from " +
                  crossing["from_workers"].dump() + " workers on");
  }
  for (const auto& missing : result["not_simulated"]) console.Note(missing.get<std::string>());
}

}  // namespace

Result<nlohmann::json> SimulateCluster(const ClusterFile& file, Console& console) {
  nlohmann::json rows = nlohmann::json::array(), missing = nlohmann::json::array();
  for (const std::uint32_t workers : file.workers) {
    nlohmann::json row = {{"workers", workers},
                          {"servers", file.ServersFor(workers)},
                          {"hosts", ClusterMap(file.At(workers)).worker_hosts()}};
    std::string fastest;
    double least = 0;
    for (const Way& way : Ways()) {
      row[Seconds(way)] = nullptr;
      const std::optional<Cluster> cluster = ClusterOf(file, way, workers);
      if (!cluster.has_value()) continue;
      console.Progress("simulating " + std::to_string(workers) + " workers: " + Title(way.name));
      const Result<SimulatedTime> time = SimulateWay(file, *cluster, way);
      if (!time.ok() && time.status().kind() == StatusKind::kUnsupported) {
        missing.push_back(Title(way.name) + ": " + time.status().text());
        continue;
      }
      TALLY_RETURN_IF_ERROR(time.status());
      row[Seconds(way)] = time->seconds;
      if (fastest.empty() || time->seconds < kFaster * least) {
        fastest = way.name;
        least = time->seconds;
      }
    }
    const auto& ring = row["ring_s"];
    const auto& ps = row["ps_sharded_s"];
    row["ps_over_ring"] = nullptr;
    if (!ring.is_null() && !ps.is_null() && ring > 0) row["ps_over_ring"] = ps.get<double>() / ring.get<double>();
    row["fastest"] = fastest;
    rows.push_back(std::move(row));
  }
  console.EndProgress();
  nlohmann::json crossings = nlohmann::json::array();
  const std::string ps = file.colocated ? "ps_colocated" : "ps_sharded";
  AddCrossings(rows, ps, "ring", &crossings);
  AddCrossings(rows, "hybrid", "ring", &crossings);
  AddCrossings(rows, "hybrid", ps, &crossings);
  AddCrossings(rows, "hierarchical_ring", "ring", &crossings);
  AddCrossings(rows, "hierarchical_ps", "hierarchical_ring", &crossings);
  return nlohmann::json{{"rows", rows}, {"crossings", crossings}, {"not_simulated", missing}};
}

int RunClusterModel(const std::string& path, const JsonOption& json, Console& console) {
  if (const Status output = json.Check(); !output.ok()) return console.Fail(output);
  const Result<ClusterFile> file = ReadClusterFile(path);
  if (!file.ok()) return console.Fail(file.status());
  const Result<nlohmann::json> result = SimulateCluster(*file, console);
  if (!result.ok()) return console.Fail(result.status());
  if (!json.to_stdout()) {
    console.Note("simulated: one aggregation of " + HumanBytes(static_cast<double>(file->bytes)) +
                 " per worker, codec " + file->codec + "; servers " +
                 (file->colocated ? "on workers' hosts" : "on hosts of their own") + " for hybrid and hierarchical PS");
    PrintRows(*result, console);
  }
  if (json.wanted()) {
    if (const Status status = json.Write(*result); !status.ok()) return console.Fail(status);
  }
  return 0;
}

}  // namespace tally::cli
