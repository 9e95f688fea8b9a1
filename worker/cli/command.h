// What a command of `tally` is. One command is one file, <name>_command.cc, and one line in commands.inc.
// The file adds the command's options to its CLI::App and returns the action that runs once they are parsed.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/cli/console.h"

namespace CLI {
class App;
}

namespace tally::cli {

// What every command is given. Outlives all actions.
struct CommandContext {
  std::map<std::string, std::string> environment;  // of this process: read variables here only
  std::string program;                             // this binary's path; tally-server lies beside it
  std::string version;
  Console console;
};

// Runs the command and returns the exit code (CLI.md): 0 done, 6 wrong result found, otherwise Console::Fail(status).
// Data goes to stdout, everything else to stderr through the console.
using Action = std::function<int()>;

// `app` is the command's own, already named. Options live in a shared_ptr that the action captures:
//
//   Action AddHelloCommand(CLI::App& app, CommandContext& context) {
//     auto options = std::make_shared<HelloOptions>();
//     app.add_option("--name", options->name, "Whom to greet")->capture_default_str();
//     app.footer("Examples:\n  tally hello --name world");
//     return [options, &context] { return RunHello(*options, context); };
//   }
//
// A command with subcommands calls app.require_subcommand(1) and asks each one's parsed() in its action.
using AddCommand = Action (*)(CLI::App& app, CommandContext& context);

// Parses `arguments` (without the program's name), runs the command, returns the exit code. Usage errors: 2.
int RunTally(const std::vector<std::string>& arguments, CommandContext& context);

}  // namespace tally::cli
