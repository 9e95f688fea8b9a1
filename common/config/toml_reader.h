// Reads a configuration's TOML text into plain settings, each with its place. Takes hostile text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/config/key_table.h"

namespace tally {

inline constexpr std::size_t kMaxConfigBytes = 64 << 10;

struct FileSetting {
  std::string section, key;
  std::string text;  // as environment or a flag would give it; lists joined by kListSeparator
  TomlType written = TomlType::kStringOnly;
  std::string place;  // "job.toml:12"
};

// Appends what `text` sets and, one entry per fault, what is wrong with it. `name` is the file's name in places.
void ReadToml(std::string_view text, std::string_view name, std::vector<FileSetting>* settings,
              std::vector<std::string>* errors);

}  // namespace tally
