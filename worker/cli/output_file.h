// Files that a command writes for its user (--json FILE, --report FILE): tried before the work, written whole after it.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace tally::cli {

// Whether WriteOutput can be expected to write `path`; changes nothing, opens nothing. `option` ("--json") is named in
// the text. Errors: kInvalidArgument (a directory, no such folder, no permission).
Status CheckOutput(std::string_view option, const std::string& path);

// Writes `text`. A file that is absent or regular is replaced whole, at the end of symbolic links, and kept as it was
// on failure; anything else (a device, a pipe), and stdout's or stderr's own file, is written to as it is.
// Errors: kUnavailable (option, path, errno).
Status WriteOutput(std::string_view option, const std::string& path, std::string_view text);

}  // namespace tally::cli
