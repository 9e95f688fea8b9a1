// tally plan: for a job's configuration and NICs what every way of summing would take, the shares with which all NICs
// finish together, the load of each, and what mode auto takes.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "common/human.h"
#include "common/transport/wire_speed.h"
#include "compress/codec.h"
#include "worker/cli/model_question.h"
#include "worker/cli/options.h"
#include "worker/cli/plan.h"
#include "worker/cli/probe_file.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

constexpr std::uint32_t kMaxMembers = 4096;

struct PlanOptions {
  std::optional<std::uint32_t> workers, servers;
  std::string bytes = "100MB";
  std::string rate, alpha, probe;
  std::vector<std::string> nics;
  std::uint32_t workers_per_node = 1;
  std::string ps_placement = "separate";
  bool one_machine = false;
  ConfigOptions config;
  JsonOption json;
};

Result<double> PositiveRate(const char* option, const std::string& text) {
  auto rate = ParseByteRate(text);
  if (!rate.ok()) return rate.status().WithContext(option);
  if (!(*rate > 0)) return InvalidArgument(std::string(option) + " " + text + ": expected more than 0");
  return rate;
}

// Nodes first, then the servers' NICs, all at `usual` where --nics says nothing.
Result<Placement> Place(const PlanOptions& options, std::uint32_t workers, std::uint32_t servers, double usual) {
  const std::uint32_t nodes = (workers + options.workers_per_node - 1) / options.workers_per_node;
  const bool colocated = options.ps_placement == "colocated";
  Placement placement;
  placement.nic_bytes_per_s.assign(nodes + (colocated ? 0 : servers), usual);
  for (std::uint32_t i = 0; i < workers; ++i) placement.worker_nics.push_back(i / options.workers_per_node);
  for (std::uint32_t i = 0; i < servers; ++i) placement.server_nics.push_back(colocated ? i % nodes : nodes + i);
  const std::size_t given = options.nics.size();
  if (given != 0 && given != nodes && given != placement.nic_bytes_per_s.size()) {
    return InvalidArgument("--nics: expected " + std::to_string(nodes) + " rates, one for each " +
                           (options.workers_per_node > 1 ? "node" : "worker") +
                           (colocated || servers == 0
                                ? ""
                                : ", or " + std::to_string(placement.nic_bytes_per_s.size()) + " with the servers'") +
                           ", got " + std::to_string(given));
  }
  for (std::size_t i = 0; i < given; ++i) {
    TALLY_ASSIGN_OR_RETURN(placement.nic_bytes_per_s[i], PositiveRate("--nics", options.nics[i]));
  }
  return placement;
}

// All that auto weighs.
bool KnowsCandidates(const std::vector<CodecCost>& costs) {
  return std::ranges::all_of(std::initializer_list<std::string_view>{"none", "fp16", "bf16", "int8"}, [&](auto name) {
    return std::ranges::find(costs, name, &CodecCost::codec) != costs.end();
  });
}

Result<PlanQuestion> Parse(const PlanOptions& options, const Config& config, Console& console) {
  PlanQuestion question;
  question.compression = config.compression;
  question.schedule = config.aggregation.schedule;
  question.servers_between = config.aggregation.between == Mode::kPs;
  question.local = config.aggregation.local != LocalStages::kOff;
  const std::uint32_t workers = options.workers.value_or(config.job.workers > 0 ? config.job.workers : 4);
  const std::uint32_t servers =
      options.servers.value_or(static_cast<std::uint32_t>(config.servers.addresses.size()));
  if (workers == 0) return InvalidArgument("--workers: at least 1");
  if (workers > kMaxMembers || servers > kMaxMembers - workers) {
    return InvalidArgument("--workers, --servers: a job has at most " + std::to_string(kMaxMembers) + " members");
  }
  TALLY_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseBytes(options.bytes));
  question.elements = bytes / sizeof(float);
  double rate = NicRateBits(config) > 0 ? NicRateBits(config) / 8 : kAssumedNicBytesPerS;
  if (!options.probe.empty()) {
    TALLY_ASSIGN_OR_RETURN(Probe probe, ReadProbe(options.probe));
    rate = probe.nic_bytes_per_s();
    question.alpha_s = probe.alpha_s();
    question.costs = std::move(probe.codecs);
    if (probe.link("tcp").cpu.byte_s > 0) question.frames = probe.link("tcp").cpu;
    question.cores = probe.cores;
    question.one_machine = options.one_machine;
  }
  if (!options.rate.empty()) {
    TALLY_ASSIGN_OR_RETURN(rate, PositiveRate("--rate", options.rate));
  }
  if (!options.alpha.empty()) {
    const Result<Nanos> alpha = ParseDuration(options.alpha);
    if (!alpha.ok()) return alpha.status().WithContext("--alpha");
    question.alpha_s = std::chrono::duration<double>(*alpha).count();
  }
  TALLY_ASSIGN_OR_RETURN(question.placement, Place(options, workers, servers, rate));
  if (config.compression.codec == kCodecAuto && !KnowsCandidates(question.costs)) {
    console.Progress("measuring codecs …");
    question.costs = MeasureCodecCosts(config.compression, SteadyClock());
    console.EndProgress();
  }
  return question;
}

