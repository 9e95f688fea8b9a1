// tally bench: codec (bench_codec.h), and allreduce, which times standalone all-reduces and checks every element. Alone
// it starts its own local job; under a launcher (RANK is set) it is one rank of one.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/config/config.h"
#include "worker/cli/bench_codec.h"
#include "worker/cli/command.h"
#include "worker/cli/local_job.h"
#include "worker/cli/options.h"
#include "worker/cli/table.h"
#include "worker/client.h"

namespace tally::cli {
namespace {

struct BenchOptions {
  ConfigOptions config;
  JsonOption json;
  std::uint32_t workers = 4, servers = 0;
  std::string mode;
  std::string sizes = "1KiB,64KiB,1MiB,25MiB";
  std::uint32_t iterations = 20, warmup = 3;
  std::string timeout = "300s";
  bool arena = false;
};

// Position- and rank-dependent integers whose sums are exact in fp32 for up to 64 ranks: (rank + 1) * ((7j mod 251) - 125).
class Pattern {
 public:
  Pattern() {
    for (std::size_t j = 0; j < kPeriod; ++j) values_[j] = static_cast<float>(static_cast<int>(7 * j % kPeriod) - 125);
  }
  void Fill(std::span<float> data, std::size_t shift, float factor) const {
    for (std::size_t j = 0, p = shift % kPeriod; j < data.size(); ++j, p = p + 1 == kPeriod ? 0 : p + 1) {
      data[j] = factor * values_[p];
    }
  }
  std::uint64_t Wrong(std::span<const float> data, std::size_t shift, float factor) const {
    std::uint64_t wrong = 0;
    for (std::size_t j = 0, p = shift % kPeriod; j < data.size(); ++j, p = p + 1 == kPeriod ? 0 : p + 1) {
      wrong += data[j] != factor * values_[p] ? 1U : 0U;
    }
    return wrong;
  }

 private:
  static constexpr std::size_t kPeriod = 251;
  std::array<float, kPeriod> values_;
};

// Busy seconds of the whole machine since boot (user, nice, system, irq, softirq), in ticks of 10 ms.
double MachineBusySeconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, soft = 0;
  stat >> cpu >> user >> nice >> system >> idle >> wait >> irq >> soft;
  return (user + nice + system + irq + soft) / 100.0;
}

struct Measured {
  std::vector<double> slowest_us;  // per iteration
  double wrong = 0;
  double cpu_s_per_gb = 0;
};

// One size on one rank. Every rank gets the same result: times and counts travel by all-reduce themselves.
Result<Measured> Measure(Client& client, std::size_t count, const BenchOptions& options) {
  const std::uint32_t ranks = client.workers(), rank = client.rank().value;
  std::vector<float> own(options.arena ? 0 : count), times(std::size_t{options.iterations} * ranks, 0.0F);
  Buffer* buffer = nullptr;
  std::span<float> in(own);
  std::span<const float> out(own);
  if (options.arena) {
    TALLY_ASSIGN_OR_RETURN(buffer, client.MakeBuffer(count));
    in = buffer->input();
    out = buffer->output();
  }
  const Pattern pattern;
  std::uint64_t wrong = 0;
  double busy = 0;
  for (std::uint32_t i = 0; i < options.warmup + options.iterations; ++i) {
    pattern.Fill(in, i, static_cast<float>(rank + 1));
    TALLY_RETURN_IF_ERROR(client.Barrier());
    const double busy_before = MachineBusySeconds();
    const auto begin = std::chrono::steady_clock::now();
    TALLY_RETURN_IF_ERROR(buffer != nullptr ? client.AllReduce(*buffer) : client.AllReduce(own));
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= options.warmup) {
      busy += MachineBusySeconds() - busy_before;
      times[std::size_t{i - options.warmup} * ranks + rank] = static_cast<float>(took.count());
    }
    // Ranks that are done do not check while others are still being timed on the same cores.
    TALLY_RETURN_IF_ERROR(client.Barrier());
    wrong += pattern.Wrong(out, i, static_cast<float>(ranks * (ranks + 1) / 2));
  }
  TALLY_RETURN_IF_ERROR(client.AllReduce(times));
  std::vector<float> totals = {static_cast<float>(wrong)};
  TALLY_RETURN_IF_ERROR(client.AllReduce(totals));
  Measured measured;
  for (std::uint32_t i = 0; i < options.iterations; ++i) {
    const auto row = times.begin() + std::ptrdiff_t{i} * ranks;
    measured.slowest_us.push_back(static_cast<double>(*std::max_element(row, row + ranks)));
  }
  measured.wrong = static_cast<double>(totals[0]);
  const double gigabytes = static_cast<double>(options.iterations) * static_cast<double>(count) * 4 / 1e9;
  measured.cpu_s_per_gb = gigabytes > 0 ? busy / gigabytes : 0;
  return measured;
}

