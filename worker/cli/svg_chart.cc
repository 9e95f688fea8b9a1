#include "worker/cli/svg_chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "worker/cli/table.h"

namespace tally::cli {
namespace {

std::string At(double value) { return Fixed(value, 1); }

std::string Text(double x, double y, std::string_view anchor, std::string_view css, std::string_view text) {
  return "<text x=\"" + At(x) + "\" y=\"" + At(y) + "\" text-anchor=\"" + std::string(anchor) + "\" class=\"" +
         std::string(css) + "\">" + EscapeHtml(text) + "</text>";
}

std::string Rule(double x1, double y1, double x2, double y2) {
  return "<line x1=\"" + At(x1) + "\" y1=\"" + At(y1) + "\" x2=\"" + At(x2) + "\" y2=\"" + At(y2) +
         "\" class=\"grid\"/>";
}

// The least of 1, 2, 5 times a power of ten that is at least `value`.
double NiceStep(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * 0.999) return factor * power;
  }
  return 10 * power;
}

std::string TickText(double value, double step) {
  return Fixed(value, step >= 1 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
}

std::string Open(double width, double height) {
  return "<svg viewBox=\"0 0 " + At(width) + " " + At(height) + "\" role=\"img\">";
}

constexpr double kBarWidth = 560, kLabelWidth = 158, kValueWidth = 64;

std::string BarRect(double x, double y, double width, double height, std::size_t series, const std::string& title) {
  return "<rect x=\"" + At(x) + "\" y=\"" + At(y) + "\" width=\"" + At(std::max(width, 0.5)) + "\" height=\"" +
         At(height) + "\" rx=\"2\" class=\"c" + std::to_string(series) + "\"><title>" + EscapeHtml(title) +
         "</title></rect>";
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      default: escaped += c;
    }
  }
  return escaped;
}

std::string SvgBars(const BarChart& chart) {
  const double thickness = chart.stacked ? 18 : 10;
  const double row_height = (chart.stacked ? 1 : static_cast<double>(chart.series.size())) * (thickness + 1) + 11;
  const double height = row_height * static_cast<double>(chart.rows.size()) + 24;
  double top = 0;
  for (const BarRow& row : chart.rows) {
    double total = 0;
    for (const double value : row.values) total = chart.stacked ? total + value : std::max(total, value);
    top = std::max(top, total);
  }
  const double step = NiceStep(top / 5);
  const double area = kBarWidth - kLabelWidth - kValueWidth;
  const double scale = area / (top > 0 ? top : 1);

  std::string svg = Open(kBarWidth, height);
  for (double tick = 0; tick <= top * 1.001; tick += step) {
    const double x = kLabelWidth + tick * scale;
    svg += Rule(x, 0, x, height - 20) + Text(x, height - 6, "middle", "tick", TickText(tick, step));
  }
  double y = 5;
  for (const BarRow& row : chart.rows) {
    svg += Text(kLabelWidth - 10, y + (row_height - 11) / 2 + 4, "end", "label", row.label);
    double x = kLabelWidth, line = y;
    for (std::size_t i = 0; i < row.values.size(); ++i) {
      const double width = row.values[i] * scale;
      const std::string amount = Fixed(row.values[i], chart.digits) + " " + chart.unit;
      svg += BarRect(x, line, width, thickness, i, row.label + ", " + chart.series[i] + ": " + amount);
      if (chart.stacked) {
        x += width;
      } else {
        svg += Text(kLabelWidth + width + 6, line + thickness - 1, "start", "value small", amount);
        line += thickness + 1;
      }
    }
    if (chart.stacked) {
      svg += Text(x + 6, y + 13, "start", "value", Fixed((x - kLabelWidth) / scale, chart.digits) + " " + chart.unit);
    }
    y += row_height;
  }
  return svg + "</svg>";
}

