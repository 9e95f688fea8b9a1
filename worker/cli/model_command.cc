// tally model: closed-form times of one aggregation on a cluster described by four numbers, or simulated ones on a cluster
// described by a file; no network needed.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/human.h"
#include "common/schedule/cost_model.h"
#include "common/schedule/schedule.h"
#include "worker/cli/cluster_model.h"
#include "worker/cli/model_question.h"
#include "worker/cli/options.h"
#include "worker/cli/probe_file.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

constexpr std::uint32_t kMaxMembers = 1u << 20;
constexpr const char* kRate = "100gbit";
constexpr const char* kAlpha = "10us";

struct ModelOptions {
  std::vector<std::uint32_t> workers = {8, 32, 128};
  std::vector<std::uint32_t> servers;  // empty = as many as workers
  std::string bytes = "100MB";
  std::uint64_t parameters = 0;  // instead of bytes, 4 each
  std::string rate, alpha;  // empty: --probe's, else kRate, kAlpha
  std::string codec = "none";
  std::string probe;        // file of tally probe
  std::string cluster;  // a file that is asked instead
  JsonOption json;
};

struct Question {
  double bytes = 0, bytes_per_s = 0, alpha_s = 0;
  std::map<std::uint32_t, Ratios> ratios;  // by number of workers
  bool linear = false;  // a ring carries the encoded vectors
};

Result<Question> Parse(const ModelOptions& options) {
  Question question;
  if (options.parameters > 0) {
    question.bytes = 4.0 * static_cast<double>(options.parameters);
  } else {
    TALLY_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseBytes(options.bytes));
    question.bytes = static_cast<double>(bytes);
  }
  auto rate = ParseByteRate(options.rate.empty() ? kRate : options.rate);
  if (!rate.ok()) return rate.status().WithContext("--rate");
  if (!(*rate > 0)) return InvalidArgument("--rate " + options.rate + ": expected more than 0");
  question.bytes_per_s = *rate;
  TALLY_ASSIGN_OR_RETURN(const Nanos alpha, ParseDuration(options.alpha.empty() ? kAlpha : options.alpha));
  question.alpha_s = std::chrono::duration<double>(alpha).count();
  if (!options.probe.empty()) {
    TALLY_ASSIGN_OR_RETURN(const Probe probe, ReadProbe(options.probe));
    if (options.rate.empty()) question.bytes_per_s = probe.nic_bytes_per_s();
    if (options.alpha.empty()) question.alpha_s = probe.alpha_s();
  }
  for (const auto& list : {options.workers, options.servers}) {
    for (const std::uint32_t count : list) {
      if (count > kMaxMembers) return InvalidArgument(std::to_string(count) + " is more than 2^20 members");
    }
  }
  for (const std::uint32_t count : options.workers) {
    if (count == 0) return InvalidArgument("--workers: at least 1");
    TALLY_ASSIGN_OR_RETURN(question.ratios[count], CodecRatios(options.codec, count, &question.linear));
  }
  return question;
}

std::string SecondsOf(const ScheduleEntry& schedule) { return std::string(schedule.name) + "_s"; }

nlohmann::json Row(const Question& question, std::uint32_t workers, std::uint32_t servers) {
  const ClusterModel cluster{question.bytes_per_s, question.alpha_s, workers, servers};
  const Ratios& ratios = question.ratios.at(workers);
  const double push = question.bytes * ratios.push;
  const double summed = question.linear ? push : question.bytes;
  const ModelTimes times = PredictTimes(cluster, push, question.bytes * ratios.reply);
  const auto ps = [&](double seconds) { return servers > 0 ? nlohmann::json(seconds) : nlohmann::json(nullptr); };
  nlohmann::json row = {{"workers", workers},
                        {"servers", servers},
                        {"ps_central_s", ps(times.ps_central_s)},
                        {"ps_sharded_s", ps(times.ps_sharded_s)},
                        {"ps_colocated_s", ps(times.ps_colocated_s)},
                        {"direct_s", times.direct_s},
                        {"hybrid_s", times.hybrid_s}};
  for (const ScheduleEntry& schedule : Schedules()) {
    row[SecondsOf(schedule)] = schedule.seconds(summed, question.bytes_per_s, question.alpha_s, workers);
  }
  const double ring = row["ring_s"].get<double>();
  row["ps_over_ring"] = ring > 0 ? ps(times.ps_sharded_s / ring) : nlohmann::json(nullptr);
  return row;
}

void PrintTable(const nlohmann::json& rows, Console& console) {
  const auto right = Table::Align::kRight;
  std::vector<Table::Column> columns = {{"workers", right}, {"servers", right}, {"PS, 1 server", right},
                                        {"PS, sharded", right}, {"PS, co-located", right}};
  for (const ScheduleEntry& schedule : Schedules()) columns.push_back({std::string(schedule.name), right});
  for (const char* title : {"direct", "hybrid", "PS/ring"}) columns.push_back({title, right});
  Table table(std::move(columns));
  const auto time = [](const nlohmann::json& seconds) {
    return seconds.is_null() ? std::string("-") : HumanSeconds(seconds.get<double>());
  };
  for (const auto& row : rows) {
    std::vector<std::string> cells = {row["workers"].dump(), row["servers"].dump(), time(row["ps_central_s"]),
                                      time(row["ps_sharded_s"]), time(row["ps_colocated_s"])};
    for (const ScheduleEntry& schedule : Schedules()) cells.push_back(time(row[SecondsOf(schedule)]));
    cells.insert(cells.end(), {time(row["direct_s"]), time(row["hybrid_s"]),
                               row["ps_over_ring"].is_null() ? "-" : Fixed(row["ps_over_ring"].get<double>(), 2)});
    table.AddRow(std::move(cells));
  }
  std::string text = table.Text();
  text.pop_back();
  console.Print(text);
}

