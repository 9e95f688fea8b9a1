// What the HTML reports share: a page with its style (light and dark, narrow and wide, no script and no external
// resource), cards and the legends of charts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker/cli/svg_chart.h"

namespace tally::cli {

// Up to the open <main>; colours are classes c0 to c2 (fill), s0 to s5 (stroke).
std::string HtmlPageStart(std::string_view title);
std::string HtmlPageEnd();

// `body` is HTML, the rest text.
std::string Card(const std::string& title, const std::string& note, const std::string& body);
std::string BarLegend(const std::vector<std::string>& series);
std::string LineLegend(const LineChart& chart);

}  // namespace tally::cli
