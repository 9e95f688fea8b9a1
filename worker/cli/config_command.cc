// tally config check|show: is a configuration valid, what is effective, where is each value from, what does its mode
// expand to.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/core/coordinator.h"
#include "worker/cli/options.h"

namespace tally::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> files;
  ConfigOptions config;  // its file is each of `files`
};

struct ShowOptions {
  ConfigOptions config;
  bool origin = false;
  JsonOption json;
};

int RunCheck(const CheckOptions& options, CommandContext& context) {
  int exit_code = 0;
  for (const std::string& file : options.files) {
    ConfigOptions config = options.config;
    config.file = file;
    const Result<LoadedConfig> loaded = config.Load(context.environment);
    if (!loaded.ok()) {
      exit_code = context.console.Fail(loaded.status());
      continue;
    }
    const Result<ModeExpansion> expansion = ExpandMode(loaded->config);
    if (!expansion.ok()) {
      exit_code = context.console.Fail(expansion.status().WithContext(file));
      continue;
    }
    for (const std::string& warning : expansion->warnings) context.console.Warn(warning);
    context.console.Print(file + ": ok (" + DescribeExpansion(*expansion) + ")");
  }
  return exit_code;
}

// The configuration as a TOML file that says the same.
std::string AsToml(const LoadedConfig& loaded, const std::string& expansion, bool with_origin) {
  std::size_t widest = 0;
  for (const ConfigEntry& entry : loaded.entries) {
    widest = std::max(widest, entry.name.size() - entry.name.find('.') + entry.value.size() + 2);
  }
  std::string text = "# aggregation.mode runs as: " + expansion + "\n";
  std::string section;
  for (const ConfigEntry& entry : loaded.entries) {
    const std::size_t dot = entry.name.find('.');
    if (entry.name.substr(0, dot) != section) {
      section = entry.name.substr(0, dot);
      text += "\n[" + section + "]\n";
    }
    std::string line = entry.name.substr(dot + 1) + " = " + entry.value;
    if (with_origin) line += std::string(widest + 2 - std::min(widest, line.size()), ' ') + "# " + entry.origin;
    text += line + "\n";
  }
  return text;
}

nlohmann::json AsJson(const LoadedConfig& loaded, const std::string& expansion) {
  nlohmann::json keys = nlohmann::json::array();
  for (const ConfigEntry& entry : loaded.entries) {
    keys.push_back({{"name", entry.name},
                    {"value", nlohmann::json::parse(entry.value, nullptr, false)},  // TOML's basic values are JSON's
                    {"origin", entry.origin},
                    {"scope", entry.job_scope ? "job" : "process"},
                    {"hot", entry.hot},
                    {"help", entry.help}});
  }
  return {{"keys", keys}, {"expansion", expansion}, {"job_digest", loaded.job_digest}};
}

int RunShow(const ShowOptions& options, CommandContext& context) {
  const Result<LoadedConfig> loaded = options.config.Load(context.environment);
  if (!loaded.ok()) return context.console.Fail(loaded.status());
  if (const Status output = options.json.Check(); !output.ok()) return context.console.Fail(output);
  const Result<ModeExpansion> expanded = ExpandMode(loaded->config);
  const std::string expansion =
      expanded.ok() ? DescribeExpansion(*expanded) : "nothing: " + expanded.status().text();
  if (expanded.ok()) {
    for (const std::string& warning : expanded->warnings) context.console.Warn(warning);
  }
  if (!options.json.to_stdout()) context.console.Print(AsToml(*loaded, expansion, options.origin));
  if (options.json.wanted()) {
    const Status written = options.json.Write(AsJson(*loaded, expansion));
    if (!written.ok()) return context.console.Fail(written);
  }
  return expanded.ok() ? 0 : ExitCode(expanded.status().kind());
}

}  // namespace

Action AddConfigCommand(CLI::App& app, CommandContext& context) {
  auto check_options = std::make_shared<CheckOptions>();
  CLI::App* check = app.add_subcommand("check", "Read configuration files and name every fault");
  check->add_option("files", check_options->files, "TOML files")->required()->type_name("FILE");
  AddOverrideOptions(*check, &check_options->config);
  check->footer("Examples:\n  tally config check job.toml\n  tally config check --set compression.codec=int8 job.toml");

  auto show_options = std::make_shared<ShowOptions>();
  CLI::App* show = app.add_subcommand("show", "Print the effective configuration and what its mode expands to");
  AddConfigOptions(*show, &show_options->config);
  show->add_flag("--origin", show_options->origin, "Say where each value is from");
  AddJsonOption(*show, &show_options->json);
  show->footer("Examples:\n  tally config show --config job.toml --origin\n"
               "  TALLY_LINK_RATE=1gbit tally config show --json -");

  app.require_subcommand(1);
  app.footer("Examples:\n  tally config check job.toml\n  tally config show --config job.toml --origin");
  return [=, &context] {
    return check->parsed() ? RunCheck(*check_options, context) : RunShow(*show_options, context);
  };
}

}  // namespace tally::cli
