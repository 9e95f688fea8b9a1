// tally bench: codec (bench_codec.h), and allreduce, broadcast, allgather and reducescatter, which time standalone
// collectives and check every element. Alone each starts its own local job; under a launcher (RANK is set) it is one rank
// of one.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/config/config.h"
#include "worker/cli/bench_codec.h"
#include "worker/cli/bench_collective.h"
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
  std::string dtype = "fp32", op = "sum";
  bool arena = false;
  const char* command = "";
  BenchedKind kind;  // of these
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
Result<Measured> Measure(Client& client, BenchedCollective& collective, const BenchOptions& options) {
  const std::uint32_t ranks = client.workers(), rank = client.rank().value;
  std::vector<float> times(std::size_t{options.iterations} * ranks, 0.0F);
  std::uint64_t wrong = 0;
  double busy = 0;
  for (std::uint32_t i = 0; i < options.warmup + options.iterations; ++i) {
    collective.Fill(i);
    TALLY_RETURN_IF_ERROR(client.Barrier());
    const double busy_before = MachineBusySeconds();
    const auto begin = std::chrono::steady_clock::now();
    TALLY_RETURN_IF_ERROR(collective.Call());
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    if (i >= options.warmup) {
      busy += MachineBusySeconds() - busy_before;
      times[std::size_t{i - options.warmup} * ranks + rank] = static_cast<float>(took.count());
    }
    // Ranks that are done do not check while others are still being timed on the same cores.
    TALLY_RETURN_IF_ERROR(client.Barrier());
    wrong += collective.Wrong(i);
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
  const double gigabytes = static_cast<double>(options.iterations) * static_cast<double>(collective.bytes()) / 1e9;
  measured.cpu_s_per_gb = gigabytes > 0 ? busy / gigabytes : 0;
  return measured;
}

Result<std::vector<std::uint64_t>> ParseSizes(const std::string& text, DType dtype) {
  std::vector<std::uint64_t> sizes;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) {
    TALLY_ASSIGN_OR_RETURN(const std::uint64_t bytes, ParseBytes(part));
    if (bytes % DTypeBytes(dtype) != 0) {
      return InvalidArgument("--sizes: " + part + " is not a whole number of " + DTypeName(dtype) + " elements");
    }
    sizes.push_back(bytes);
  }
  if (sizes.empty()) return InvalidArgument("--sizes: expected sizes such as 1KiB,25MiB");
  return sizes;
}

// Type and operation by their names.
Status Resolve(BenchOptions* options) {
  TALLY_ASSIGN_OR_RETURN(options->kind.dtype, ParseDType(options->dtype));
  TALLY_ASSIGN_OR_RETURN(options->kind.op, ParseReduceOp(options->op));
  options->kind.arena = options->arena;
  const bool mean_or_sum = options->kind.op == ReduceOp::kSum || options->kind.op == ReduceOp::kMean;
  if (options->kind.reduces() && !Reducible(options->kind.dtype, options->kind.op)) {
    return InvalidArgument("--op " + options->op + ": not an operation of " + options->dtype + " numbers");
  }
  if (!options->arena || (options->kind.dtype == DType::kFloat32 && mean_or_sum)) return Status::Ok();
  return InvalidArgument("--arena: buffers are for sums and means of fp32 numbers");
}

