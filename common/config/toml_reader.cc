#include "common/config/toml_reader.h"

// toml++ 3.3 asserts on some malformed keys that the code after the assertion refuses in good order. With NDEBUG it would
// turn the same conditions into assumptions, so assertions are made nothing instead: hostile text must not end us.
#undef NDEBUG
#define TOML_ASSERT(condition) static_cast<void>(0)
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "common/utf8.h"

namespace tally {
namespace {

std::string Number(double value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string();
}

struct Written {
  std::string text;
  TomlType type;
};

// Nothing if a setting cannot have such a value.
std::optional<Written> AsSetting(const toml::node& node) {
  if (const auto* text = node.as_string()) return Written{text->get(), TomlType::kStringOnly};
  if (const auto* number = node.as_integer()) return Written{std::to_string(number->get()), TomlType::kInteger};
  if (const auto* number = node.as_floating_point()) return Written{Number(number->get()), TomlType::kNumber};
  if (const auto* flag = node.as_boolean()) return Written{flag->get() ? "true" : "false", TomlType::kBoolean};
  const toml::array* items = node.as_array();
  if (items == nullptr) return std::nullopt;
  Written list{"", TomlType::kArray};
  for (const toml::node& item : *items) {
    const auto* text = item.as_string();
    if (text == nullptr || text->get().empty() || text->get().find(kListSeparator) != std::string::npos) {
      return std::nullopt;
    }
    list.text += (list.text.empty() ? "" : ",") + text->get();
  }
  return list;
}

}  // namespace

void ReadToml(std::string_view text, std::string_view name, std::vector<FileSetting>* settings,
              std::vector<std::string>* errors) {
  const auto place = [&](const toml::source_region& source) {
    return std::string(name) + ":" + std::to_string(source.begin.line);
  };
  if (text.size() > kMaxConfigBytes) {
    errors->push_back(std::string(name) + ": larger than 64 KiB");
    return;
  }
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    std::string description(parsed.error().description());
    if (!IsPrintableUtf8(description)) description = "not TOML";
    errors->push_back(place(parsed.error().source()) + ": " + description);
    return;
  }
  for (const auto& [section, node] : parsed.table()) {
    const toml::table* keys = node.as_table();
    if (keys == nullptr) {
      errors->push_back(place(node.source()) + ": " + QuotedToml(section.str().substr(0, 128)) +
                        " stands outside of a section; write it below a line such as [job]");
      continue;
    }
    for (const auto& [key, value] : *keys) {
      FileSetting setting;
      setting.section = section.str();
      setting.key = key.str();
      setting.place = place(value.source());
      const std::optional<Written> written = AsSetting(value);
      if (!written && FindKey(setting.section, setting.key) != nullptr) {
        errors->push_back(setting.place + ": " + setting.section + "." + setting.key +
                          ": expected a string, a number, true, false, or a list of strings without commas");
        continue;
      }
      if (written) {
        setting.text = written->text;
        setting.written = written->type;
      }
      settings->push_back(std::move(setting));
    }
  }
  // toml++ sorts by name; faults are named in the order of the file.
  const auto line = [](const FileSetting& s) { return std::stoul(s.place.substr(s.place.rfind(':') + 1)); };
  std::stable_sort(settings->begin(), settings->end(),
                   [&](const FileSetting& a, const FileSetting& b) { return line(a) < line(b); });
}

}  // namespace tally
