// tally topology: nodes, switches and the ring of a job that runs or is to run, its slow edges, the better order; this
// machine's NUMA nodes and NICs.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/topology/bandwidth_matrix.h"
#include "common/topology/nccl_topology.h"
#include "common/topology/pin.h"
#include "common/transport/wire_speed.h"
#include "worker/cli/measure_bandwidths.h"
#include "worker/cli/options.h"
#include "worker/cli/output_file.h"
#include "worker/cli/table.h"
#include "worker/cli/this_machine.h"
#include "worker/cli/topology_sources.h"

namespace tally::cli {
namespace {

constexpr std::size_t kMaxMembersBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxRingShown = 256;

struct TopologyOptions {
  std::string members, hosts, matrix, switches, nccl;
  std::string tasks = "1";
  bool cyclic = false;
  bool measure = false;
  std::string out;
  ConfigOptions config;
  JsonOption json;
};

using Order = std::vector<std::uint32_t>;

std::string Variable(const CommandContext& context, const char* name) {
  const auto found = context.environment.find(name);
  return found == context.environment.end() ? "" : found->second;
}

// Nobody, if nothing says who takes part.
Result<std::vector<Placed>> Members(const TopologyOptions& options, const CommandContext& context) {
  if (!options.members.empty()) {
    TALLY_ASSIGN_OR_RETURN(const std::string text, ReadInput("--members", options.members, kMaxMembersBytes));
    Result<std::vector<Placed>> members = MembersOfJson(text);
    return members.ok() ? std::move(members) : members.status().WithContext("--members " + options.members);
  }
  SwitchMap switches;
  if (!options.switches.empty()) {
    TALLY_ASSIGN_OR_RETURN(const std::string text, ReadInput("--switches", options.switches, kMaxTopologyBytes));
    const bool yaml = options.switches.ends_with(".yaml") || options.switches.ends_with(".yml");
    auto read = yaml ? ParseTopologyYaml(text) : ParseTopologyConf(text);
    if (!read.ok()) return read.status().WithContext("--switches " + options.switches);
    switches = std::move(read).value();
  }
  if (!options.hosts.empty()) return MembersOfHosts(options.hosts, options.tasks, options.cyclic, switches);
  const std::string hosts = Variable(context, "SLURM_JOB_NODELIST");
  if (hosts.empty()) return std::vector<Placed>{};
  const std::string tasks = Variable(context, "SLURM_TASKS_PER_NODE");
  auto members = MembersOfHosts(hosts, tasks.empty() ? "1" : tasks,
                                Variable(context, "SLURM_DISTRIBUTION").starts_with("cyclic"), switches);
  return members.ok() ? std::move(members) : members.status().WithContext("SLURM_JOB_NODELIST");
}

nlohmann::json EdgesJson(const RingEdges& edges) {
  return {{"leave_node", edges.leave_node}, {"leave_switch", edges.leave_switch}};
}

// "0 -> 5 => 2 #> 7": within a node, to another node, to another switch.
std::string DrawRing(const std::vector<Placed>& members, const Order& order) {
  std::string text;
  for (std::size_t i = 0; i < order.size() && i < kMaxRingShown; ++i) {
    const Order edge = {order[i], order[(i + 1) % order.size()]};
    const Placed& from = members[edge[0]];
    const Placed& to = members[edge[1]];
    text += std::to_string(edge[0]) + (from.node == to.node ? " -> " : from.switch_path == to.switch_path ? " => " : " #> ");
  }
  return text + (order.size() > kMaxRingShown ? "…" : std::to_string(order.front()));
}

void DrawTree(const std::vector<Placed>& members, const Order& order, Console& console) {
  std::string switch_path, node, line;
  bool first = true;
  for (const std::uint32_t rank : order) {
    const Placed& member = members[rank];
    if (!first && member.node == node) {
      line += ", " + std::to_string(rank);
      continue;
    }
    if (!line.empty()) console.Print(line);
    if (first || member.switch_path != switch_path) {
      console.Print(member.switch_path.empty() ? "(switch not known)" : member.switch_path);
    }
    line = "  " + member.node + "  rank " + std::to_string(rank);
    switch_path = member.switch_path;
    node = member.node;
    first = false;
  }
  console.Print(line);
}

void ShowMembers(const std::vector<Placed>& members, const nlohmann::json& result, Console& console) {
  const Order order = result["order"].get<Order>();
  Order launched(order.size());
  std::iota(launched.begin(), launched.end(), 0u);
  DrawTree(members, order, console);
  const auto say = [&](const char* title, const char* key, const Order& of) {
    const auto& edges = result["slow_edges"][key];
    console.Print(std::string(title) + edges["leave_node"].dump() + " of " + std::to_string(of.size()) +
                  " edges leave a node, " + edges["leave_switch"].dump() + " of them a switch");
    console.Print("  " + DrawRing(members, of));
  };
  say("ring by rank:      ", "by_rank", launched);
  if (order != launched) say("in a better order: ", "by_positions", order);
  console.Note("-> within a node, => to another node, #> to another switch");
}

Result<nlohmann::json> Tour(const std::string& path) {
  const Result<BandwidthMatrix> matrix = ReadBandwidthMatrix(path);
  if (!matrix.ok()) return matrix.status().WithContext("--matrix");
  TALLY_ASSIGN_OR_RETURN(const tally::Tour tour, BottleneckTour(matrix->values, matrix->size));
  Order launched(matrix->size);
  std::iota(launched.begin(), launched.end(), 0u);
  nlohmann::json hosts = nlohmann::json::array();
  for (const std::uint32_t row : tour.order) {
    hosts.push_back(matrix->names.empty() ? std::to_string(row) : matrix->names[row]);
  }
  return nlohmann::json{{"order", tour.order},
                        {"hosts", hosts},
                        {"least", tour.least},
                        {"bound", tour.bound},
                        {"optimal", tour.optimal()},
                        {"least_by_rank", LeastBandwidth(matrix->values, launched)}};
}

void ShowTour(const nlohmann::json& tour, Console& console) {
  console.Print("by rank the slowest edge of the ring has " + tour["least_by_rank"].dump() + ", in this order " +
                tour["least"].dump() +
                (tour["optimal"] ? " (no ring is better)" : " (no ring is better than " + tour["bound"].dump() + ")"));
  std::string text;
  for (const auto& host : tour["hosts"]) text += (text.empty() ? "  " : " ") + host.get<std::string>();
  console.Print(text);
}

// Where the thread that moves bytes would run, if its NIC were the fastest of this machine.
nlohmann::json PinJson(const std::string& setting) {
  const PinPlan plan = PlanPinHere(setting, SpeedOfWire(0, "0.0.0.0").nic);
  return {{"cpus", plan.cpus}, {"numa", plan.numa.has_value() ? nlohmann::json(*plan.numa) : nlohmann::json(nullptr)},
          {"why", plan.why}};
}

nlohmann::json MachineJson(const ThisMachine& machine) {
  nlohmann::json numa = nlohmann::json::array(), nics = nlohmann::json::array();
  for (const auto& node : machine.numa) {
    numa.push_back({{"index", node.index}, {"cores", node.cores}, {"memory_bytes", node.memory_bytes}});
  }
  for (const auto& nic : machine.nics) nics.push_back({{"name", nic.name}, {"numa", nic.near}});
  return {{"numa", numa}, {"nics", nics}};
}

void ShowMachine(const nlohmann::json& machine, Console& console) {
  console.Print("this machine:");
  for (const auto& numa : machine["numa"]) {
    console.Print("  NUMA node " + numa["index"].dump() + ": " + numa["cores"].dump() + " cores, " +
                  HumanBytes(numa["memory_bytes"].get<double>()));
  }
  for (const auto& nic : machine["nics"]) {
    console.Print("  NIC " + nic["name"].get<std::string>() + ": near NUMA node " + nic["numa"].dump());
  }
  const auto& pin = machine["pin"];
  const std::string cores = pin["cpus"].empty() ? "any core" : "cores " + pin["cpus"].dump();
  console.Print("  threads that move bytes: " + cores + " (" + pin["why"].get<std::string>() + ")");
}

Result<nlohmann::json> NcclJson(const std::string& path) {
  TALLY_ASSIGN_OR_RETURN(const std::string text, ReadInput("--nccl", path, kMaxTopologyBytes));
  const auto nics = ParseNcclTopology(text);
  if (!nics.ok()) return nics.status().WithContext("--nccl " + path);
  nlohmann::json list = nlohmann::json::array();
  for (const NcclNic& nic : *nics) {
    list.push_back({{"name", nic.name}, {"numa", nic.numa}, {"bytes_per_s", nic.bytes_per_s}});
  }
  return list;
}

// `pin`: topology.pin.
Result<nlohmann::json> Look(const TopologyOptions& options, const std::string& pin,
                            const std::vector<Placed>& members) {
  nlohmann::json result = nlohmann::json::object();
  if (!members.empty()) {
    const Order order = OrderPositions(members);
    Order launched(order.size());
    std::iota(launched.begin(), launched.end(), 0u);
    nlohmann::json list = nlohmann::json::array();
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      list.push_back({{"rank", rank}, {"node", members[rank].node}, {"switch", members[rank].switch_path}});
    }
    for (std::uint32_t position = 0; position < order.size(); ++position) list[order[position]]["position"] = position;
    result["members"] = std::move(list);
    result["order"] = order;
    result["slow_edges"] = {{"by_rank", EdgesJson(CountEdges(members, launched))},
                            {"by_positions", EdgesJson(CountEdges(members, order))}};
  }
  if (!options.matrix.empty()) {
    TALLY_ASSIGN_OR_RETURN(result["tour"], Tour(options.matrix));
  }
  if (!options.nccl.empty()) {
    TALLY_ASSIGN_OR_RETURN(result["nccl_nics"], NcclJson(options.nccl));
  }
  TALLY_ASSIGN_OR_RETURN(const ThisMachine machine, LookAround());
  result["machine"] = MachineJson(machine);
  result["machine"]["pin"] = PinJson(pin);
  return result;
}

// On all ranks; the first one writes.
int Measure(const TopologyOptions& options, const LoadedConfig& config, Console& console) {
  const bool writes = config.config.worker.rank == 0;
  if (writes) {
    if (const Status output = CheckOutput("--out", options.out); !output.ok()) return console.Fail(output);
  }
  const Result<BandwidthMatrix> matrix =
      MeasureBandwidths(config, {.progress = [&](const std::string& text) { if (writes) console.Progress(text); }});
  if (writes) console.EndProgress();
  if (!matrix.ok()) return console.Fail(matrix.status());
  if (!writes) return 0;
  const std::string head = "# bytes per second of one connection from the row's host to each, in the rows' order\n";
  if (const Status written = WriteOutput("--out", options.out, head + PrintBandwidthMatrix(*matrix)); !written.ok()) {
    return console.Fail(written);
  }
  const Result<nlohmann::json> tour = Tour(options.out);
  if (!tour.ok()) return console.Fail(tour.status());
  ShowTour(*tour, console);
  return 0;
}

int RunTopology(const TopologyOptions& options, CommandContext& context) {
  Console& console = context.console;
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  const Result<LoadedConfig> config = options.config.Load(context.environment);
  if (!config.ok()) return console.Fail(config.status());
  if (options.measure) return Measure(options, *config, console);
  const Result<std::vector<Placed>> members = Members(options, context);
  if (!members.ok()) return console.Fail(members.status());
  const Result<nlohmann::json> result = Look(options, config->config.topology.pin, *members);
  if (!result.ok()) return console.Fail(result.status());
  if (!options.json.to_stdout()) {
    if (!members->empty()) ShowMembers(*members, *result, console);
    if (result->contains("tour")) ShowTour((*result)["tour"], console);
    if (result->contains("nccl_nics")) {
      for (const auto& nic : (*result)["nccl_nics"]) {
        console.Print("NCCL names NIC " + nic["name"].get<std::string>() + " near NUMA node " +
                      nic["numa"].get<std::string>() + ", " + Fixed(nic["bytes_per_s"].get<double>() / 1e9, 1) + " GB/s");
      }
    }
    ShowMachine((*result)["machine"], console);
  }
  if (options.json.wanted()) {
    if (const Status status = options.json.Write(*result); !status.ok()) return console.Fail(status);
  }
  return 0;
}

}  // namespace

