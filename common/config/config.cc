#include "common/config/config.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>

#include "common/config/checks.h"
#include "common/config/key_table.h"
#include "common/config/launcher_variables.h"
#include "common/config/toml_reader.h"
#include "common/topology/switch_map.h"
#include "common/utf8.h"

namespace tally {
namespace {

constexpr const char* kDefaultOrigin = "default";
constexpr std::size_t kMaxShownErrors = 50;

std::string JoinLines(const std::vector<std::string>& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size() && i < kMaxShownErrors; ++i) text += (i > 0 ? "\n" : "") + lines[i];
  if (lines.size() > kMaxShownErrors) text += "\n… and " + std::to_string(lines.size() - kMaxShownErrors) + " more";
  return text;
}

std::string Lookup(const std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

// The kind's own TOML type and strings are welcome; integers also where any number is.
bool TypeFits(TomlType written, TomlType kind) {
  return written == TomlType::kStringOnly || written == kind ||
         (written == TomlType::kInteger && kind == TomlType::kNumber);
}

// Applies the sources in their order, weakest first, and gathers every fault.
class Loader {
 public:
  explicit Loader(const ConfigSources& sources) : sources_(sources), origins_(Keys().size(), kDefaultOrigin) {}

  Result<LoadedConfig> Load() {
    FromFile();
    FromLauncher();
    FromEnvironment();
    FromOverrides();
    FillIn();
    const OriginOf origin = [this](std::string_view name) { return Origin(name); };
    CheckTogether(loaded_.config, sources_.own_server, origin, &errors_);
    CheckAddresses(loaded_.config, origin, &errors_);
    if (!errors_.empty()) return InvalidArgument(JoinLines(errors_));
    Describe();
    return std::move(loaded_);
  }

 private:
  std::string& Origin(std::string_view name) {
    const auto spec = std::find_if(Keys().begin(), Keys().end(), [&](const KeySpec& s) { return s.Name() == name; });
    TALLY_CHECK(spec != Keys().end(), name);
    return origins_[static_cast<std::size_t>(spec - Keys().begin())];
  }
  bool IsDefault(std::string_view name) { return Origin(name) == kDefaultOrigin; }

  void Set(const KeySpec& spec, std::string_view text, const std::string& origin) {
    const std::string wrong = spec.parse(text, &loaded_.config);
    if (wrong.empty()) {
      Origin(spec.Name()) = origin;
    } else {
      errors_.push_back(origin + ": " + spec.Name() + ": " + wrong);
    }
  }
  void Set(std::string_view name, std::string_view text, const std::string& origin) {
    const std::size_t dot = name.find('.');
    const KeySpec* spec = FindKey(name.substr(0, dot), name.substr(dot + 1));
    TALLY_CHECK(spec != nullptr, name);
    Set(*spec, text, origin);
  }

  void FromFile() {
    if (!sources_.text.empty()) return FromText(sources_.text, "process");
    const std::string path =
        sources_.file.empty() ? Lookup(sources_.environment, kConfigFileVariable) : sources_.file;
    if (path.empty()) return;
    errno = 0;
    std::ifstream in(path, std::ios::binary);
    std::string text(kMaxConfigBytes + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in.is_open() || in.bad() || (in.gcount() == 0 && errno != 0)) {
      errors_.push_back(path + ": " + std::strerror(errno));
      return;
    }
    text.resize(static_cast<std::size_t>(in.gcount()));
    FromText(text, path);
  }

  void FromText(std::string_view text, const std::string& name) {
    std::vector<FileSetting> settings;
    ReadToml(text, name, &settings, &errors_);
    for (const FileSetting& setting : settings) {
      const KeySpec* spec = FindKey(setting.section, setting.key);
      if (spec == nullptr) {
        errors_.push_back(setting.place + ": " + UnknownKey(setting.section, setting.key));
      } else if (!TypeFits(setting.written, spec->toml_type)) {
        errors_.push_back(setting.place + ": " + spec->Name() + ": " + setting.text + " has the wrong type; expected " +
                          "a value such as " + spec->print(Config{}));
      } else {
        Set(*spec, setting.text, setting.place);
      }
    }
  }

  void FromLauncher() {
    // The name of this machine, which a file that is this machine's own may know better.
    const std::string node_name = Lookup(sources_.environment, kSlurmNodeName);
    if (!node_name.empty() && IsDefault("topology.host")) Set("topology.host", node_name, kSlurmNodeName);
    for (const LauncherNames& names : kLaunchers) {
      const std::string rank = Lookup(sources_.environment, names.rank);
      const std::string size = Lookup(sources_.environment, names.size);
      const std::string local_rank = Lookup(sources_.environment, names.local_rank);
      if (rank.empty() && size.empty()) continue;
      file_workers_ = loaded_.config.job.workers;
      file_workers_origin_ = Origin("job.workers");
      launcher_size_ = names.size;
      if (!rank.empty()) Set("worker.rank", rank, names.rank);
      if (!size.empty()) Set("job.workers", size, names.size);
      if (!local_rank.empty()) Set("worker.local_rank", local_rank, names.local_rank);
      return;
    }
  }

  void FromEnvironment() {
    for (const auto& [name, value] : sources_.environment) {
      if (!name.starts_with("TALLY_") || name == kConfigFileVariable) continue;
      const auto is_its = [&variable = name](const KeySpec& s) { return s.Variable() == variable; };
      const auto spec = std::find_if(Keys().begin(), Keys().end(), is_its);
      if (spec == Keys().end()) {
        errors_.push_back(name + ": " + UnknownVariable(name));
      } else {
        Set(*spec, value, name);
      }
    }
  }

  void FromOverrides() {
    for (const std::string& text : sources_.overrides) {
      const std::size_t equals = text.find('=');
      const std::size_t dot = text.find('.');
      if (equals == std::string::npos || dot == std::string::npos || dot > equals) {
        errors_.push_back("--set " + text + ": expected section.key=value");
        continue;
      }
      const std::string section = text.substr(0, dot);
      const std::string key = text.substr(dot + 1, equals - dot - 1);
      const KeySpec* spec = FindKey(section, key);
      if (spec == nullptr) {
        errors_.push_back("--set: " + UnknownKey(section, key));
      } else {
        Set(*spec, std::string_view(text).substr(equals + 1), "--set");
      }
    }
  }

  // Defaults that depend on other settings.
  void FillIn() {
    Config& config = loaded_.config;
    if (Origin("job.workers") == launcher_size_ && file_workers_ != 0 && file_workers_ != config.job.workers) {
      errors_.push_back(file_workers_origin_ + ": job.workers = " + std::to_string(file_workers_) + ", but " +
                        launcher_size_ + " = " + std::to_string(config.job.workers) +
                        "; start that many, or leave job.workers out");
    }
    config.worker.rank_set = !IsDefault("worker.rank");
    if (IsDefault("aggregation.mode")) {
      config.aggregation.mode = config.servers.addresses.empty() ? Mode::kRing : Mode::kPs;
    }
    if (IsDefault("aggregation.between")) {
      config.aggregation.between = config.servers.addresses.empty() ? Mode::kRing : Mode::kPs;
    }
    if (config.coordinator.address.empty()) FindCoordinator();
    if (config.topology.switch_path.empty() && config.topology.file.empty()) {
      config.topology.switch_path = SwitchPathOfAddress(Lookup(sources_.environment, kSlurmAddress),
                                                        Lookup(sources_.environment, kSlurmAddressPattern));
      if (!config.topology.switch_path.empty()) Origin("topology.switch") = kSlurmAddress;
    }
  }

  void FindCoordinator() {
    Config& config = loaded_.config;
    const std::string host = Lookup(sources_.environment, kMasterAddress);
    const std::string port_text = Lookup(sources_.environment, kMasterPort);
    if (!config.servers.addresses.empty()) {
      config.coordinator.address = config.servers.addresses[0];
      Origin("coordinator.address") = "servers.addresses";
    } else if (!host.empty() && !port_text.empty()) {
      unsigned port = 0;
      const auto [end, error] = std::from_chars(port_text.data(), port_text.data() + port_text.size(), port);
      if (error != std::errc() || end != port_text.data() + port_text.size() || port == 0 || port >= 65535) {
        errors_.push_back(std::string(kMasterPort) + ": " + QuotedToml(port_text) +
                          " is not a port from 1 to 65534 (the coordinator takes the next one)");
        return;
      }
      const bool v6 = host.find(':') != std::string::npos && !host.starts_with('[');
      config.coordinator.address = "tcp://" + (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port + 1);
      Origin("coordinator.address") = "MASTER_ADDR, MASTER_PORT + 1";
    } else if (config.job.workers == 1) {
      config.coordinator.address = "tcp://127.0.0.1:0";
    }
  }

  void Describe() {
    for (const KeySpec& spec : Keys()) {
      loaded_.entries.push_back({spec.Name(), spec.print(loaded_.config), Origin(spec.Name()), std::string(spec.help),
                                 spec.scope == Scope::kJob, spec.hot});
    }
    loaded_.job_text = JobText(loaded_.config);
    loaded_.job_digest = XXH3_64bits(loaded_.job_text.data(), loaded_.job_text.size());
  }

  const ConfigSources& sources_;
  LoadedConfig loaded_;
  std::vector<std::string> origins_;  // of each key, in table order
  std::vector<std::string> errors_;
  std::uint32_t file_workers_ = 0;
  std::string file_workers_origin_, launcher_size_;
};

// A job text's settings by name; false if it is not one.
bool ReadJobText(std::string_view text, std::map<std::string, std::string>* values) {
  std::vector<FileSetting> settings;
  std::vector<std::string> errors;
  ReadToml(text, "job", &settings, &errors);
  for (const FileSetting& s : settings) {
    std::string& value = (*values)[s.section + "." + s.key];
    value = s.written == TomlType::kStringOnly ? QuotedToml(s.text) : s.text;
    if (s.written == TomlType::kArray) value = "[" + s.text + "]";
  }
  return errors.empty();
}

}  // namespace

Result<LoadedConfig> LoadConfig(const ConfigSources& sources) { return Loader(sources).Load(); }

Result<Config> ParseJobConfig(std::string_view job_text) {
  std::vector<FileSetting> settings;
  std::vector<std::string> errors;
  ReadToml(job_text, "job text", &settings, &errors);
  Config config;
  for (const FileSetting& setting : settings) {
    const KeySpec* spec = FindKey(setting.section, setting.key);
    std::string wrong;
    if (spec == nullptr) {
      wrong = UnknownKey(setting.section, setting.key);
    } else if (spec->scope != Scope::kJob) {
      wrong = spec->Name() + " is not a setting of the job";
    } else if (!TypeFits(setting.written, spec->toml_type)) {
      wrong = spec->Name() + ": wrong type";
    } else if (std::string parse_error = spec->parse(setting.text, &config); !parse_error.empty()) {
      wrong = spec->Name() + ": " + parse_error;
    }
    if (!wrong.empty()) errors.push_back(setting.place + ": " + wrong);
  }
  if (!errors.empty()) return Corrupt("a member's configuration: " + JoinLines(errors));
  return config;
}

std::vector<std::string> DiffJobConfig(std::string_view job, std::string_view member) {
  std::map<std::string, std::string> job_values, member_values;
  if (!ReadJobText(job, &job_values) || !ReadJobText(member, &member_values)) {
    return {"one of the configurations cannot be read"};
  }
  std::map<std::string, std::string> all = job_values;
  all.insert(member_values.begin(), member_values.end());
  const auto value_in = [](const std::map<std::string, std::string>& values, const std::string& name) {
    const auto found = values.find(name);
    return found == values.end() ? std::string("(absent)") : found->second;
  };
  constexpr std::size_t kShown = 200;
  std::vector<std::string> lines;
  for (const auto& entry : all) {
    const std::string& name = entry.first;
    const std::string job_value = value_in(job_values, name), member_value = value_in(member_values, name);
    if (job_value == member_value) continue;
    lines.push_back(name + ": the job has " + std::string(Utf8Prefix(job_value, kShown)) + ", the member " +
                    std::string(Utf8Prefix(member_value, kShown)));
  }
  return lines;
}

const char* ModeName(Mode mode) {
  switch (mode) {
    case Mode::kPs: return "ps";
    case Mode::kRing: return "ring";
    case Mode::kHierarchical: return "hierarchical";
    case Mode::kHybrid: return "hybrid";
    case Mode::kAuto: return "auto";
  }
  return "?";
}

}  // namespace tally