std::string OwnerName(const OwnerRef& owner) {
  return std::string(owner.role == Role::kServer ? "server " : "worker ") + std::to_string(owner.index);
}

std::string BusiestNic(const Way& way, const Placement& placement) {
  const NicLoad& load = way.table.loads[way.table.busiest_nic];
  if (std::max(load.sent_bytes, load.received_bytes) == 0) return "none";
  return NicName(placement, way.table.busiest_nic) +
         (load.received_bytes > load.sent_bytes ? ", receiving" : ", sending");
}

nlohmann::json AsJson(const Plan& plan, const PlanQuestion& question, const std::string& reason) {
  nlohmann::json rows = nlohmann::json::array();
  for (const PlanRow& row : plan.rows) {
    nlohmann::json shares = nlohmann::json::object();
    for (const Share& share : row.way.table.shares) shares[OwnerName(share.owner)] = share.share;
    rows.push_back({{"mode", row.way.name},
                    {"predicted_s", row.way.seconds},
                    {"busiest_nic", BusiestNic(row.way, question.placement)},
                    {"codec", row.codec},
                    {"shares", shares}});
  }
  return {{"bound_s", plan.bound_s}, {"chosen", plan.rows[plan.chosen].way.name}, {"reason", reason}, {"rows", rows}};
}

// "servers 30 % each; workers 0 to 2 10 %, …": neighbours with the same share are told together.
std::string ShowShares(const std::vector<Share>& shares) {
  std::string text;
  for (std::size_t i = 0; i < shares.size();) {
    std::size_t end = i + 1;
    while (end < shares.size() && shares[end].owner.role == shares[i].owner.role &&
           shares[end].owner.index == shares[end - 1].owner.index + 1 &&
           std::abs(shares[end].share - shares[i].share) < 1e-6) {
      ++end;
    }
    std::string owner = OwnerName(shares[i].owner);
    if (end - i > 1) owner = owner.insert(6, "s") + " to " + std::to_string(shares[end - 1].owner.index);
    text += (text.empty() ? "" : ", ") + owner + " " + Fixed(100 * shares[i].share, 1) + " %";
    i = end;
  }
  return text.empty() ? "-" : text;
}

void PrintPlan(const Plan& plan, const PlanQuestion& question, Console& console) {
  const auto right = Table::Align::kRight;
  const Placement& placement = question.placement;
  Table rows({{"mode"}, {"predicted", right}, {"of the bound", right}, {"busiest NIC"}, {"codec"}, {"shares"}});
  for (const PlanRow& row : plan.rows) {
    rows.AddRow({std::string(row.way.name), HumanSeconds(row.way.seconds),
                 plan.bound_s > 0 ? Fixed(row.way.seconds / plan.bound_s, 2) + " x" : "-", BusiestNic(row.way, placement),
                 row.codec, ShowShares(row.way.table.shares)});
  }
  console.Print(rows.Text());
  const Way& chosen = plan.rows[plan.chosen].way;
  console.Print("load under " + std::string(chosen.name) + ", each direction a time:");
  Table loads({{"NIC"}, {"GB/s", right}, {"sends", right}, {"receives", right}, {"busy", right}});
  std::map<std::string, std::pair<std::vector<std::string>, std::uint32_t>> alike;  // lines but for the name
  std::vector<std::string> order;
  for (std::uint32_t nic = 0; nic < chosen.table.loads.size(); ++nic) {
    const NicLoad& load = chosen.table.loads[nic];
    const double rate = placement.nic_bytes_per_s[nic];
    std::vector<std::string> cells = {NicName(placement, nic), Fixed(rate / 1e9, 3), HumanBytes(load.sent_bytes),
                                      HumanBytes(load.received_bytes), HumanSeconds(load.seconds(rate))};
    std::string key = (placement.worker_nics.size() > nic ? "w" : "s");
    for (std::size_t i = 1; i < cells.size(); ++i) key += "|" + cells[i];
    const auto [found, added] = alike.try_emplace(key, std::move(cells), 0U);
    if (added) order.push_back(key);
    ++found->second.second;
  }
  for (const std::string& key : order) {
    auto& [cells, count] = alike.at(key);
    if (count > 1) cells[0] += " and " + std::to_string(count - 1) + " more alike";
    loads.AddRow(cells);
  }
  std::string text = loads.Text();
  text.pop_back();
  console.Print(text);
}

