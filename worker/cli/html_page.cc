#include "worker/cli/html_page.h"

namespace tally::cli {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5c6878; --rule: #e3e7ec; --warn: #b42318;
  --c0: #3569c9; --c1: #e08a2e; --c2: #8a97a8;
  --up: #d92d20; --down: #2f6fde;
  --s0: #667085; --s1: #2f6fde; --s2: #d9770b; --s3: #0d9488; --s4: #8b5cf6; --s5: #d92d20; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151b; --card: #1a2029; --ink: #e8ecf2; --soft: #9aa6b6; --rule: #2b3440; --warn: #ff8a7a;
  --c0: #6c9cf5; --c1: #f0a860; --c2: #74808f;
  --up: #ff7b6e; --down: #6ea3ff;
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
.side { grid-template-columns: repeat(auto-fit, minmax(min(100%, 240px), 1fr)); }
.wide { margin-top: 14px; overflow-x: auto; }
svg { width: 100%; height: auto; display: block; margin-top: 8px; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
svg .tick, svg .axis { fill: var(--soft); font-size: 11px; } svg .small { font-size: 10px; fill: var(--soft); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.c0 { fill: var(--c0); } .c1 { fill: var(--c1); } .c2 { fill: var(--c2); }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); }
.s3 { stroke: var(--s3); } .s4 { stroke: var(--s4); } .s5 { stroke: var(--s5); }
.before { fill: var(--c2); opacity: .55; } .after { fill: none; stroke: var(--s1); stroke-width: 1.5; }
.cells path { fill: none; stroke-width: 1; } .frame { fill: none; stroke: var(--rule); }
.up path { stroke: var(--up); } .down path { stroke: var(--down); }
.l1 { opacity: .25; } .l2 { opacity: .5; } .l3 { opacity: .75; }
.maps { display: grid; grid-template-columns: 1fr; gap: 2px; } .maps p { margin: 8px 0 -4px; font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); }
.legend svg { display: inline-block; width: 26px; height: 10px; margin: 0 6px 0 0; vertical-align: middle; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; margin-top: 8px; }
th, td { padding: 6px 7px; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; line-height: 1.25; }
tr:last-child td { border-bottom: 0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; } td.warn, p.warn { color: var(--warn); font-weight: 600; }
)css";

}  // namespace

std::string HtmlPageStart(std::string_view title) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
         "<title>" + EscapeHtml(title) + "</title><style>" + kStyle + "</style></head>\n<body><main>\n";
}

std::string HtmlPageEnd() { return "</main></body></html>\n"; }

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

}  // namespace tally::cli
