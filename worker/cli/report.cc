#include "worker/cli/report.h"

#include <algorithm>
#include <array>

#include "worker/cli/comparison_table.h"
#include "worker/cli/html_page.h"
#include "worker/cli/svg_chart.h"

namespace tally::cli {
namespace {

std::string Label(const Row& row) { return row.Pattern() + " · " + row.setting.Codec(); }

bool HasSeeds(const Comparison& comparison) {
  return std::any_of(comparison.rows.begin(), comparison.rows.end(),
                     [&](const Row& row) { return row.setting.seed != comparison.rows.front().setting.seed; });
}

std::string LabelIn(const Comparison& comparison, const Row& row) {
  return Label(row) + (HasSeeds(comparison) ? " #" + std::to_string(row.setting.seed) : "");
}

// Colour says the codec, dashes say the pattern.
int Color(const Comparison& comparison, const Setting& setting) {
  constexpr std::size_t kColors = 6;
  std::vector<std::string> codecs;  // in the order of the rows
  for (const Row& row : comparison.rows) {
    if (std::ranges::find(codecs, row.setting.Codec()) == codecs.end()) codecs.push_back(row.setting.Codec());
  }
  const auto index = static_cast<std::size_t>(std::ranges::find(codecs, setting.Codec()) - codecs.begin());
  return static_cast<int>(index % kColors);
}
const char* Dash(const Setting& setting) {
  if (setting.colocated) return "2 4";
  switch (setting.mode) {
    case Mode::kPs: return "";
    case Mode::kRing: return "7 5";
    default: return "10 4 2 4";
  }
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
    ChartLine line{LabelIn(comparison, row), Color(comparison, row.setting), Dash(row.setting), {}};
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
                            "Worker MB sent", "Server MB received", "Comm ms", "Model ms", "Off", "CPU s", "Loss", "Accuracy",
                            "Target after s"}) {
    html += std::string("<th>") + title + "</th>";
  }
  html += "</tr>\n";
  for (const Row& row : comparison.rows) {
    const auto cell = [&](const std::string& text, bool warn = false) {
      html += std::string(warn ? "<td class=\"warn\">" : "<td>") + EscapeHtml(text) + "</td>";
    };
    html += "<tr>";
    cell(row.Pattern());
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
    cell(row.PredictionError() ? Fixed(*row.PredictionError() * 100, 0) + " %" : "-");
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
  std::string html = HtmlPageStart("Tally comparison");
  html += "<h1>How this job's gradients are best added up</h1>\n";
  if (comparison.rows.empty()) return html + "<p>No setting was measured.</p>" + HtmlPageEnd();
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
               Bars(comparison, {.series = {"measured", "model"}, .unit = "ms"}, [](const Row& row) {
                 std::vector<double> values = {row.measured_comm_ms};
                 if (row.predicted_comm_ms) values.push_back(*row.predicted_comm_ms);
                 return values;
               }));
  const std::string method =
      "<p>Every setting trains from the same weights on the same batches; ranks end with the same bits. Times are "
      "medians over the steps after three for warming up. Exposed communication is the time for which a worker stood "
      "still.</p><p>The model takes the longer of the bytes through the busiest NIC and the CPU time of frames, bytes and "
      "codecs on this machine's cores, as measured before the first setting ran, and rounds of messages.</p><p>" +
      EscapeHtml(Provenance(comparison)) + "</p><p>" + EscapeHtml(Agreement(comparison)) + "</p>";
  html += Card("How to read this", "What the numbers can and cannot carry", method);
  html += "</div>\n" + RowTable(comparison);
  return html + HtmlPageEnd();
}

}  // namespace tally::cli