int RunModel(const ModelOptions& options, CommandContext& context) {
  Console& console = context.console;
  if (!options.cluster.empty()) return RunClusterModel(options.cluster, options.json, console);
  const Result<Question> question = Parse(options);
  if (!question.ok()) return console.Fail(question.status());
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  nlohmann::json rows = nlohmann::json::array();
  for (const std::uint32_t workers : options.workers) {
    const std::vector<std::uint32_t> servers = options.servers.empty() ? std::vector{workers} : options.servers;
    for (const std::uint32_t count : servers) rows.push_back(Row(*question, workers, count));
  }
  if (!options.json.to_stdout()) {
    const Ratios& ratios = question->ratios.at(options.workers.front());
    double most_reply = 0;
    for (const auto& [workers, of] : question->ratios) most_reply = std::max(most_reply, of.reply);
    console.Note("one aggregation of " + HumanBytes(question->bytes) + " per worker at " +
                 Fixed(question->bytes_per_s / 1e9, 3) + " GB/s per NIC and direction, " +
                 HumanSeconds(question->alpha_s) + " per round" +
                 (ratios.push < 1 ? "; PS, direct and hybrid send " + Fixed(100 * ratios.push, 2) + " % of it" +
                                            (most_reply == ratios.push ? "" : " and answer up to " + Fixed(100 * most_reply, 2) + " %") +
                                            (question->linear ? ", and so do schedules" : ", schedules carry fp32 sums")
                                      : ""));
    PrintTable(rows, console);
  }
  if (options.json.wanted()) {
    if (const Status status = options.json.Write({{"rows", rows}}); !status.ok()) return console.Fail(status);
  }
  return 0;
}

}  // namespace

Action AddModelCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ModelOptions>();
  app.add_option("--workers", options->workers, "Numbers of workers")->delimiter(',')->capture_default_str();
  app.add_option("--servers", options->servers, "Numbers of servers, 0 for none; default: as many as workers")
      ->delimiter(',');
  auto* cluster = app.add_option("--cluster", options->cluster,
                                 "Simulate the cluster of this file (as deploy/cluster.toml) instead of the formulas");
  auto* bytes = app.add_option("--bytes", options->bytes, "Size of one worker's gradient")->capture_default_str();
  app.add_option("--parameters", options->parameters, "Its number of fp32 parameters, instead of --bytes")
      ->excludes(bytes);
  app.add_option("--rate", options->rate,
                 std::string("Speed of a NIC in each direction: 100gbit, 25GBps; default: --probe's, else ") + kRate);
  app.add_option("--alpha", options->alpha,
                 std::string("Cost of one round of messages, whatever its size; default: --probe's, else ") + kAlpha);
  app.add_option("--probe", options->probe, "What tally probe --json wrote")->type_name("FILE");
  app.add_option("--codec", options->codec, "Codec's name, or encoded size as a fraction of fp32")
      ->capture_default_str();
  for (CLI::Option* option : app.get_options()) {
    if (option != cluster && option != app.get_help_ptr()) cluster->excludes(option);
  }
  AddJsonOption(app, &options->json);
  app.footer(
      "Formulas (M bytes per worker, n workers, k servers, B the NIC's speed, a = alpha; full duplex):\n"
      "  PS, 1 server    n M/B + 2a\n"
      "  PS, sharded     max(1, n/k) M/B + 2a           servers on NICs of their own\n"
      "  PS, co-located  (1 + (n-2)/k) M/B + 2a         servers on k of the workers' NICs, k <= n\n"
      "  ring            2(n-1)/n M/B + 2(n-1)a\n"
      "  direct          2(n-1)/n M/B + 2a\n"
      "  halving_doubling  2(n-1)/n M/B + 2L a          L = ceil(log2 n)\n"
      "  tree            2 M/B + 2 max(L, 2L-3) a       double binary, pipelined\n"
      "  hybrid          2n(n-1)/(n^2+kn-2k) M/B + 2a   never below M/B; k = 0: ring's bound, k = n: M/B\n"
      "Ring, tree and halving_doubling carry fp32 sums: only a linear codec (none, randomk) shrinks them.\n\n"
      "Examples:\n"
      "  tally model\n"
      "  tally model --workers 16 --servers 1,4,16 --parameters 25000000 --rate 10gbit\n"
      "  tally model --codec int8 --rate 25GBps --alpha 5us --json -\n"
      "  tally probe --json probe.json && tally model --probe probe.json\n"
      "  tally model --cluster deploy/cluster.toml");
  return [options, &context] { return RunModel(*options, context); };
}

}  // namespace tally::cli
