#include "worker/cli/local_job.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "common/check.h"
#include "common/config/config.h"
#include "common/config/launcher_variables.h"
#include "server/core/coordinator.h"
#include "worker/cli/local_ports.h"

namespace tally::cli {
namespace {

// Servers end by themselves when the job has ended; one that no worker ever joined is ended after this time.
constexpr Nanos kServersEnd = std::chrono::seconds(2);
constexpr const char* kSomeServer = "tcp://127.0.0.1:1";  // stands for a server's address until it is known

std::string Replaced(std::string text, std::string_view placeholder, std::uint32_t number) {
  for (std::size_t at = text.find(placeholder); at != std::string::npos; at = text.find(placeholder, at)) {
    text.replace(at, placeholder.size(), std::to_string(number));
  }
  return text;
}

// "link.rate=1gbit" -> {"TALLY_LINK_RATE", "1gbit"}
std::pair<std::string, std::string> AsVariable(std::string_view override_text) {
  const std::size_t equals = std::min(override_text.find('='), override_text.size());
  std::string name = "TALLY_";
  for (const char c : override_text.substr(0, equals)) {
    name += c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return {name, std::string(override_text.substr(std::min(equals + 1, override_text.size())))};
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace

struct LocalJob::Impl {
  LocalJobOptions options;
  Launcher launcher;
  std::optional<LocalPorts> ports;
  std::vector<std::string> addresses;
  std::string directory;
  bool own_directory = false;

  explicit Impl(LocalJobOptions given) : options(std::move(given)), launcher(options.launcher) {}
  ~Impl() {
    launcher.EndAll();
    std::error_code ignored;
    if (own_directory) std::filesystem::remove_all(directory, ignored);
  }

  Status MakeDirectory() {
    directory = options.work_directory;
    if (!directory.empty()) return Status::Ok();
    directory = (std::filesystem::temp_directory_path() / "tally-XXXXXX").string();
    if (mkdtemp(directory.data()) == nullptr) return Unavailable(directory + ": " + std::strerror(errno));
    own_directory = true;
    return Status::Ok();
  }

  // What a worker is given, but for the overrides.
  std::map<std::string, std::string> LaunchEnvironment(std::uint32_t rank) const {
    std::map<std::string, std::string> variables = options.environment;
    const std::string world = std::to_string(options.workers);
    if (!options.config_file.empty()) {
      variables[kConfigFileVariable] = std::filesystem::absolute(options.config_file).string();
    }
    for (const char* name : {"RANK", "LOCAL_RANK"}) variables[name] = std::to_string(rank);
    for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) variables[name] = world;
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = std::to_string(ports->master());
    if (options.servers > 0) {
      std::string list;
      for (const std::string& address : addresses) list += (list.empty() ? "" : ",") + address;
      variables["TALLY_SERVERS_ADDRESSES"] = list.empty() ? kSomeServer : list;
      variables.erase("TALLY_COORDINATOR_ADDRESS");
    }
    for (const auto& [name, value] : options.worker_environment_extra) {
      variables[name] = Replaced(Replaced(value, "{rank}", rank), "{node}", rank / options.workers_per_node);
    }
    return variables;
  }

  std::map<std::string, std::string> WorkerEnvironment(std::uint32_t rank) const {
    std::map<std::string, std::string> variables = LaunchEnvironment(rank);
    for (const std::string& text : options.overrides) {
      const auto [name, value] = AsVariable(text);
      variables[name] = value;
    }
    return variables;
  }

  std::map<std::string, std::string> ServerEnvironment() const {
    std::map<std::string, std::string> variables = options.environment;
    for (const LauncherNames& names : kLaunchers) {  // a rank of the shell that we run in is not a server's
      for (const char* name : {names.rank, names.size, names.local_rank}) variables.erase(name);
    }
    for (const char* name : {"TALLY_SERVERS_ADDRESSES", "TALLY_COORDINATOR_ADDRESS", kConfigFileVariable}) {
      variables.erase(name);
    }
    return variables;
  }

  // What that worker will be given, checked before anything runs.
  Result<LoadedConfig> CheckedConfig(std::uint32_t rank) const {
    ConfigSources sources;
    sources.file = options.config_file;
    sources.environment = LaunchEnvironment(rank);
    sources.overrides = options.overrides;
    TALLY_ASSIGN_OR_RETURN(LoadedConfig checked, LoadConfig(sources));
    const auto differs = [&](const char* name, std::uint32_t given, std::uint32_t started) {
      return InvalidArgument(std::string(name) + " = " + std::to_string(given) + " is given, but the job starts " +
                             std::to_string(options.workers) + " workers, and this would be " +
                             std::to_string(started) + "; leave it out");
    };
    const Config& config = checked.config;
    if (config.job.workers != options.workers) return differs("job.workers", config.job.workers, options.workers);
    if (config.worker.rank != rank) return differs("worker.rank", config.worker.rank, rank);
    if (options.check_mode) {
      if (const Status mode = ExpandMode(config).status(); !mode.ok()) return InvalidArgument(mode.text());
    }
    if (options.servers > 0 && checked.config.servers.addresses != std::vector<std::string>{kSomeServer}) {
      return InvalidArgument("servers.addresses is given, but the job starts servers of its own; leave one out");
    }
    return checked;
  }

  Status StartServer(std::uint32_t index) {
    const std::string label = "server " + std::to_string(index);
    const std::string base = directory + "/server" + std::to_string(index);
    std::error_code ignored;
    std::filesystem::remove(base + ".port", ignored);

    ProcessSpec spec;
    spec.label = label;
    spec.environment = ServerEnvironment();
    spec.command = {options.server_program, "--listen", "tcp://127.0.0.1:0", "--index", std::to_string(index),
                    "--port-file", base + ".port", "--exit-when-done"};
    const auto add = [&](std::initializer_list<std::string> more) { spec.command.insert(spec.command.end(), more); };
    if (!options.config_file.empty()) add({"--config", options.config_file});
    if (options.server_reports) add({"--report", base + ".json"});
    for (const std::string& text : options.overrides) add({"--set", text});
    for (const std::string& text : options.server_overrides) add({"--set", Replaced(text, "{index}", index)});
    if (index > 0) add({"--set", "servers.addresses=" + addresses[0]});

    TALLY_ASSIGN_OR_RETURN(const std::size_t number, launcher.Spawn(spec));
    std::string address;
    const auto ready = [&] { return !(address = FirstLine(base + ".port")).empty(); };
    TALLY_RETURN_IF_ERROR(launcher.WaitUntil(ready, options.start_timeout, "address from " + label));
    addresses.push_back(address);
    launcher.Follow(number);
    return Status::Ok();
  }

  Status Start() {
    if (options.workers == 0) return InvalidArgument("a job needs at least one worker");
    TALLY_RETURN_IF_ERROR(MakeDirectory());
    TALLY_ASSIGN_OR_RETURN(LocalPorts reserved, LocalPorts::Reserve());
    ports.emplace(std::move(reserved));
    TALLY_RETURN_IF_ERROR(CheckedConfig(options.workers - 1).status());
    TALLY_ASSIGN_OR_RETURN(const LoadedConfig checked, CheckedConfig(0));
    if (checked.config.servers.addresses.empty()) {  // else the first server coordinates, ours or the file's
      options.environment["TALLY_COORDINATOR_ADDRESS"] = "tcp://127.0.0.1:" + std::to_string(ports->coordinator());
    }
    for (std::uint32_t i = 0; i < options.servers; ++i) TALLY_RETURN_IF_ERROR(StartServer(i));
    for (std::uint32_t rank = 0; rank < options.workers; ++rank) {
      ProcessSpec spec;
      spec.label = "rank " + std::to_string(rank);
      spec.command = options.worker_command;
      spec.environment = WorkerEnvironment(rank);
      TALLY_ASSIGN_OR_RETURN([[maybe_unused]] const std::size_t number, launcher.Spawn(spec));
    }
    return Status::Ok();
  }

  Status Wait(Nanos timeout) {
    std::vector<std::size_t> numbers;
    for (std::uint32_t rank = 0; rank < options.workers; ++rank) numbers.push_back(options.servers + rank);
    TALLY_RETURN_IF_ERROR(launcher.WaitFor(numbers, timeout, "end of all workers"));
    const auto servers_ended = [&] {
      const std::vector<ProcessState> all = launcher.processes();
      return std::none_of(all.begin(), all.end(), [](const ProcessState& p) { return p.running; });
    };
    const Status ended = launcher.WaitUntil(servers_ended, kServersEnd, "end of the servers");
    launcher.EndAll();
    return ended.kind() == StatusKind::kTimeout ? Status::Ok() : ended;
  }
};

LocalJob::LocalJob(LocalJobOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
LocalJob::~LocalJob() = default;

Status LocalJob::Start() {
  Status status = impl_->Start();
  if (!status.ok()) impl_->launcher.EndAll();
  return status;
}

Status LocalJob::Wait(Nanos timeout) { return impl_->Wait(timeout); }
Launcher& LocalJob::launcher() { return impl_->launcher; }
std::uint32_t LocalJob::workers() const { return impl_->options.workers; }
std::uint32_t LocalJob::servers() const { return impl_->options.servers; }
const std::vector<std::string>& LocalJob::server_addresses() const { return impl_->addresses; }
const std::string& LocalJob::work_directory() const { return impl_->directory; }

}  // namespace tally::cli
