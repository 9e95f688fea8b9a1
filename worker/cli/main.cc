// The `tally` command: the commands are in commands.inc.
#include <exception>
#include <filesystem>

#include "common/config/config.h"
#include "worker/cli/command.h"

int main(int argc, char** argv) {
  tally::cli::CommandContext context;
  context.environment = tally::ProcessEnvironment();
  context.version = TALLY_VERSION;
  context.console = tally::cli::Console(context.environment);
  try {
    context.program = std::filesystem::read_symlink("/proc/self/exe").string();
    return tally::cli::RunTally({argv + 1, argv + argc}, context);
  } catch (const std::exception& error) {
    return context.console.Fail(tally::Internal(error.what()));
  }
}