int RunPlan(const PlanOptions& options, CommandContext& context) {
  Console& console = context.console;
  const Result<LoadedConfig> loaded = options.config.Load(context.environment);
  if (!loaded.ok()) return console.Fail(loaded.status());
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  const Result<PlanQuestion> question = Parse(options, loaded->config, console);
  if (!question.ok()) return console.Fail(question.status());
  const Result<Plan> plan = MakePlan(*question);
  if (!plan.ok()) return console.Fail(plan.status());
  const std::string reason = "least predicted time of what mode auto chooses among: " + plan->reason;
  if (!options.json.to_stdout()) {
    console.Note("one aggregation of " + HumanBytes(static_cast<double>(question->elements * sizeof(float))) + " per worker, " +
                 std::to_string(question->placement.worker_nics.size()) + " workers, " +
                 std::to_string(question->placement.server_nics.size()) + " servers, " +
                 HumanSeconds(question->alpha_s) + " per round");
    PrintPlan(*plan, *question, console);
    console.Print("\nmode auto takes " + std::string(plan->rows[plan->chosen].way.name) + ": " + reason + "; the bound is " +
                  HumanSeconds(plan->bound_s));
  }
  if (options.json.wanted()) {
    const Status written = options.json.Write(AsJson(*plan, *question, reason));
    if (!written.ok()) return console.Fail(written);
  }
  return 0;
}

}  // namespace

Action AddPlanCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<PlanOptions>();
  app.add_option("--workers", options->workers, "Number of workers; default: job.workers, else 4");
  app.add_option("--servers", options->servers, "Number of servers; default: those of servers.addresses");
  app.add_option("--bytes", options->bytes, "Size of one worker's gradient")->capture_default_str();
  app.add_option("--rate", options->rate,
                 "Speed of a NIC in each direction: 100gbit, 25GBps; default: --probe's, topology.nic_rate, link.rate, else 10gbit");
  app.add_option("--nics", options->nics, "Speeds of the workers' NICs (nodes'), and after them the servers'")
      ->delimiter(',')->type_name("RATE,RATE,…");
  app.add_option("--workers-per-node", options->workers_per_node, "Workers that share a NIC")
      ->capture_default_str()->check(CLI::Range(1U, kMaxMembers));
  app.add_option("--ps-placement", options->ps_placement, "separate: servers have NICs of their own; colocated: the workers'")
      ->capture_default_str()->check(CLI::IsMember({"separate", "colocated"}));
  app.add_option("--alpha", options->alpha, "Cost of one round of messages; default: --probe's, else 50us");
  app.add_option("--probe", options->probe, "What tally probe --json wrote: rate, alpha, what codecs take")
      ->type_name("FILE");
  app.add_flag("--one-machine", options->one_machine,
               "All members share the cores of the machine that --probe measured: loopback, network namespaces")
      ->needs("--probe");
  AddConfigOptions(app, &options->config);
  AddJsonOption(app, &options->json);
  app.footer(
      "Examples:\n"
      "  tally plan --workers 8 --servers 2 --rate 10gbit --bytes 25MiB\n"
      "  tally plan --workers 4 --servers 2 --nics 1gbit,1gbit,300mbit,1gbit,1gbit,1gbit\n"
      "  tally plan --config job.toml --probe probe.json --set compression.codec=auto --json -\n"
      "Predicted: the bytes of the busiest NIC under the best shares or, with --probe, the CPU time of frames, bytes and\n"
      "codecs if that is longer, and rounds. Schedules carry fp32 sums unless the codec is linear. The bound: the best\n"
      "shares' bytes alone, a node's workers summed for nothing.\n"
      "Hierarchical counts what stays inside a node as free on its NIC; mode auto takes it where workers share nodes.");
  return [options, &context] { return RunPlan(*options, context); };
}

}  // namespace tally::cli
