#include "worker/cli/report.h"

#include <algorithm>
#include <array>

#include "worker/cli/comparison_table.h"
#include "worker/cli/svg_chart.h"

namespace tally::cli {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5c6878; --rule: #e3e7ec; --warn: #b42318;
  --c0: #3569c9; --c1: #e08a2e; --c2: #8a97a8;
  --s0: #667085; --s1: #2f6fde; --s2: #d9770b; --s3: #0d9488; --s4: #8b5cf6; --s5: #d92d20; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151b; --card: #1a2029; --ink: #e8ecf2; --soft: #9aa6b6; --rule: #2b3440; --warn: #ff8a7a;
  --c0: #6c9cf5; --c1: #f0a860; --c2: #74808f;
  --s0: #a3afbf; --s1: #6ea3ff; --s2: #f5a34a; --s3: #3ccabb; --s4: #b69cff; --s5: #ff7b6e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 48px; }
h1 { font-size: 26px; line-height: 1.2; margin: 0 0 4px; }
h2 { font-size: 16px; margin: 0 0 2px; }
p { margin: 0 0 10px; } .soft { color: var(--soft); }
.verdict { font-size: 17px; max-width: 80ch; margin: 16px 0 20px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr)); gap: 14px; margin-bottom: 14px; }
.facts b { display: block; font-size: 24px; line-height: 1.25; font-variant-numeric: tabular-nums; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px; }
.wide { margin-top: 14px; overflow-x: auto; }
svg { width: 100%; height: auto; display: block; margin-top: 8px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .tick, svg .axis { fill: var(--soft); font-size: 11px; } svg .small { font-size: 10px; fill: var(--soft); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); }
.s3 { stroke: var(--s3); } .s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); }
.legend svg { display: inline-block; width: 26px; height: 10px; margin: 0 6px 0 0; vertical-align: middle; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; margin-top: 8px; }
th, td { padding: 6px 7px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; line-height: 1.25; }
tr:last-child td { border-bottom: 0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } td.warn { color: var(--warn); font-weight: 600; }
)css";

std::string Label(const Row& row) { return row.setting.Pattern() + " · " + row.setting.Codec(); }

bool HasSeeds(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(),
                     [&](const Row& row) { return row.setting.seed != comparison.rows.front().setting.seed; });
}

std::string LabelIn(const Comparison& comparison, const Row& row) {
  return Label(row) + (HasSeeds(comparison) ? " #" + std::to_string(row.setting.seed) : "");
}

// Colour says the codec, dashes say the pattern.
int Color(const Setting& setting) {
  if (setting.Codec() != setting.compression.codec) return 5;
  constexpr std::array<const char*, 5> kCodecs = {"none", "int8", "topk", "fp16", "bf16"};
  const auto* found = std::find(kCodecs.begin(), kCodecs.end(), setting.compression.codec);
  return static_cast<int>(found - kCodecs.begin()) % 5;
}
const char* Dash(const Setting& setting) {
  if (setting.colocated) return "2 4";
  switch (setting.mode) {
    case Mode::kPs: return "";
    case Mode::kRing: return "7 5";
    default: return "10 4 2 4";
  }
}

std::string Card(const std::string& title, const std::string& note, const std::string& body) {
  return "<section class=\"card\"><h2>" + EscapeHtml(title) + "</h2><p class=\"soft\">" + EscapeHtml(note) + "</p>" +
         body + "</section>\n";
}

std::string BarLegend(const std::vector<std::string>& series) {
  std::string html = "<div class=\"legend\">";
  for (std::size_t i = 0; i < series.size(); ++i) {
    html += "<span><svg viewBox=\"0 0 26 10\"><rect width=\"26\" height=\"10\" rx=\"2\" class=\"c" + std::to_string(i) +
            "\"/></svg>" + EscapeHtml(series[i]) + "</span>";
  }
  return html + "</div>";
}

