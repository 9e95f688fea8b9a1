#include "common/config/key_table.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "common/config/launcher_variables.h"
#include "common/config/nearest.h"

namespace tally {
namespace {

constexpr KeySpec kKeys[] = {
#define TALLY_KEY(section, key, field, kind, scope, hot, help)                                              \
  {#section, #key, Scope::scope, hot, help, decltype(kind)::kToml,                                          \
   [](std::string_view text, Config* config) { return (kind).Parse(text, &config->section.field); },        \
   [](const Config& config) { return (kind).Print(config.section.field); }},
#include "common/config/keys.inc"
#undef TALLY_KEY
};

std::vector<std::string> Names(std::string_view section) {
  std::vector<std::string> names;
  for (const KeySpec& spec : kKeys) {
    if (section.empty() || spec.section == section) names.push_back(spec.Name());
  }
  return names;
}

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
  const std::string unknown = "no setting " + QuotedToml(name.substr(0, 128));
  const auto elsewhere = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const KeySpec& s) { return s.key == key; });
  std::vector<std::string> candidates = Names(section);
  const bool known_section = !candidates.empty();
  if (NearestName(name, candidates).empty() || !known_section) {
    candidates = elsewhere != std::end(kKeys) && known_section ? std::vector{elsewhere->Name()} : Names("");
  }
  if (candidates.size() == 1) return unknown + "; did you mean '" + candidates[0] + "'?";
  return unknown + DidYouMean(name, candidates);
}

std::string UnknownVariable(std::string_view variable) {
  std::vector<std::string> variables = {kConfigFileVariable};
  for (const KeySpec& spec : kKeys) variables.push_back(spec.Variable());
  return "no setting has this variable" + DidYouMean(variable, variables);
}

std::string JobText(const Config& config) {
  std::string text;
  std::string_view section;
  for (const KeySpec& spec : kKeys) {
    if (spec.scope != Scope::kJob) continue;
    if (spec.section != section) text += "[" + std::string(section = spec.section) + "]\n";
    text += std::string(spec.key) + " = " + spec.print(config) + "\n";
  }
  return text;
}

}  // namespace tally
