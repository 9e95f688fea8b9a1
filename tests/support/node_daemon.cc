#include "tests/support/node_daemon.h"

#include "common/check.h"
#include "common/config/config.h"
#include "common/transport/unix_sockets.h"

namespace tally::test {
namespace {

cli::LauncherOptions Options(std::string* said) {
  cli::LauncherOptions options;
  options.forward_signals = false;
  options.on_line = [said](std::size_t, bool, std::string_view line) { *said += std::string(line) + "\n"; };
  return options;
}

}  // namespace

NodeDaemon::NodeDaemon(std::vector<std::string> settings, const std::string& file)
    : name_(RandomSocketName()), launcher_(Options(&said_)) {
  cli::ProcessSpec spec;
  spec.label = "tally-worker";
  spec.command = {TALLY_WORKER_PROGRAM, "--listen", name_};
  for (const std::string& setting : settings) spec.command.insert(spec.command.end(), {"--set", setting});
  if (!file.empty()) spec.command.insert(spec.command.end(), {"--config", file});
  spec.environment = ProcessEnvironment();
  const auto started = launcher_.Spawn(spec);
  TALLY_CHECK(started.ok(), started.status().text());
}

}  // namespace tally::test