nlohmann::json Row(const Client& client, const Config& config, const BenchedCollective& collective,
                   const BenchOptions& options, Measured measured) {
  const std::uint64_t bytes = collective.bytes();
  const BenchedKind& kind = options.kind;
  // Where gradients of this mode go; all others go straight between workers.
  const bool as_gradients = kind.kind == CollectiveKind::kAllReduce && kind.dtype == DType::kFloat32 &&
                            (kind.op == ReduceOp::kSum || kind.op == ReduceOp::kMean);
  std::sort(measured.slowest_us.begin(), measured.slowest_us.end());
  const double median = measured.slowest_us[measured.slowest_us.size() / 2];
  const double algbw = median > 0 ? static_cast<double>(bytes) / 1e3 / median : 0;
  std::string description = client.Describe();
  constexpr std::string_view kStages = "node stages around ";
  const bool node_stages = as_gradients && description.starts_with(kStages);
  if (node_stages) description.erase(0, kStages.size());
  const bool schedule = as_gradients && description.starts_with("schedule");
  nlohmann::json row;
  row["mode"] = ModeName(config.aggregation.mode);
  row["collective"] = options.command;
  row["op"] = kind.reduces() ? nlohmann::json(options.op) : nlohmann::json(nullptr);
  row["exchange"] = schedule || !as_gradients ? "schedule" : "owners";
  row["schedule"] = schedule ? nlohmann::json(description.substr(9, description.find(' ', 9) - 9)) : nlohmann::json(nullptr);
  constexpr std::string_view kOver = " over ";
  row["transport"] = description.substr(std::min(description.rfind(kOver), description.size() - kOver.size()) + kOver.size());
  // The description is of the way to servers then, where workers are reached otherwise.
  if (!as_gradients && client.servers() > 0) row["transport"] = nullptr;
  row["codec"] = "none";
  row["node_stages"] = node_stages;
  row["buffers"] = options.arena ? "arena" : "caller";
  row["workers"] = client.workers();
  row["servers"] = client.servers();
  row["bytes"] = bytes;
  row["count"] = collective.elements();
  row["type"] = NcclTypeName(kind.dtype);
  row["iters"] = options.iterations;
  row["time_us"] = median;
  row["time_us_min"] = measured.slowest_us.front();
  row["time_us_max"] = measured.slowest_us.back();
  row["algbw_gbs"] = algbw;
  row["busbw_gbs"] = algbw * kind.BusFactor(client.workers());
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
    const std::string transport = r["transport"].is_null() ? "-" : r["transport"].get<std::string>();
    table.AddRow({std::to_string(r["bytes"].get<std::uint64_t>()), std::to_string(r["count"].get<std::uint64_t>()),
                  r["type"], r["exchange"], transport, Fixed(r["time_us"], 1), Fixed(r["time_us_min"], 1),
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
  const auto sizes = ParseSizes(options.sizes, options.kind.dtype);
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
    if (speaks) console.Progress(std::string(options.command) + " of " + HumanBytes(static_cast<double>(bytes)) + " …");
    auto collective = BenchedCollective::Make(**client, options.kind, bytes);
    if (!collective.ok()) return console.Fail(collective.status());
    auto measured = Measure(**client, *collective, options);
    if (!measured.ok()) return console.Fail(measured.status());
    wrong += measured->wrong;
    rows.push_back(Row(**client, config->config, *collective, options, std::move(measured).value()));
  }
  console.EndProgress();
  const ClientStats stats = (*client)->stats();
  if (const Status left = (*client)->Leave(); !left.ok()) return console.Fail(left);
  if (speaks) {
    if (!options.json.to_stdout()) PrintTable(rows, console);
    if (options.json.wanted()) {
      if (const Status status = options.json.Write({{"rows", rows},
                                                       {"connections", stats.connections},
                                                       {"measured_bytes_per_s", stats.measured_bytes_per_s}});
          !status.ok()) return console.Fail(status);
    }
  }
  if (wrong == 0) return 0;
  console.Warn("WRONG RESULT: " + Fixed(wrong, 0) + " elements differ from the exact result");
  return 6;
}

int RunJob(const BenchOptions& options, const std::vector<std::string>& arguments, CommandContext& context) {
  Console& console = context.console;
  if (const auto sizes = ParseSizes(options.sizes, options.kind.dtype); !sizes.ok()) return console.Fail(sizes.status());
  const Result<Nanos> timeout = ParseDuration(options.timeout);
  if (!timeout.ok()) return console.Fail(timeout.status().WithContext("--timeout"));
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  LocalJobOptions job;
  job.workers = options.workers;
  job.servers = options.servers;
  job.server_program = context.program.substr(0, context.program.rfind('/') + 1) + "tally-server";
  job.worker_command = {context.program, "bench", options.command};
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

int Run(BenchOptions& options, CommandContext& context) {
  if (const Status resolved = Resolve(&options); !resolved.ok()) return context.console.Fail(resolved);
  for (const char* variable : {"RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (context.environment.contains(variable)) return RunRank(options, context);
  }
  std::vector<std::string> arguments = {"--sizes", options.sizes, "--iters", std::to_string(options.iterations),
                                        "--warmup", std::to_string(options.warmup), "--dtype", options.dtype};
  if (options.kind.reduces()) arguments.insert(arguments.end(), {"--op", options.op});
  if (options.arena) arguments.push_back("--arena");
  if (options.json.wanted()) arguments.insert(arguments.end(), {"--json", options.json.path});
  return RunJob(options, arguments, context);
}

std::string Footer(const BenchedKind& kind, const std::string& command) {
  std::string text = "Examples:\n";
  if (kind.kind == CollectiveKind::kAllReduce) {
    text +=
        "  tally bench allreduce                                  ring of 4 workers on this machine\n"
        "  tally bench allreduce --servers 2 --sizes 25MiB        through 2 parameter servers\n"
        "  tally bench allreduce --mode hierarchical --arena      in memory that all processes of the machine share\n"
        "  tally bench allreduce --dtype int64 --op max           other numbers, straight between workers\n";
  } else {
    text += "  tally bench " + command + " --dtype bf16 --sizes 1KiB,25MiB\n";
  }
  text += "  RANK=0 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 tally bench " + command +
          " --insecure\n"
          "                                                         one rank per host, under launcher variables\n"
          "Columns as nccl-tests: time of the slowest rank, median over iterations; bytes of the whole buffer; busbw = algbw";
  const bool blocks = kind.kind == CollectiveKind::kAllGather || kind.kind == CollectiveKind::kReduceScatter;
  return text + (kind.kind == CollectiveKind::kAllReduce ? " * 2(N-1)/N." : blocks ? " * (N-1)/N." : ".");
}

CLI::App* AddCollective(CLI::App& app, const CollectiveKindName& named, BenchOptions* options) {
  options->kind.kind = named.kind;
  options->command = named.command;
  CLI::App* command = app.add_subcommand(named.command, "Time standalone " + std::string(named.what) +
                                                            " and check every element");
  AddConfigOptions(*command, &options->config);
  AddJsonOption(*command, &options->json);
  command->add_option("-n,--workers", options->workers, "Workers to start")->capture_default_str()->check(CLI::Range(1, 64));
  command->add_option("--servers", options->servers, "Servers to start; more than 0 makes mode ps the default")
      ->capture_default_str()->check(CLI::Range(0, 64));
  command->add_option("--mode", options->mode, "ps, ring, hierarchical, hybrid or auto");
  command->add_option("--dtype", options->dtype, "fp32, fp16, bf16, fp64, int8, uint8, int32 or int64")->capture_default_str();
  if (options->kind.reduces()) {
    command->add_option("--op", options->op, "sum, avg, min, max or product; and, or, xor of integers")->capture_default_str();
  }
  if (named.kind == CollectiveKind::kAllReduce) {
    command->add_flag("--arena", options->arena, "From and to Tally's own buffers, which a node's processes share, instead "
                                                 "of the caller's");
  }
  command->add_option("--sizes", options->sizes, "Sizes of the buffer, e.g. 1KiB,25MiB")->capture_default_str();
  command->add_option("--iters", options->iterations, "Timed iterations per size")->capture_default_str()->check(CLI::Range(1, 100000));
  command->add_option("--warmup", options->warmup, "Untimed iterations first")->capture_default_str()->check(CLI::Range(0, 100000));
  command->add_option("--timeout", options->timeout, "End the job after this time, with exit code 3")->capture_default_str();
  command->footer(Footer(options->kind, named.command));
  return command;
}

}  // namespace

Action AddBenchCommand(CLI::App& app, CommandContext& context) {
  struct Command {
    BenchOptions options;
    CLI::App* app = nullptr;
  };
  auto commands = std::make_shared<std::vector<Command>>(std::size(kCollectives));
  for (std::size_t i = 0; i < commands->size(); ++i) {
    Command& command = (*commands)[i];
    command.app = AddCollective(app, kCollectives[i], &command.options);
  }
  CLI::App* codec = app.add_subcommand("codec", "Time codecs on this machine's cores beside a plain copy");
  const Action bench_codec = AddBenchCodec(*codec, context);
  app.require_subcommand(1);
  return [commands, bench_codec, &context] {
    for (Command& command : *commands) {
      if (command.app->parsed()) return Run(command.options, context);
    }
    return bench_codec();
  };
}

}  // namespace tally::cli