std::string SvgLines(const LineChart& chart) {
  constexpr double kWidth = 560, kHeight = 280, kLeft = 46, kRight = 14, kTop = 10, kBottom = 42;
  double x_min = HUGE_VAL, x_max = -HUGE_VAL, y_min = HUGE_VAL, y_max = -HUGE_VAL;
  const auto usable = [&](const std::pair<double, double>& p) { return !chart.log_x || p.first > 0; };
  const auto along = [&](double x) { return chart.log_x ? std::log10(x) : x; };
  for (const ChartLine& line : chart.lines) {
    for (const auto& point : line.points) {
      if (!usable(point)) continue;
      x_min = std::min(x_min, along(point.first));
      x_max = std::max(x_max, along(point.first));
      y_min = std::min(y_min, point.second);
      y_max = std::max(y_max, point.second);
    }
  }
  std::string svg = Open(kWidth, kHeight);
  if (x_min > x_max) return svg + Text(kWidth / 2, kHeight / 2, "middle", "label", "no data") + "</svg>";
  if (!chart.log_x) x_min = 0;
  if (x_max <= x_min) x_max = x_min + 1;
  const double y_step = NiceStep(std::max(y_max - y_min, 0.01) / 5);
  y_min = std::floor(y_min / y_step) * y_step;
  y_max = std::ceil(y_max / y_step + 1e-9) * y_step;
  const auto px = [&](double x) { return kLeft + (along(x) - x_min) / (x_max - x_min) * (kWidth - kLeft - kRight); };
  const auto py = [&](double y) {
    return kHeight - kBottom - (y - y_min) / (y_max - y_min) * (kHeight - kTop - kBottom);
  };

  for (double tick = y_min; tick <= y_max + y_step / 2; tick += y_step) {
    svg += Rule(kLeft, py(tick), kWidth - kRight, py(tick));
    svg += Text(kLeft - 8, py(tick) + 4, "end", "tick",
                chart.percent_y ? TickText(tick * 100, y_step * 100) + " %" : TickText(tick, y_step));
  }
  const auto x_tick = [&](double value, const std::string& text) {
    svg += Rule(px(value), kTop, px(value), kHeight - kBottom);
    svg += Text(px(value), kHeight - kBottom + 16, "middle", "tick", text);
  };
  if (chart.log_x) {
    for (double power = std::floor(x_min); power <= std::ceil(x_max); power += 1) {
      for (const double factor : {1.0, 3.0}) {
        const double value = factor * std::pow(10.0, power);
        if (along(value) >= x_min - 1e-9 && along(value) <= x_max + 1e-9) x_tick(value, TickText(value, value));
      }
    }
  } else {
    const double step = NiceStep((x_max - x_min) / 6);
    for (double tick = x_min; tick <= x_max * 1.001; tick += step) x_tick(tick, TickText(tick, step));
  }
  svg += Text(kLeft + (kWidth - kLeft - kRight) / 2, kHeight - 6, "middle", "axis", chart.x_title);

  for (const ChartLine& line : chart.lines) {
    std::string path;
    for (const auto& point : line.points) {
      if (usable(point)) path += (path.empty() ? "M" : "L") + At(px(point.first)) + " " + At(py(point.second));
    }
    if (path.empty()) continue;
    svg += "<path d=\"" + path + "\" class=\"line s" + std::to_string(line.color) + "\"";
    if (!line.dash.empty()) svg += " stroke-dasharray=\"" + line.dash + "\"";
    svg += "><title>" + EscapeHtml(line.label) + "</title></path>";
  }
  return svg + "</svg>";
}

