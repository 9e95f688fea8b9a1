#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>

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

// CLI11 would only say that a subcommand is required.
Status CheckCommandWord(const CLI::App& app, const std::vector<std::string>& arguments, std::size_t at) {
  const auto subcommands = app.get_subcommands([](const CLI::App*) { return true; });
  if (subcommands.empty() || at >= arguments.size() || arguments[at].starts_with('-')) return Status::Ok();
  std::string names;
  for (const CLI::App* subcommand : subcommands) {
    if (subcommand->get_name() == arguments[at]) return CheckCommandWord(*subcommand, arguments, at + 1);
    names += (names.empty() ? "" : ", ") + subcommand->get_name();
  }
  return InvalidArgument("no command '" + arguments[at] + "' of " + app.get_name() + "; there are " + names);
}

int ParseAndRun(const std::vector<std::string>& arguments, CommandContext& context) {
  CLI::App app("Tally adds up the gradients of a training job: through parameter servers, a ring, or both.", "tally");
  app.set_version_flag("--version", "tally " + context.version);
  app.require_subcommand(1);
  app.footer("Each command has --help with examples.");

  std::vector<std::pair<CLI::App*, Action>> commands;
  for (const CommandEntry& entry : kCommands) {
    CLI::App* command = app.add_subcommand(entry.name, entry.summary);
    commands.emplace_back(command, entry.add(*command, context));
  }
  if (const Status word = CheckCommandWord(app, arguments, 0); !word.ok()) return context.console.Fail(word);
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

}  // namespace

int RunTally(const std::vector<std::string>& arguments, CommandContext& context) {
  const int exit_code = ParseAndRun(arguments, context);
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || exit_code != 0) return exit_code;
  return context.console.Fail(Unavailable("stdout: not everything could be written"));
}

}  // namespace tally::cli