std::string LineLegend(const LineChart& chart) {
  std::string html = "<div class=\"legend\">";
  for (const ChartLine& line : chart.lines) {
    html += "<span><svg viewBox=\"0 0 26 10\"><path d=\"M0 5L26 5\" class=\"line s" + std::to_string(line.color) +
            "\" stroke-dasharray=\"" + line.dash + "\"/></svg>" + EscapeHtml(line.label) + "</span>";
  }
  return html + "</div>";
}

template <typename Values>
std::string Bars(const Comparison& comparison, BarChart chart, Values values) {
  for (const Row& row : comparison.rows) chart.rows.push_back({LabelIn(comparison, row), values(row)});
  return BarLegend(chart.series) + SvgBars(chart);
}

template <typename Along>
std::string Curves(const Comparison& comparison, const std::string& x_title, bool log_x, Along along) {
  LineChart chart;
  chart.x_title = x_title;
  chart.log_x = log_x;
  for (const Row& row : comparison.rows) {
    ChartLine line{LabelIn(comparison, row), Color(row.setting), Dash(row.setting), {}};
    for (const CurvePoint& point : row.curve) line.points.emplace_back(along(row, point), point.accuracy);
    chart.lines.push_back(std::move(line));
  }
  return LineLegend(chart) + SvgLines(chart);
}

std::string Facts(const Comparison& comparison) {
  const Row* most = Winner(comparison);
  const auto best = std::max_element(comparison.rows.begin(), comparison.rows.end(), [](const Row& a, const Row& b) {
    return a.test_accuracy < b.test_accuracy;
  });
  const auto least = std::min_element(comparison.rows.begin(), comparison.rows.end(), [](const Row& a, const Row& b) {
    return a.worker_sent_bytes < b.worker_sent_bytes;
  });
  const auto fact = [](const std::string& value, const std::string& what, const std::string& which) {
    return "<div class=\"card\"><span class=\"soft\">" + EscapeHtml(what) + "</span><b>" + EscapeHtml(value) +
           "</b><span class=\"soft\">" + EscapeHtml(which) + "</span></div>";
  };
  return "<div class=\"facts\">" + fact(Fixed(most->samples_per_s, 0) + " /s", "Fastest that learned", Label(*most)) +
         fact(Fixed(best->test_accuracy * 100, 1) + " %", "Best test accuracy", Label(*best)) +
         fact(HumanBytes(least->worker_sent_bytes), "Least sent by a worker, a step", Label(*least)) +
         fact(comparison.rate.empty() ? "loopback" : comparison.rate, "Network",
              comparison.rate.empty() ? "not paced" : "emulated, each process") +
         "</div>\n";
}

std::string RowTable(const Comparison& comparison) {
  double best = 0;
  for (const Row& row : comparison.rows) best = std::max(best, row.test_accuracy);
  std::string html = "<section class=\"card wide\"><h2>All numbers</h2><table><tr>";
  for (const char* title : {"Pattern", "Codec", "Seed", "NICs", "Samples per s", "Step ms", "Exposed ms", "Share",
                            "Worker MB sent", "Server MB received", "Comm ms", "Model ms", "CPU s", "Loss", "Accuracy",
                            "Target after s"}) {
    html += std::string("<th>") + title + "</th>";
  }
  html += "</tr>\n";
  for (const Row& row : comparison.rows) {
    const auto cell = [&](const std::string& text, bool warn = false) {
      html += std::string(warn ? "<td class=\"warn\">" : "<td>") + EscapeHtml(text) + "</td>";
    };
    html += "<tr>";
    cell(row.setting.Pattern());
    cell(row.setting.Codec());
    cell(std::to_string(row.setting.seed));
    cell(std::to_string(row.setting.nics()));
    cell(Fixed(row.samples_per_s, 0));
    cell(Fixed(row.step_ms, 2));
    cell(Fixed(row.comm_exposed_ms, 2));
    cell(Fixed(row.comm_share * 100, 0) + " %");
    cell(Fixed(row.worker_sent_bytes / 1e6, 3));
    cell(row.setting.with_servers() ? Fixed(row.server_received_bytes / 1e6, 3) : "-");
    cell(Fixed(row.measured_comm_ms, 2));
    cell(row.predicted_comm_ms ? Fixed(*row.predicted_comm_ms, 2) : "-");
    cell(Fixed(row.comm_cpu_s, 1));
    cell(Fixed(row.final_loss, 3));
    cell(Fixed(row.test_accuracy * 100, 2) + " %", row.test_accuracy < best - kAccuracySlack);
    cell(row.time_to_target_s ? Fixed(*row.time_to_target_s, 1) : "-");
    html += "</tr>\n";
  }
  return html + "</table></section>\n";
}

}  // namespace

