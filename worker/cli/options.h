// Options that several commands share: the configuration (--config, --set, --insecure) and --json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/status.h"
#include "worker/cli/command.h"

namespace tally::cli {

struct ConfigOptions {
  std::string file;                     // --config F
  std::vector<std::string> overrides;   // --set section.key=value, repeatable
  bool insecure = false;                // --insecure = --set network.insecure=true

  // Everything given as overrides, for LoadConfig or a child's --set.
  std::vector<std::string> AllOverrides() const;
  // The effective configuration: this file, `environment`, these overrides.
  Result<LoadedConfig> Load(const std::map<std::string, std::string>& environment) const;
};
void AddConfigOptions(CLI::App& app, ConfigOptions* options);
void AddOverrideOptions(CLI::App& app, ConfigOptions* options);  // all but --config

// --json FILE|-
struct JsonOption {
  std::string path;  // empty = not asked for

  bool wanted() const { return !path.empty(); }
  bool to_stdout() const { return path == "-"; }  // stdout then holds the object and nothing else
  // Before the work: can it be written? Errors: kInvalidArgument.
  Status Check() const;
  // Writes one object, indented, with a final newline, as WriteOutput does. Errors: kUnavailable (path, errno).
  Status Write(const nlohmann::json& object) const;
};
void AddJsonOption(CLI::App& app, JsonOption* option);

}  // namespace tally::cli