std::string SvgHistogram(const Histogram& histogram) {
  constexpr double kWidth = 360, kHeight = 150, kLeft = 34, kRight = 6, kTop = 6, kBottom = 20;
  constexpr std::size_t kBins = 61;  // odd: zero lies in the middle of one
  const double reach = histogram.reach > 0 ? histogram.reach : 1;
  const auto count = [&](std::span<const float> values) {
    std::array<double, kBins> bins{};
    for (const float value : values) {
      const double place = std::clamp((static_cast<double>(value) / reach + 1) / 2, 0.0, 1.0) * kBins;
      bins[std::min(static_cast<std::size_t>(place), kBins - 1)] += 1;
    }
    return bins;
  };
  const auto before = count(histogram.before), after = count(histogram.after);
  const double decades = std::max(1.0, std::log10(std::max(*std::ranges::max_element(before),
                                                           *std::ranges::max_element(after))));
  const auto px = [&](std::size_t bin) {
    return kLeft + static_cast<double>(bin) / static_cast<double>(kBins) * (kWidth - kLeft - kRight);
  };
  const auto py = [&](double n) {  // one value stands a little above none
    const double up = n > 0 ? (std::log10(n) + 0.15) / (decades + 0.15) : 0;
    return kHeight - kBottom - up * (kHeight - kTop - kBottom);
  };
  std::string svg = Open(kWidth, kHeight);
  for (double power = 0; power <= decades; power += 1) {
    const double y = py(std::pow(10.0, power));
    svg += Rule(kLeft, y, kWidth - kRight, y) +
           Text(kLeft - 4, y + 4, "end", "tick", power < 6 ? Fixed(std::pow(10.0, power), 0) : "1e" + Fixed(power, 0));
  }
  const auto outline = [&](const std::array<double, kBins>& bins) {
    std::string path = "M" + At(px(0)) + " " + At(py(0));
    for (std::size_t i = 0; i < kBins; ++i) path += "V" + At(py(bins[i])) + "H" + At(px(i + 1));
    return path + "V" + At(py(0));
  };
  svg += "<path d=\"" + outline(before) + "Z\" class=\"before\"/><path d=\"" + outline(after) +
         "\" class=\"after\"/>";
  char ends[32];
  std::snprintf(ends, sizeof ends, "%.2g", reach);
  svg += Text(kLeft, kHeight - 5, "start", "tick", "-" + std::string(ends)) +
         Text((kLeft + kWidth - kRight) / 2, kHeight - 5, "middle", "tick", "0") +
         Text(kWidth - kRight, kHeight - 5, "end", "tick", ends);
  return svg + "</svg>";
}

std::string SvgHeatMap(const HeatMap& map) {
  constexpr std::array kLevels = {0.04, 0.2, 0.5, 0.9};
  const auto level = [&](std::size_t row, std::size_t column) {  // signed; 0 = blank
    const double value = static_cast<double>(map.values[row * map.stride + column]) / map.scale;
    int strength = 0;
    for (const double least : kLevels) strength += std::abs(value) >= least ? 1 : 0;
    return value < 0 ? -strength : strength;
  };
  std::array<std::string, 2 * kLevels.size() + 1> paths;  // of equal cells in a row, by level
  for (std::size_t row = 0; row < map.rows; ++row) {
    for (std::size_t column = 0; column < map.columns;) {
      const std::size_t first = column;
      const int here = level(row, first);
      while (column < map.columns && level(row, column) == here) ++column;
      if (here == 0) continue;
      paths[static_cast<std::size_t>(here + static_cast<int>(kLevels.size()))] +=
          "M" + std::to_string(first) + " " + std::to_string(row) + ".5h" + std::to_string(column - first);
    }
  }
  const std::string width = std::to_string(map.columns), height = std::to_string(map.rows);
  std::string svg = "<svg viewBox=\"0 0 " + width + " " + height + "\" role=\"img\" class=\"cells\" " +
                    "shape-rendering=\"crispEdges\">";
  for (const bool up : {true, false}) {
    svg += up ? "<g class=\"up\">" : "<g class=\"down\">";
    for (std::size_t strength = 1; strength <= kLevels.size(); ++strength) {
      const std::string& path = paths[up ? kLevels.size() + strength : kLevels.size() - strength];
      if (!path.empty()) svg += "<path class=\"l" + std::to_string(strength) + "\" d=\"" + path + "\"/>";
    }
    svg += "</g>";
  }
  return svg + "<rect width=\"" + width + "\" height=\"" + height +
         "\" class=\"frame\" stroke-width=\"0.2\"/></svg>";
}

}  // namespace tally::cli
