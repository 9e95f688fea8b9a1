#include "worker/cli/options.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

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

Status JsonOption::Write(const nlohmann::json& object) const {
  const std::string text = object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const std::string part = path + ".part";
  std::FILE* out = to_stdout() ? stdout : std::fopen(part.c_str(), "we");
  if (out == nullptr) return Unavailable("--json " + path + ": " + std::strerror(errno));
  bool written = std::fwrite(text.data(), 1, text.size(), out) == text.size() && std::fflush(out) == 0;
  if (to_stdout()) return written ? Status::Ok() : Unavailable("--json: cannot write to stdout");
  written = std::fclose(out) == 0 && written;
  if (!written || std::rename(part.c_str(), path.c_str()) != 0) {
    return Unavailable("--json " + path + ": " + std::strerror(errno));
  }
  return Status::Ok();
}

}  // namespace tally::cli
