// tally run: start N local workers of the user's program, and servers, as one job; end all when one fails.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/cli/local_job.h"
#include "worker/cli/options.h"

namespace tally::cli {
namespace {

struct RunOptions {
  std::uint32_t workers = 1;
  std::uint32_t servers = 0;
  ConfigOptions config;
  std::string grace = "5s";
  std::string timeout;
  bool prefix = false;
  JsonOption json;
  std::vector<std::string> program;
};

constexpr Nanos kNoTimeout = Nanos::max();

std::string Colored(const Console& console, bool is_stderr, const std::string& label) {
  return is_stderr ? console.PaintError(Color::kDim, label) : console.Paint(Color::kDim, label);
}

Result<LocalJobOptions> MakeJobOptions(const RunOptions& options, const CommandContext& context) {
  LocalJobOptions job;
  job.workers = options.workers;
  job.servers = options.servers;
  job.server_program = (std::filesystem::path(context.program).parent_path() / "tally-server").string();
  job.worker_command = options.program;
  job.config_file = options.config.file;
  job.overrides = options.config.AllOverrides();
  job.environment = context.environment;
  const Result<Nanos> grace = ParseDuration(options.grace);
  if (!grace.ok()) return grace.status().WithContext("--grace");
  job.launcher.grace = *grace;
  return job;
}

nlohmann::json Report(const LocalJob& job, const std::vector<ProcessState>& processes, int exit_code) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ProcessState& p : processes) {
    rows.push_back({{"label", p.label},
                    {"pid", p.pid},
                    {"exit_code", p.exit_code},
                    {"signal", p.signal},
                    {"failed", p.failed()},
                    {"ended_by_us", p.ended_by_us},
                    {"seconds", std::chrono::duration<double>(p.ran_for).count()},
                    {"cpu_s", p.cpu_s},
                    {"peak_rss_mb", static_cast<double>(p.peak_rss_kb) / 1024}});
  }
  return {{"workers", job.workers()}, {"servers", job.servers()}, {"exit_code", exit_code}, {"processes", rows}};
}

// Who failed how, the first one first.
void Summarize(Console& console, const Status& status, const std::vector<ProcessState>& processes, int first) {
  if (first < 0) return static_cast<void>(console.Fail(status));
  const ProcessState& cause = processes[static_cast<std::size_t>(first)];
  console.Note(console.PaintError(Color::kRed, "tally run: ") + cause.Describe() + "; the job was ended");
  for (const ProcessState& p : processes) {
    if (p.failed() && &p != &cause) console.Note("  after it, " + p.Describe());
  }
  for (const ProcessState& p : processes) {
    if (p.ended_by_us) console.Note("  " + p.Describe());
  }
}

int RunJob(const RunOptions& options, CommandContext& context) {
  Result<LocalJobOptions> job_options = MakeJobOptions(options, context);
  if (!job_options.ok()) return context.console.Fail(job_options.status());
  if (const Status output = options.json.Check(); !output.ok()) return context.console.Fail(output);
  Nanos timeout = kNoTimeout;
  if (!options.timeout.empty()) {
    const Result<Nanos> parsed = ParseDuration(options.timeout);
    if (!parsed.ok()) return context.console.Fail(parsed.status().WithContext("--timeout"));
    timeout = *parsed;
  }
  std::unique_ptr<LocalJob> job;
  if (options.prefix || context.console.stdout_is_terminal()) {
    job_options->launcher.on_line = [&](std::size_t process, bool is_stderr, std::string_view line) {
      const std::string label = "[" + job->launcher().process(process).label + "] ";
      const std::string text = Colored(context.console, is_stderr, label) + std::string(line) + "\n";
      std::FILE* out = is_stderr ? stderr : stdout;
      std::fwrite(text.data(), 1, text.size(), out);
      std::fflush(out);
    };
  }
  job = std::make_unique<LocalJob>(*std::move(job_options));
  Status status = job->Start();
  if (status.ok()) status = job->Wait(timeout);

  const std::vector<ProcessState> processes = job->launcher().processes();
  const int first = job->launcher().first_failure();
  const int signal = job->launcher().received_signal();
  int exit_code = ExitCode(status.kind());
  if (signal != 0) {
    exit_code = 128 + signal;
  } else if (first >= 0) {
    exit_code = processes[static_cast<std::size_t>(first)].ShellCode();
  }
  if (!status.ok()) Summarize(context.console, status, processes, signal != 0 ? -1 : first);
  if (options.json.wanted()) {
    const Status written = options.json.Write(Report(*job, processes, exit_code));
    if (!written.ok()) return context.console.Fail(written);
  }
  return exit_code;
}

}  // namespace

Action AddRunCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<RunOptions>();
  app.add_option("-n,--workers", options->workers, "Number of workers")->required();
  app.add_option("--servers", options->servers, "Number of tally-servers to start; 0: none")->capture_default_str();
  AddConfigOptions(app, &options->config);
  app.add_option("--grace", options->grace, "Time to end by itself after another one failed")->capture_default_str();
  app.add_option("--timeout", options->timeout, "End the job after this time, with exit code 3");
  app.add_flag("--prefix", options->prefix, "Begin each line of output with its process, as on a terminal");
  AddJsonOption(app, &options->json);
  app.add_option("program", options->program, "The program and its arguments, after --")->required();
  app.positionals_at_end();
  app.footer(
      "Each worker gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the\n"
      "configuration as TALLY_ variables. The exit code is that of the process that failed first.\n\n"
      "Examples:\n"
      "  tally run -n 4 -- ./train --epochs 3\n"
      "  tally run -n 4 --servers 2 --set compression.codec=int8 -- python3 train.py\n"
      "  tally run -n 2 --config job.toml --timeout 10min -- ./train");
  return [options, &context] { return RunJob(*options, context); };
}

}  // namespace tally::cli
