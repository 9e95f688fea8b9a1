// A codec with options of its own, as commands take it: NAME[:OPTION=VALUE...], the options those of [compression].
#pragma once

#include <string>
#include <vector>

#include "common/config/config.h"
#include "common/status.h"

namespace tally::cli {

struct CodecSetting {
  std::string text;  // "topk:ratio=0.001"
  Config::Compression compression;
};
// "topk:ratio=0.001" -> "compression.codec=topk", "compression.ratio=0.001"; nothing is checked.
std::vector<std::string> CodecOverrides(const std::string& text);

// Everything else by default. Errors: kInvalidArgument.
Result<CodecSetting> ParseCodecSetting(const std::string& text, bool error_feedback);

// Every codec of the library, in the order of their numbers.
std::vector<std::string> CodecNames();

}  // namespace tally::cli
