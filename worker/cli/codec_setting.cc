#include "worker/cli/codec_setting.h"

#include <algorithm>

namespace tally::cli {

std::vector<std::string> CodecOverrides(const std::string& text) {
  const std::size_t name_end = std::min(text.find(':'), text.size());
  std::vector<std::string> overrides = {"compression.codec=" + text.substr(0, name_end)};
  for (std::size_t from = name_end; from < text.size();) {
    const std::size_t to = std::min(text.find(':', from + 1), text.size());
    overrides.push_back("compression." + text.substr(from + 1, to - from - 1));
    from = to;
  }
  return overrides;
}

Result<CodecSetting> ParseCodecSetting(const std::string& text, bool error_feedback) {
  ConfigSources sources;
  sources.overrides = CodecOverrides(text);
  sources.overrides.push_back(std::string("compression.error_feedback=") + (error_feedback ? "true" : "false"));
  const auto loaded = LoadConfig(sources);
  if (!loaded.ok()) return loaded.status().WithContext("codec " + text);
  return CodecSetting{text, loaded->config.compression};
}

std::vector<std::string> CodecNames() {
  return {
#define TALLY_CODEC(id, name, factory) name,
#define TALLY_LINEAR_CODEC(id, name, factory) name,
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC
#undef TALLY_CODEC
  };
}

}  // namespace tally::cli