std::string HtmlReport(const Comparison& comparison) {
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Tally comparison</title><style>" + std::string(kStyle) + "</style></head>\n<body><main>\n";
  html += "<h1>How this job's gradients are best added up</h1>\n";
  if (comparison.rows.empty()) return html + "<p>No setting was measured.</p></main></body></html>\n";
  const Setting& first = comparison.rows.front().setting;
  html += "<p class=\"soft\">Tally " + EscapeHtml(comparison.version) + " · " + std::to_string(first.workers) +
          " workers, " + std::to_string(first.steps) + " steps of a five-layer network on Fashion-MNIST, each worker " +
          "with few of the classes</p>\n";
  html += "<p class=\"verdict\">" + EscapeHtml(Verdict(comparison)) + "</p>\n" + Facts(comparison);

  html += "<div class=\"charts\">\n";
  html += Card("Where a step's time goes", "Median step, ms",
               Bars(comparison, {.series = {"computation", "exposed communication"}, .stacked = true, .unit = "ms"},
                    [](const Row& row) { return std::vector<double>{row.compute_ms(), row.comm_exposed_ms}; }));
  html += Card("Bytes of a step", "At the sockets, headers included, MB",
               Bars(comparison, {.series = {"sent by a worker", "received by a worker", "received by a server"},
                                 .unit = "MB", .digits = 2},
                    [](const Row& row) {
                      std::vector<double> values = {row.worker_sent_bytes / 1e6, row.worker_received_bytes / 1e6};
                      if (row.setting.with_servers()) values.push_back(row.server_received_bytes / 1e6);
                      return values;
                    }));
  html += Card("Accuracy over time", "2,000 test pictures, evaluations not counted",
               Curves(comparison, "seconds of training", false,
                      [](const Row&, const CurvePoint& point) { return point.seconds; }));
  html += Card("Accuracy over bytes", "2,000 test pictures, logarithmic",
               Curves(comparison, "MB sent by a worker", true, [](const Row& row, const CurvePoint& point) {
                 return row.worker_sent_bytes * static_cast<double>(point.step) / 1e6;
               }));
  html += Card("Measured against predicted", "One whole gradient exchanged with nothing beside it, ms",
               Bars(comparison, {.series = {"measured", "closed-form model"}, .unit = "ms"}, [](const Row& row) {
                 std::vector<double> values = {row.measured_comm_ms};
                 if (row.predicted_comm_ms) values.push_back(*row.predicted_comm_ms);
                 return values;
               }));
  const std::string method =
      "<p>Every setting trains from the same weights on the same batches; ranks end with the same bits. Times are "
      "medians over the steps after three for warming up. Exposed communication is the time for which a worker stood "
      "still.</p><p>The model counts bytes through the busiest NIC and 50 µs a message; it knows no CPU. Where measured "
      "lies far above it, workers and servers were competing for this machine's cores.</p><p>" +
      EscapeHtml(Provenance(comparison)) + "</p><p>" + EscapeHtml(Agreement(comparison)) + "</p>";
  html += Card("How to read this", "What the numbers can and cannot carry", method);
  html += "</div>\n" + RowTable(comparison);
  return html + "</main></body></html>\n";
}

}  // namespace tally::cli
