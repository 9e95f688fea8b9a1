// Charts as inline SVG for HTML pages: horizontal bars, lines, histograms, heat maps. Colours are CSS classes of the
// page (c0, c1, … fill or stroke with a series colour), so that it decides what they look like in light and dark.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::cli {

// &, <, >, " as entities.
std::string EscapeHtml(std::string_view text);

struct BarRow {
  std::string label;
  std::vector<double> values;  // of the first series, >= 0; rows may lack the last ones
};
struct BarChart {
  std::vector<std::string> series = {};  // names, for tooltips; series i has class ci
  std::vector<BarRow> rows = {};
  bool stacked = false;  // segments of one bar, else a thin bar for each value
  std::string unit = {};  // "ms"
  int digits = 1;
};
std::string SvgBars(const BarChart& chart);

struct ChartLine {
  std::string label;
  int color = 0;     // class s<color>
  std::string dash;  // of stroke-dasharray; empty = solid
  std::vector<std::pair<double, double>> points;
};
struct LineChart {
  std::vector<ChartLine> lines;
  std::string x_title;
  bool log_x = false;     // points with x <= 0 are left out
  bool percent_y = true;  // y is a fraction
};
std::string SvgLines(const LineChart& chart);

// How many of the values fall into each of equal intervals of [-reach, reach], on a logarithmic scale; values beyond
// count at the ends. `before` as an area (class before), `after` as a line (class after).
struct Histogram {
  std::span<const float> before, after;
  double reach = 1;
};
std::string SvgHistogram(const Histogram& histogram);

// A cell per value, row by row: colour by sign (groups of class up and down), strength by |value| / scale in four
// levels (paths of class l1 to l4); nearly zero is left blank.
struct HeatMap {
  std::span<const float> values;  // rows of `stride`, of which `columns` are shown
  std::size_t rows = 0, columns = 0, stride = 0;
  double scale = 1;
};
std::string SvgHeatMap(const HeatMap& map);

}  // namespace tally::cli
