#include "common/config/key_table.h"

#include <algorithm>
#include <cctype>

#include "common/config/launcher_variables.h"
#include "common/config/nearest.h"
#include "common/utf8.h"

namespace tally {
namespace {

// The codecs' names, as the table of compress/ has them, and what stands for one of them (compress/advisor.h); nothing
// else of it is known here.
constexpr std::string_view kCodecNames =
#define TALLY_CODEC(id, name, factory) name " "
#define TALLY_LINEAR_CODEC(id, name, factory) name " "
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC
#undef TALLY_CODEC
    "auto";

constexpr std::string_view kScheduleNames =
#define TALLY_SCHEDULE(id, name, generate, busiest_link_slabs, seconds, ring_order) name " "
#include "common/schedule/schedules.inc"
#undef TALLY_SCHEDULE
    "auto";

constexpr KeySpec kKeys[] = {
#define TALLY_KEY(section, key, field, kind, scope, hot, help)                                              \
  {#section, #key, Scope::scope, hot, help, decltype(kind)::kToml,                                          \
   [](std::string_view text, Config* config) { return (kind).Parse(text, &config->section.field); },        \
   [](const Config& config) { return (kind).Print(config.section.field); }},
#include "common/config/keys.inc"
#undef TALLY_KEY
};

}  // namespace

std::string KeySpec::Variable() const {
  std::string variable = "TALLY_" + std::string(section) + "_" + std::string(key);
  for (char& c : variable) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return variable;
}

std::span<const KeySpec> Keys() { return kKeys; }

const KeySpec* FindKey(std::string_view section, std::string_view key) {
  const auto found = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeySpec& spec) {
    return spec.section == section && spec.key == key;
  });
  return found == std::end(kKeys) ? nullptr : found;
}

std::string UnknownKey(std::string_view section, std::string_view key) {
  const std::string name = std::string(section) + "." + std::string(key);
  const std::string unknown = "no setting " + QuotedToml(Utf8Prefix(name, 128));
  std::vector<std::string> all, keys_of_section;
  for (const KeySpec& spec : kKeys) {
    if (spec.key == key) return unknown + "; did you mean '" + spec.Name() + "'?";  // only the section is wrong
    all.push_back(spec.Name());
    if (spec.section == section) keys_of_section.emplace_back(spec.key);
  }
  const std::string nearest = NearestName(key, keys_of_section);
  if (!nearest.empty()) return unknown + "; did you mean '" + std::string(section) + "." + nearest + "'?";
  return unknown + DidYouMean(name, all);
}

std::string UnknownVariable(std::string_view variable) {
  std::vector<std::string> variables = {kConfigFileVariable};
  for (const KeySpec& spec : kKeys) variables.push_back(spec.Variable());
  return "no setting has this variable" + DidYouMean(variable, variables);
}

namespace {

template <typename Wanted>
std::string TomlText(const Config& config, Wanted wanted) {
  std::string text;
  std::string_view section;
  for (const KeySpec& spec : kKeys) {
    if (!wanted(spec)) continue;
    if (spec.section != section) text += "[" + std::string(section = spec.section) + "]\n";
    text += std::string(spec.key) + " = " + spec.print(config) + "\n";
  }
  return text;
}

}  // namespace

std::string JobText(const Config& config) {
  return TomlText(config, [](const KeySpec& spec) { return spec.scope == Scope::kJob; });
}

std::string ProcessText(const Config& config) {
  return TomlText(config, [](const KeySpec&) { return true; });
}

}  // namespace tally
