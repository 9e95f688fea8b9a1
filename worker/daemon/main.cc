// tally-worker: the daemon around Agent: flags, signals, systemd.

#include <signal.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>

#include "common/allocator.h"
#include "common/version.h"
#include "worker/agent/agent.h"

namespace tally {
namespace {

constexpr Nanos kStopBound = std::chrono::seconds(30);

int Complain(const Status& status) {
  std::cerr << "tally-worker: " << status.text() << "\n";
  return ExitCode(status.kind());
}

// Adopts the keys that may change in a running process. A file that no longer loads changes nothing.
void Reload(const ConfigSources& sources, Logger* logger, agent::Agent* agent) {
  const Result<LoadedConfig> loaded = LoadConfig(sources);
  const Status status = loaded.ok() ? logger->SetLevel(loaded->config.log.level) : loaded.status();
  if (status.ok()) {
    agent->SetLogLevel(loaded->config.log.level);
    logger->Info("reloaded", {{"log.level", loaded->config.log.level}});
  } else {
    logger->Error("reload refused, nothing changed", {{"why", status.text()}});
  }
}

int Serve(const ConfigSources& sources) {
  // Taken by sigwait below; blocked first so that no thread is hit by them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const Result<LoadedConfig> loaded = LoadConfig(sources);
  if (!loaded.ok()) return Complain(loaded.status());
  auto logger = Logger::Make(loaded->config.log);
  if (!logger.ok()) return Complain(logger.status());
  auto agent = agent::Agent::Start(loaded->config, logger->get());
  if (!agent.ok()) return Complain(agent.status());
  (*logger)->Info("ready", {{"local_socket", (*agent)->name()}, {"version", kVersion}});
  sd_notify(0, "READY=1");
  if (sd_watchdog_enabled(0, nullptr) > 0) {
    (*agent)->SetAlive([] { sd_notify(0, "WATCHDOG=1"); });
  }

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) {
    sd_notify(0, "RELOADING=1");
    Reload(sources, logger->get(), agent->get());
    sd_notify(0, "READY=1");
  }
  sd_notify(0, "STOPPING=1");
  (*logger)->Info("stopping", {{"signal", strsignal(signal)}});
  if (!(*agent)->Stop(kStopBound)) {
    // One that still joins its job, for example. The system ends it as it would a killed one, with nothing left
    // behind.
    (*logger)->Warn("not all ranks have left their jobs, ending all the same");
    std::_Exit(0);
  }
  return 0;
}

}  // namespace
}  // namespace tally

int main(int argc, char** argv) {
  tally::KeepLargeBlocks();
  tally::ConfigSources sources;
  std::string listen;
  CLI::App app{
      "tally-worker: runs the engines of this node's training processes, which attach with worker.attach = "
      "\"agent\".\n"
      "Residuals and the place in the job outlive a training process that ends right after a step and comes back.\n"
      "Its seat is found by rank, job.name and the addresses of coordinator and servers: one-worker jobs without these\n"
      "need names of their own."};
  app.footer(
      "Examples:\n"
      "  tally-worker\n"
      "  tally-worker --config /etc/tally/worker.toml\n"
      "  tally-worker --listen tally-worker-b --set log.level=debug\n"
      "Signals: TERM and INT end the jobs of all its ranks, with an error that says so; HUP reads log.level"
      " again, for it and them.\n"
      "Files that the jobs' settings name are read by tally-worker: under its systemd unit not those in /tmp.");
  app.set_version_flag("--version", std::string("tally-worker ") + tally::kVersion);
  app.add_option("--config", sources.file, "configuration file (TOML)");
  app.add_option("--set", sources.overrides, "section.key=value, overrides file and environment; may be repeated");
  CLI::Option* named =
      app.add_option("--listen", listen, "name of its local socket (worker.agent); default: of the user");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  sources.own_server = true;  // its own settings name no job
  sources.environment = tally::ProcessEnvironment();
  if (named->count() > 0) sources.overrides.push_back("worker.agent=" + listen);
  return tally::Serve(sources);
}
