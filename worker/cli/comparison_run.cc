#include "worker/cli/comparison_run.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "worker/cli/codec_setting.h"
#include "worker/cli/local_job.h"

namespace tally::cli {
namespace {

namespace fs = std::filesystem;

constexpr Nanos kStartAllowance = std::chrono::minutes(2);
constexpr Nanos kStepAllowance = std::chrono::seconds(2);  // far above any step that is still alive
constexpr std::size_t kKeptLines = 12;
constexpr std::size_t kLoneExchanges = 9;
constexpr std::size_t kCurvePoints = 16;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    path_ = (fs::temp_directory_path() / "tally-compare-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) {
      status_ = Unavailable(path_ + ": " + std::strerror(errno));
      path_.clear();
    }
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  Status status_;
};

Result<nlohmann::json> ReadJson(const std::string& path) {
  std::ifstream in(path);
  if (!in) return Unavailable(path + ": not written");
  nlohmann::json object = nlohmann::json::parse(in, nullptr, false);
  if (object.is_discarded()) return Corrupt(path + ": not JSON");
  return object;
}

Result<std::string> FindProgram(const CommandContext& context, const std::string& name) {
  const fs::path folder = fs::path(context.program).parent_path();
  const std::vector<fs::path> places = {folder / name, folder.parent_path() / "libexec" / "tally" / name};
  std::string looked;
  for (const fs::path& place : places) {
    if (access(place.c_str(), X_OK) == 0) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  return Unavailable(name + " is not there (looked for " + looked + "); build it with TALLY_BUILD_BENCHMARKS=ON");
}

std::vector<std::string> SettingOverrides(const Setting& setting) {
  const Config::Compression& compression = setting.compression;
  std::vector<std::string> overrides = CodecOverrides(setting.CodecText());
  overrides.push_back(std::string("aggregation.mode=") + ModeName(setting.mode));
  overrides.push_back(std::string("compression.error_feedback=") + (compression.error_feedback ? "true" : "false"));
  overrides.emplace_back("log.level=warn");
  if (!setting.rate.empty()) overrides.push_back("link.rate=" + setting.rate);
  return overrides;
}

LocalJobOptions JobOptions(const ComparisonRun& run, const Setting& setting, const std::string& folder) {
  LocalJobOptions options;
  options.workers = setting.workers;
  options.servers = setting.servers;
  options.server_program = run.programs.server;
  options.config_file = run.config_file;
  options.environment = run.environment;
  options.work_directory = folder;
  options.server_reports = true;
  options.check_mode = true;
  options.overrides = run.overrides;
  for (std::string& text : SettingOverrides(setting)) options.overrides.push_back(std::move(text));
  options.worker_command = {run.programs.trainer,
                            "--steps", std::to_string(setting.steps),
                            "--seed", std::to_string(setting.seed),
                            "--eval-every", std::to_string(std::max<std::uint64_t>(1, setting.steps / kCurvePoints)),
                            "--lone-exchanges", std::to_string(kLoneExchanges),
                            "--json", folder + "/rank{rank}.json"};
  if (setting.target > 0) {
    options.worker_command.push_back("--target");
    options.worker_command.push_back(nlohmann::json(setting.target).dump());
  }
  // The folder's name is unique on this machine, so the nodes' and NICs' are too.
  const std::string prefix = fs::path(folder).filename().string();
  options.workers_per_node = setting.workers_per_node;
  // Where nodes count, processes must not take this machine for one of them.
  if (setting.mode == Mode::kHierarchical || (setting.mode == Mode::kAuto && !setting.rate.empty())) {
    options.worker_environment_extra["TALLY_TOPOLOGY_NODE"] = prefix + "-node{node}";
  }
  if (!setting.rate.empty()) {
    options.worker_environment_extra["TALLY_LINK_NIC"] = prefix + "-node{node}";
    options.server_overrides.push_back("link.nic=" + prefix + (setting.colocated ? "-node" : "-server") + "{index}");
  }
  return options;
}

}  // namespace

Result<ComparisonPrograms> FindComparisonPrograms(const CommandContext& context) {
  ComparisonPrograms programs;
  TALLY_ASSIGN_OR_RETURN(programs.server, FindProgram(context, "tally-server"));
  TALLY_ASSIGN_OR_RETURN(programs.trainer, FindProgram(context, "train_mlp"));
  return programs;
}

Result<Row> RunSetting(const ComparisonRun& run, const Setting& setting) {
  const TemporaryFolder folder;
  TALLY_RETURN_IF_ERROR(folder.status());
  LocalJobOptions options = JobOptions(run, setting, folder.path());

  LocalJob* running = nullptr;
  std::deque<std::string> last_lines;
  options.launcher.on_line = [&](std::size_t process, bool, std::string_view line) {
    if (process == setting.servers && line.starts_with("step ") && run.on_progress) return run.on_progress(line);
    const std::string who = running != nullptr ? running->launcher().process(process).label + ": " : "";
    last_lines.push_back(who + std::string(line));
    if (last_lines.size() > kKeptLines) last_lines.pop_front();
  };
  LocalJob job(std::move(options));
  running = &job;
  const auto failed = [&](const Status& status) {
    std::string text;
    for (const std::string& line : last_lines) text += "\n  " + line;
    return Status(status.kind(), setting.Pattern() + " " + setting.Codec() + ": " + status.text() + text);
  };
  if (const Status started = job.Start(); !started.ok()) return failed(started);
  const Nanos allowed = kStartAllowance + kStepAllowance * static_cast<std::int64_t>(setting.steps);
  if (const Status ended = job.Wait(allowed); !ended.ok()) return failed(ended);

  std::vector<nlohmann::json> ranks, servers;
  double server_cpu_s = 0;
  for (std::uint32_t rank = 0; rank < setting.workers; ++rank) {
    TALLY_ASSIGN_OR_RETURN(nlohmann::json record, ReadJson(folder.path() + "/rank" + std::to_string(rank) + ".json"));
    ranks.push_back(std::move(record));
  }
  for (std::uint32_t index = 0; index < setting.servers; ++index) {
    const std::string path = folder.path() + "/server" + std::to_string(index) + ".json";
    TALLY_ASSIGN_OR_RETURN(nlohmann::json report, ReadJson(path));
    servers.push_back(std::move(report));
    server_cpu_s += job.launcher().process(job.server_process(index)).cpu_s;
  }
  return MakeRow(setting, ranks, servers, server_cpu_s, run.machine);
}

}  // namespace tally::cli
