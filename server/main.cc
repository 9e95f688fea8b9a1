// tally-server: the daemon around Server: flags, signals, systemd, the report at exit.

#include <signal.h>
#include <systemd/sd-daemon.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/allocator.h"
#include "common/version.h"
#include "server/server.h"

namespace tally {
namespace {

constexpr Nanos kDrainBound = std::chrono::seconds(30);

struct Flags {
  ConfigSources sources;
  std::string listen, port_file, report;
  std::uint32_t index = 0;
  bool exit_when_done = false;
};

int Complain(const Status& status) {
  std::cerr << "tally-server: " << status.text() << "\n";
  return ExitCode(status.kind());
}

// Written beside and renamed, so that a reader never sees half of it.
Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  {
    std::ofstream out(draft, std::ios::trunc);
    out << text;
    if (!out.flush()) return Unavailable("writing " + draft + " failed");
  }
  if (std::rename(draft.c_str(), path.c_str()) != 0) return Unavailable("renaming " + draft + " to " + path + " failed");
  return Status::Ok();
}

std::string ReportText(const ServerStats& s) {
  const nlohmann::json report = {{"version", kVersion},
                                 {"bytes_received", s.bytes_received},
                                 {"bytes_sent", s.bytes_sent},
                                 {"frames_received", s.frames_received},
                                 {"frames_sent", s.frames_sent},
                                 {"rejected_connections", s.rejected_connections},
                                 {"bad_frames", s.bad_frames},
                                 {"pushes", s.pushes},
                                 {"slabs_done", s.slabs_done},
                                 {"duplicates", s.duplicates},
                                 {"stale", s.stale},
                                 {"saturated", s.saturated},
                                 {"held_bytes_max", s.held_bytes_max},
                                 {"pool_allocations", s.pool_allocations},
                                 {"jobs", s.jobs}};
  return report.dump(2) + "\n";
}

// WATCHDOG=1 from the data loop itself: a loop that no longer turns is a hang, and systemd restarts the daemon.
void FeedWatchdog(EventLoop* loop, std::uint64_t interval_us) {
  sd_notify(0, "WATCHDOG=1");
  loop->After(std::chrono::microseconds(interval_us / 3), [loop, interval_us] { FeedWatchdog(loop, interval_us); });
}

// Adopts the keys that may change in a running process. A file that no longer loads changes nothing.
void Reload(const ConfigSources& sources, Logger* logger) {
  sd_notify(0, "RELOADING=1");
  const Result<LoadedConfig> loaded = LoadConfig(sources);
  Status status = loaded.ok() ? logger->SetLevel(loaded->config.log.level) : loaded.status();
  if (status.ok()) {
    logger->Info("reloaded", {{"log.level", loaded->config.log.level}});
  } else {
    logger->Error("reload refused, nothing changed", {{"why", status.text()}});
  }
  sd_notify(0, "READY=1");
}

int Serve(const Flags& flags) {
  // Taken by sigwait below; blocked first so that no thread is hit by them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals, s);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Result<LoadedConfig> loaded = LoadConfig(flags.sources);
  if (!loaded.ok()) return Complain(loaded.status());
  Config& config = loaded->config;
  auto logger = Logger::Make(config.log);
  if (!logger.ok()) return Complain(logger.status());
  (*logger)->SetContext({{"server", config.server.index}});

  std::optional<Status> outcome;  // of the first job, if it is to be the last; read once the server has stopped
  auto server = Server::Start(config, logger->get());
  if (!server.ok()) return Complain(server.status());
  if (config.server.exit_when_done) {
    (*server)->Post([s = server->get(), &outcome] {
      s->on_job_ended = [&outcome](const Status& how) {
        if (outcome.has_value()) return;
        outcome = how;
        kill(getpid(), SIGUSR1);
      };
    });
  }
  if (!flags.port_file.empty()) {
    if (const Status status = WriteWhole(flags.port_file, (*server)->control_address() + "\n"); !status.ok()) {
      return Complain(status);
    }
  }
  (*logger)->Info("ready", {{"listening_on", (*server)->control_address()}, {"version", kVersion}});
  sd_notify(0, "READY=1");
  std::uint64_t watchdog_us = 0;
  if (sd_watchdog_enabled(0, &watchdog_us) > 0) {
    (*server)->Post([loop = &(*server)->loop(), watchdog_us] { FeedWatchdog(loop, watchdog_us); });
  }

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) Reload(flags.sources, logger->get());
  sd_notify(0, "STOPPING=1");
  if (signal != SIGUSR1) (*logger)->Info("stopping", {{"signal", strsignal(signal)}});
  (*server)->Stop(signal == SIGUSR1 ? Nanos(0) : kDrainBound);
  if (!config.server.report.empty()) {
    if (const Status status = WriteWhole(config.server.report, ReportText((*server)->Stats())); !status.ok()) {
      (void)Complain(status);
      return ExitCode(StatusKind::kInvalidArgument);  // apart from how the job ended: a launcher tells them apart
    }
  }
  // Where everything is asked to stop, the word of others may come before ours.
  sigset_t pending;
  sigpending(&pending);
  const bool asked = signal != SIGUSR1 || sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1;
  return asked || !outcome.has_value() || outcome->ok() ? 0 : Complain(*outcome);
}

}  // namespace
}  // namespace tally

int main(int argc, char** argv) {
  tally::KeepLargeBlocks();
  tally::Flags flags;
  CLI::App app{"tally-server: sums the gradients of a job. The first server of a job also coordinates it."};
  app.footer(
      "Examples:\n"
      "  tally-server --listen tcp://127.0.0.1:7070\n"
      "  tally-server --config /etc/tally/server.toml\n"
      "  tally-server --index 1 --listen tcp://127.0.0.1:7071 --set servers.addresses=tcp://127.0.0.1:7070,tcp://127.0.0.1:7071\n"
      "Signals: TERM and INT end the step in progress and stop; HUP reads log.level again.");
  app.set_version_flag("--version", std::string("tally-server ") + tally::kVersion);
  app.add_option("--config", flags.sources.file, "configuration file (TOML)");
  app.add_option("--set", flags.sources.overrides, "section.key=value, overrides file and environment; may be repeated");
  CLI::Option* listen = app.add_option("--listen", flags.listen, "control address, tcp://host:port (port 0: any free one)");
  CLI::Option* index = app.add_option("--index", flags.index, "this server's place in servers.addresses");
  app.add_option("--port-file", flags.port_file, "write the real control address here once ready");
  app.add_flag("--exit-when-done", flags.exit_when_done, "end after the first job has ended, with its exit code");
  app.add_option("--report", flags.report, "write counters as JSON here at exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  flags.sources.own_server = true;
  flags.sources.environment = tally::ProcessEnvironment();
  const auto set = [&](const std::string& key, const std::string& value) {
    flags.sources.overrides.push_back(key + "=" + value);
  };
  if (listen->count() > 0) set("server.listen", flags.listen);
  if (index->count() > 0) set("server.index", std::to_string(flags.index));
  if (flags.exit_when_done) set("server.exit_when_done", "true");
  if (!flags.report.empty()) set("server.report", flags.report);
  return tally::Serve(flags);
}
