// tally config check|show: is a configuration valid, what is effective, and where is each value from.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>

#include "worker/cli/options.h"

namespace tally::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
};

int RunCheck(const CheckOptions& options, CommandContext& context) {
  int exit_code = 0;
  for (const std::string& file : options.files) {
    ConfigOptions config;
    config.file = file;
    const Result<LoadedConfig> loaded = config.Load(context.environment);
    if (!loaded.ok()) {
      exit_code = context.console.Fail(loaded.status());
    } else {
      context.console.Print(file + ": ok");
    }
  }
  return exit_code;
}

}  // namespace

Action AddConfigCommand(CLI::App& app, CommandContext& context) {
  auto check_options = std::make_shared<CheckOptions>();
  CLI::App* check = app.add_subcommand("check", "Read configuration files and name every fault");
  check->add_option("files", check_options->files, "TOML files")->required();
  app.require_subcommand(1);
  app.footer("Examples:\n  tally config check job.toml");
  return [check_options, &context] { return RunCheck(*check_options, context); };
}

}  // namespace tally::cli
