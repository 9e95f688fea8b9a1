// tally bench codec: how fast codecs encode and decode on this machine's cores, beside a plain copy of the same run.
#pragma once

#include "worker/cli/command.h"

namespace tally::cli {

// As an AddCommand, of `tally bench`.
Action AddBenchCodec(CLI::App& app, CommandContext& context);

}  // namespace tally::cli
