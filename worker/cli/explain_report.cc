#include "worker/cli/explain_report.h"

#include <algorithm>
#include <cmath>

#include "worker/cli/html_page.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

constexpr std::size_t kMapRows = 32, kMapColumns = 64;
constexpr int kColors = 6;  // s0 to s5

std::string Percent(double fraction, int digits = 1) { return Fixed(fraction * 100, digits) + " %"; }

// Magnitude below which `share` of the values lie.
double MagnitudeAt(std::span<const float> values, double share) {
  std::vector<float> magnitudes(values.begin(), values.end());
  for (float& value : magnitudes) value = std::abs(value);
  const auto place = static_cast<std::ptrdiff_t>(share * static_cast<double>(magnitudes.size() - 1));
  std::nth_element(magnitudes.begin(), magnitudes.begin() + place, magnitudes.end());
  return static_cast<double>(magnitudes[static_cast<std::size_t>(place)]);
}

template <typename Value>
std::string Curves(std::span<const Explanation> codecs, bool percent, Value value) {
  LineChart chart;
  chart.x_title = "step";
  chart.percent_y = percent;
  for (std::size_t i = 0; i < codecs.size(); ++i) {
    ChartLine line{codecs[i].codec, static_cast<int>(i + 1) % kColors, i + 1 < kColors ? "" : "7 5", {}};
    for (std::size_t s = 0; s < codecs[i].steps.size(); ++s) {
      line.points.emplace_back(static_cast<double>(s + 1), value(codecs[i].steps[s]));
    }
    chart.lines.push_back(std::move(line));
  }
  return LineLegend(chart) + SvgLines(chart);
}

std::string Bytes(const ExplainedGradients& what, std::span<const Explanation> codecs) {
  BarChart chart{.series = {"a step"}, .unit = "KB", .digits = 2};
  chart.rows.push_back({"fp32", {4e-3 * static_cast<double>(what.gradients.elements())}});
  for (const Explanation& codec : codecs) {
    chart.rows.push_back({codec.codec, {1e-3 * static_cast<double>(codec.bytes)}});
  }
  return SvgBars(chart);
}

std::string Lost(std::span<const Explanation> codecs) {
  BarChart chart{.series = {"with error feedback", "without"}, .unit = "%"};
  for (const Explanation& codec : codecs) {
    chart.rows.push_back({codec.codec, {codec.lost * 100, codec.lost_without * 100}});
  }
  return BarLegend(chart.series) + SvgBars(chart);
}

// One codec's histogram and heat maps of the first step.
std::string Pictures(const ExplainedGradients& what, const Explanation& codec) {
  const std::span<const float> original = what.gradients.steps.front();
  // The tensor with the most elements is pictured.
  std::size_t start = 0, at = 0;
  const RecordedTensor* largest = &what.gradients.tensors.front();
  for (const RecordedTensor& tensor : what.gradients.tensors) {
    if (tensor.elements() > largest->elements()) {
      largest = &tensor;
      start = at;
    }
    at += tensor.elements();
  }
  const auto part = [&](std::span<const float> all) { return all.subspan(start, largest->elements()); };
  const double scale = std::max(MagnitudeAt(part(original), 0.98), 1e-30);
  const auto map = [&](const char* title, std::span<const float> values) {
    return "<p class=\"soft\">" + std::string(title) + "</p>" +
           SvgHeatMap({.values = part(values),
                       .rows = std::min<std::size_t>(largest->rows, kMapRows),
                       .columns = std::min<std::size_t>(largest->columns, kMapColumns),
                       .stride = largest->columns,
                       .scale = scale});
  };
  std::string html = "<p class=\"soft\">Values before (grey) and after (line), counts logarithmic</p>" +
                     SvgHistogram({.before = part(original),
                                   .after = part(codec.decoded),
                                   .reach = std::max(MagnitudeAt(part(original), 0.998), 1e-30)});
  html += "<div class=\"maps\">" + map("Gradient", original) + map("Decoded", codec.decoded) +
          map("Residual", codec.residual) + "</div>";
  for (const std::string& warning : codec.warnings) html += "<p class=\"warn\">" + EscapeHtml(warning) + "</p>";
  return Card(codec.codec, std::to_string(codec.bytes) + " bytes, " + Fixed(codec.ratio, 1) + " times smaller", html);
}

std::string NumberTable(std::span<const Explanation> codecs) {
  std::string html = "<section class=\"card wide\"><h2>All numbers</h2><table><tr><th>Codec</th>";
  for (const char* title : {"Bytes a step", "Times smaller", "Relative error", "Cosine", "Energy sent",
                            "Residual, last step", "Lost in sum", "Lost without feedback"}) {
    html += std::string("<th>") + title + "</th>";
  }
  html += "</tr>\n";
  for (const Explanation& codec : codecs) {
    html += "<tr><td>" + EscapeHtml(codec.codec) + "</td>";
    for (const std::string& cell :
         {std::to_string(codec.bytes), Fixed(codec.ratio, 2), Percent(codec.error), Fixed(codec.cosine, 4),
          Percent(codec.energy_sent), Fixed(codec.steps.back().residual, 3), Percent(codec.lost),
          Percent(codec.lost_without)}) {
      html += "<td>" + cell + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</table></section>\n";
}

}  // namespace

std::string ExplainReport(const ExplainedGradients& what, std::span<const Explanation> codecs) {
  const std::vector<RecordedTensor>& tensors = what.gradients.tensors;
  std::string subject = tensors.front().name + ", " + std::to_string(tensors.front().rows) + " x " +
                        std::to_string(tensors.front().columns);
  if (tensors.size() > 1) subject = std::to_string(tensors.size()) + " tensors";
  const std::string file = what.source.substr(what.source.rfind('/') + 1);
  std::string html = HtmlPageStart("Tally explain");
  html += "<h1>What codecs do to a gradient</h1>\n<p class=\"soft\">Tally " + EscapeHtml(what.version) + " · " +
          EscapeHtml(subject) + " · " + std::to_string(what.steps) + " steps of one worker · " +
          Percent(NonZeroShare(what.gradients), 0) + " of the elements are not zero · " + EscapeHtml(file) +
          "</p>\n<p class=\"verdict\">What a codec does not send stays in the residual and is added to the next "
          "gradient. The pictures show the first step, where the residual is still empty: gradient = decoded + "
          "residual.</p>\n";
  html += "<div class=\"charts side\">\n";
  for (const Explanation& codec : codecs) html += Pictures(what, codec);
  html += "</div>\n<p class=\"soft\">Heat maps: the first " + std::to_string(kMapRows) + " rows and " +
          std::to_string(kMapColumns) + " columns at most; red is above zero, blue below, one scale for all.</p>\n";
  html += "<div class=\"charts\">\n";
  html += Card("Bytes", "One step, scales, indices and all other metadata included", Bytes(what, codecs));
  html += Card("Lost in the sum", "What of the sum of all steps' gradients has not arrived at the end", Lost(codecs));
  html += Card("Energy sent", "Share of the energy of gradient plus residual that a step's message carries",
               Curves(codecs, true, [](const ExplainedStep& step) { return step.energy_sent; }));
  html += Card("Residual", "Its norm after each step, in units of the gradients' mean norm",
               Curves(codecs, false, [](const ExplainedStep& step) { return step.residual; }));
  return html + "</div>\n" + NumberTable(codecs) + HtmlPageEnd();
}

}  // namespace tally::cli
