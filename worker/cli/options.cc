#include "worker/cli/options.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "worker/cli/output_file.h"

namespace tally::cli {

std::vector<std::string> ConfigOptions::AllOverrides() const {
  std::vector<std::string> all = overrides;
  if (insecure) all.push_back("network.insecure=true");
  return all;
}

Result<LoadedConfig> ConfigOptions::Load(const std::map<std::string, std::string>& environment) const {
  ConfigSources sources;
  sources.file = file;
  sources.environment = environment;
  sources.overrides = AllOverrides();
  return LoadConfig(sources);
}

void AddConfigOptions(CLI::App& app, ConfigOptions* options) {
  app.add_option("--config", options->file, "The job's TOML file")->type_name("FILE");
  AddOverrideOptions(app, options);
}

void AddOverrideOptions(CLI::App& app, ConfigOptions* options) {
  app.add_option("--set", options->overrides, "Override one setting; repeatable")
      ->type_name("SECTION.KEY=VALUE")
      ->take_all()
      ->allow_extra_args(false);
  app.add_flag("--insecure", options->insecure, "Allow addresses off loopback without keys");
}

void AddJsonOption(CLI::App& app, JsonOption* option) {
  app.add_option("--json", option->path, "Write one JSON object there; - is stdout")->type_name("FILE|-");
}

Status JsonOption::Check() const {
  return wanted() && !to_stdout() ? CheckOutput("--json", path) : Status::Ok();
}

Status JsonOption::Write(const nlohmann::json& object) const {
  const std::string text = object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!to_stdout()) return WriteOutput("--json", path, text);
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return written ? Status::Ok() : Unavailable("--json: cannot write to stdout");
}

}  // namespace tally::cli