Result<std::vector<std::uint64_t>> ParseSizes(const std::string& text) {
  std::vector<std::uint64_t> sizes;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    TALLY_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseBytes(part));
    if (bytes % 4 != 0) return InvalidArgument("--sizes: " + part + " is not a whole number of fp32 elements");
    sizes.push_back(bytes);
  }
  if (sizes.empty()) return InvalidArgument("--sizes: expected sizes such as 1KiB,25MiB");
  return sizes;
}

nlohmann::json Row(const Client& client, const Config& config, std::uint64_t bytes, const BenchOptions& options,
                   Measured measured) {
  std::sort(measured.slowest_us.begin(), measured.slowest_us.end());
  const double median = measured.slowest_us[measured.slowest_us.size() / 2];
  const double n = client.workers();
  const double algbw = median > 0 ? static_cast<double>(bytes) / 1e3 / median : 0;
  std::string description = client.Describe();
  constexpr std::string_view kStages = "node stages around ";
  const bool node_stages = description.starts_with(kStages);
  if (node_stages) description.erase(0, kStages.size());
  const bool schedule = description.starts_with("schedule");
  nlohmann::json row;
  row["mode"] = ModeName(config.aggregation.mode);
  row["exchange"] = schedule ? "schedule" : "owners";
  row["schedule"] = schedule ? nlohmann::json(description.substr(9, description.find(' ', 9) - 9)) : nlohmann::json(nullptr);
  constexpr std::string_view kOver = " over ";
  row["transport"] = description.substr(std::min(description.rfind(kOver), description.size() - kOver.size()) + kOver.size());
  row["codec"] = "none";
  row["node_stages"] = node_stages;
  row["buffers"] = options.arena ? "arena" : "caller";
  row["workers"] = client.workers();
  row["servers"] = client.servers();
  row["bytes"] = bytes;
  row["count"] = bytes / 4;
  row["type"] = "float";
  row["iters"] = options.iterations;
  row["time_us"] = median;
  row["time_us_min"] = measured.slowest_us.front();
  row["time_us_max"] = measured.slowest_us.back();
  row["algbw_gbs"] = algbw;
  row["busbw_gbs"] = algbw * 2 * (n - 1) / n;
  row["wrong"] = measured.wrong;
  row["cpu_s_per_gb"] = measured.cpu_s_per_gb;
  return row;
}

void PrintTable(const nlohmann::json& rows, Console& console) {
  Table table({{"bytes", Table::Align::kRight}, {"count", Table::Align::kRight}, {"type"}, {"exchange"}, {"transport"},
               {"time us", Table::Align::kRight}, {"min", Table::Align::kRight}, {"max", Table::Align::kRight},
               {"algbw GB/s", Table::Align::kRight}, {"busbw GB/s", Table::Align::kRight},
               {"wrong", Table::Align::kRight}, {"cpu s/GB", Table::Align::kRight}});
  for (const auto& r : rows) {
    table.AddRow({std::to_string(r["bytes"].get<std::uint64_t>()), std::to_string(r["count"].get<std::uint64_t>()),
                  r["type"], r["exchange"], r["transport"], Fixed(r["time_us"], 1), Fixed(r["time_us_min"], 1),
                  Fixed(r["time_us_max"], 1), Fixed(r["algbw_gbs"], 3), Fixed(r["busbw_gbs"], 3),
                  Fixed(r["wrong"], 0), Fixed(r["cpu_s_per_gb"], 2)});
  }
  console.Print(table.Text());
}

int RunRank(const BenchOptions& options, CommandContext& context) {
  Console& console = context.console;
  ConfigOptions config_options = options.config;
  if (!options.mode.empty()) config_options.overrides.push_back("aggregation.mode=" + options.mode);
  const Result<LoadedConfig> config = config_options.Load(context.environment);
  if (!config.ok()) return console.Fail(config.status());
  const auto sizes = ParseSizes(options.sizes);
  if (!sizes.ok()) return console.Fail(sizes.status());
  if (config->config.worker.rank == 0) {
    if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  }
  auto client = Client::Join(*config);
  if (!client.ok()) return console.Fail(client.status());
  const bool speaks = (*client)->rank().value == 0;
  if (speaks) {
    console.Note((*client)->Describe() + ", " + std::to_string((*client)->workers()) + " workers" +
                 (config->config.link.rate_bits > 0
                      ? ", emulated NIC of " + Fixed(config->config.link.rate_bits / 1e9, 3) + " Gbit/s"
                      : ""));
  }
  nlohmann::json rows = nlohmann::json::array();
  double wrong = 0;
  for (const std::uint64_t bytes : *sizes) {
    if (speaks) console.Progress("all-reduce of " + HumanBytes(static_cast<double>(bytes)) + " …");
    auto measured = Measure(**client, bytes / 4, options);
    if (!measured.ok()) return console.Fail(measured.status());
    wrong += measured->wrong;
    rows.push_back(Row(**client, config->config, bytes, options, std::move(measured).value()));
  }
  console.EndProgress();
  if (const Status left = (*client)->Leave(); !left.ok()) return console.Fail(left);
  if (speaks) {
    if (!options.json.to_stdout()) PrintTable(rows, console);
    if (options.json.wanted()) {
      if (const Status status = options.json.Write({{"rows", rows}}); !status.ok()) return console.Fail(status);
    }
  }
  if (wrong == 0) return 0;
  console.Warn("WRONG RESULT: " + Fixed(wrong, 0) + " elements differ from the exact sum");
  return 6;
}