Action AddTopologyCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<TopologyOptions>();
  auto* members = app.add_option("--members", options->members,
                                 R"(File: {"members": [{"rank": 0, "node": "a", "switch": "spine1/leaf3"}, ...]})");
  auto* hosts = app.add_option("--hosts", options->hosts, "Hosts as SLURM lists them: node[01-04],x; default: SLURM's");
  hosts->excludes(members);
  app.add_option("--tasks", options->tasks, "Ranks on each of --hosts: 4, or 2(x3),1")
      ->needs(hosts)
      ->capture_default_str();
  app.add_flag("--cyclic", options->cyclic, "Ranks are dealt around --hosts, not host by host")->needs(hosts);
  app.add_option("--switches", options->switches, "SLURM's topology.conf or topology.yaml, for --hosts")
      ->excludes(members);
  app.add_option("--matrix", options->matrix,
                 "File of n rows of n measured bandwidths: the ring whose slowest edge is the fastest");
  auto* out = app.add_option("--out", options->out, "Where --measure writes")->type_name("FILE");
  app.add_flag("--measure", options->measure,
               "Under a launcher, one rank a node: measure what each two nodes carry to each other, over the "
               "address that leads to the coordinator or that network.interfaces names, write it to --out")
      ->needs(out);
  app.add_option("--nccl", options->nccl, "Topology file of NCCL (NCCL_TOPO_DUMP_FILE): its NICs");
  AddConfigOptions(app, &options->config);
  AddJsonOption(app, &options->json);
  app.footer(
      "The better order puts neighbours on one node, then below one switch. A job takes it by itself, in whatever order\n"
      "ranks are started, if each says where it is: SLURM's variables, topology.switch or topology.file. The order of\n"
      "--matrix is shown; a job takes it with topology.matrix = FILE.\n\n"
      "Examples:\n"
      "  tally topology\n"
      "  tally topology --hosts node[1-4] --tasks 2 --cyclic --switches topology.conf\n"
      "  tally topology --matrix bandwidth.txt --json -\n"
      "  srun --ntasks-per-node=1 tally topology --measure --out bandwidth.txt --insecure");
  return [options, &context] { return RunTopology(*options, context); };
}

}  // namespace tally::cli
