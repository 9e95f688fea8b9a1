// The HTML report of a comparison: one file, inline SVG, no script and no external resource, light and dark.
#pragma once

#include <string>

#include "worker/cli/comparison.h"

namespace tally::cli {

std::string HtmlReport(const Comparison& comparison);

}  // namespace tally::cli
