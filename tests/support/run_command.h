// Runs the `tally` command inside a test, from its arguments to its exit code and what it printed.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/cli/command.h"

namespace tally::cli {

struct Ran {
  int exit_code = 0;
  std::string out, err;
};

// `context` as a test needs it: environment, program, version.
inline Ran RunCommand(const std::vector<std::string>& arguments, CommandContext context) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  Ran ran;
  ran.exit_code = RunTally(arguments, context);
  ran.out = testing::internal::GetCapturedStdout();
  ran.err = testing::internal::GetCapturedStderr();
  return ran;
}

}  // namespace tally::cli
