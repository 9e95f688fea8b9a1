#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "worker/cli/command.h"

namespace tally::cli {

#define TALLY_COMMAND(name, function, summary) Action function(CLI::App& app, CommandContext& context);
#include "worker/cli/commands.inc"
#undef TALLY_COMMAND

namespace {

struct CommandEntry {
  const char* name;
  AddCommand add;
  const char* summary;
};

constexpr CommandEntry kCommands[] = {
#define TALLY_COMMAND(name, function, summary) {name, function, summary},
#include "worker/cli/commands.inc"
#undef TALLY_COMMAND
};

constexpr int kUsageExit = 2;

}  // namespace

int RunTally(const std::vector<std::string>& arguments, CommandContext& context) {
  CLI::App app("Tally adds up the gradients of a training job: through parameter servers, a ring, or both.", "tally");
  app.set_version_flag("--version", "tally " + context.version);
  app.require_subcommand(1);
  app.footer("Each command has --help with examples.");

  std::vector<std::pair<CLI::App*, Action>> commands;
  for (const CommandEntry& entry : kCommands) {
    CLI::App* command = app.add_subcommand(entry.name, entry.summary);
    commands.emplace_back(command, entry.add(*command, context));
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 wants them reversed
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageExit;
  }
  for (const auto& [command, action] : commands) {
    if (command->parsed()) return action();
  }
  return kUsageExit;
}

}  // namespace tally::cli