int RunJob(const BenchOptions& options, const std::vector<std::string>& arguments, CommandContext& context) {
  Console& console = context.console;
  if (const auto sizes = ParseSizes(options.sizes); !sizes.ok()) return console.Fail(sizes.status());
  const Result<Nanos> timeout = ParseDuration(options.timeout);
  if (!timeout.ok()) return console.Fail(timeout.status().WithContext("--timeout"));
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  LocalJobOptions job;
  job.workers = options.workers;
  job.servers = options.servers;
  job.server_program = context.program.substr(0, context.program.rfind('/') + 1) + "tally-server";
  job.worker_command = {context.program, "bench", "allreduce"};
  job.worker_command.insert(job.worker_command.end(), arguments.begin(), arguments.end());
  job.config_file = options.config.file;
  job.overrides = options.config.AllOverrides();
  if (!options.mode.empty()) job.overrides.push_back("aggregation.mode=" + options.mode);
  job.environment = context.environment;
  job.check_mode = true;
  LocalJob local(job);
  Status status = local.Start();
  if (status.ok()) status = local.Wait(*timeout);
  if (status.ok()) return 0;
  const int exit_code = console.Fail(status);
  if (const int signal = local.launcher().received_signal(); signal != 0) return 128 + signal;
  // Workers and servers are ours: a code with which one exited means what it means here.
  const int first = local.launcher().first_failure();
  const int its = first < 0 ? 0 : local.launcher().process(static_cast<std::size_t>(first)).exit_code;
  return its != 0 ? its : exit_code;
}

}  // namespace

Action AddBenchCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App* allreduce = app.add_subcommand("allreduce", "Time standalone all-reduces and check every element");
  CLI::App* codec = app.add_subcommand("codec", "Time codecs on this machine's cores beside a plain copy");
  const Action bench_codec = AddBenchCodec(*codec, context);
  app.require_subcommand(1);
  AddConfigOptions(*allreduce, &options->config);
  AddJsonOption(*allreduce, &options->json);
  allreduce->add_option("-n,--workers", options->workers, "Workers to start")->capture_default_str()->check(CLI::Range(1, 64));
  allreduce->add_option("--servers", options->servers, "Servers to start; more than 0 makes mode ps the default")
      ->capture_default_str()->check(CLI::Range(0, 64));
  allreduce->add_option("--mode", options->mode, "ps, ring, hierarchical, hybrid or auto");
  allreduce->add_flag("--arena", options->arena, "From and to Tally's own buffers, which a node's processes share, instead "
                                                 "of the caller's");
  allreduce->add_option("--sizes", options->sizes, "Sizes of the buffer, e.g. 1KiB,25MiB")->capture_default_str();
  allreduce->add_option("--iters", options->iterations, "Timed iterations per size")->capture_default_str()->check(CLI::Range(1, 100000));
  allreduce->add_option("--warmup", options->warmup, "Untimed iterations first")->capture_default_str()->check(CLI::Range(0, 100000));
  allreduce->add_option("--timeout", options->timeout, "End the job after this time, with exit code 3")->capture_default_str();
  allreduce->footer(
      "Examples:\n"
      "  tally bench allreduce                                  ring of 4 workers on this machine\n"
      "  tally bench allreduce --servers 2 --sizes 25MiB        through 2 parameter servers\n"
      "  tally bench allreduce --mode hierarchical --arena      in memory that all processes of the machine share\n"
      "  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 tally bench allreduce --insecure\n"
      "                                                         one rank per host, under launcher variables\n"
      "Columns as nccl-tests: time of the slowest rank, median over iterations; busbw = algbw * 2(N-1)/N.");
  return [options, codec, bench_codec, &context] {
    if (codec->parsed()) return bench_codec();
    for (const char* variable : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
      if (context.environment.contains(variable)) return RunRank(*options, context);
    }
    std::vector<std::string> arguments = {"--sizes", options->sizes, "--iters", std::to_string(options->iterations),
                                          "--warmup", std::to_string(options->warmup)};
    if (options->arena) arguments.push_back("--arena");
    if (options->json.wanted()) arguments.insert(arguments.end(), {"--json", options->json.path});
    return RunJob(*options, arguments, context);
  };
}

}  // namespace tally::cli
