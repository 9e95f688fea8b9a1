// The table of all settings, made from keys.inc. Everything that names a setting goes through it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/config/value_kind.h"

namespace tally {

enum class Scope : std::uint8_t { kJob, kProcess };

struct KeySpec {
  std::string_view section, key;
  Scope scope;
  bool hot;
  std::string_view help;
  TomlType toml_type;
  std::string (*parse)(std::string_view text, Config* config);  // what was expected, "" if it was set
  std::string (*print)(const Config& config);                   // the value as TOML, canonical

  std::string Name() const { return std::string(section) + "." + std::string(key); }
  std::string Variable() const;  // "TALLY_SECTION_KEY"
};

std::span<const KeySpec> Keys();

// Null if there is none.
const KeySpec* FindKey(std::string_view section, std::string_view key);

// "no setting 'compression.codek'; did you mean 'compression.codec'?"
std::string UnknownKey(std::string_view section, std::string_view key);
// The same for a variable that begins with TALLY_.
std::string UnknownVariable(std::string_view variable);

// The job-scoped settings as canonical TOML: equal for configurations that mean the same.
std::string JobText(const Config& config);

}  // namespace tally
