#include "worker/cli/comparison_session.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "worker/cli/comparison_run.h"
#include "worker/cli/comparison_table.h"
#include "worker/cli/output_file.h"
#include "worker/cli/prediction.h"
#include "worker/cli/report.h"

namespace tally::cli {
namespace {

constexpr int kWrongResultExit = 6;

// One updating line on a terminal; elsewhere a line at the start and the end of each setting.
class ProgressLine {
 public:
  ProgressLine(Console& console, std::size_t total) : console_(console), total_(total) {}

  void Begin(const Setting& setting) {
    ++number_;
    title_ = "[" + std::to_string(number_) + "/" + std::to_string(total_) + "] " + setting.Pattern() + " " +
             setting.Codec();
    console_.stderr_is_terminal() ? Update("starting") : console_.Note(title_);
  }
  void Update(std::string_view line) { console_.Progress(title_ + ": " + std::string(line)); }
  void End(const Row& row) {
    console_.Note(title_ + ": " + Fixed(row.samples_per_s, 0) + " samples/s, accuracy " +
                  Fixed(row.test_accuracy * 100, 1) + " %");
  }

 private:
  Console& console_;
  std::size_t total_;
  std::size_t number_ = 0;
  std::string title_;
};

Status CheckOutputs(const ComparisonSession& session) {
  TALLY_RETURN_IF_ERROR(session.json.Check());
  return session.report.empty() ? Status::Ok() : CheckOutput("--report", session.report);
}

// "of 9 settings", "of 7 settings; 2 have no formula".
std::string Unpredicted(const Comparison& comparison) {
  const auto without = std::ranges::count_if(comparison.rows, [](const Row& row) { return !row.predicted_comm_ms; });
  const std::size_t with = comparison.rows.size() - static_cast<std::size_t>(without);
  return "of " + std::to_string(with) + " settings" +
         (without == 0 ? "" : "; " + std::to_string(without) + " without a prediction");
}

void PrintResult(const Comparison& comparison, double seconds, Console& console, bool to_stderr) {
  const auto print = [&](const std::string& text) { to_stderr ? console.Note(text) : console.Print(text); };
  print("");
  print(ComparisonTable(comparison).Text());
  print("exposed ms: communication that the backward pass did not hide. MB/worker, MB/server: sent in a step.\n"
        "comm ms: a whole gradient exchanged with nothing beside it; model ms: the same as predicted from what links\n"
        "and codecs cost on this machine; off: the prediction's error.\n");
  if (const auto error = MedianPredictionError(comparison); error.has_value()) {
    print("The predictions' median error is " + Fixed(*error * 100, 0) + " % (" + Unpredicted(comparison) + ").");
  }
  print(Verdict(comparison));
  if (const std::string agreement = Agreement(comparison); !agreement.empty()) print(agreement);
  print(Provenance(comparison) + " " + Fixed(seconds, 0) + " s in all.");
}

}  // namespace

int RunComparison(const ComparisonSession& session, CommandContext& context) {
  const auto start = std::chrono::steady_clock::now();
  if (const Status outputs = CheckOutputs(session); !outputs.ok()) return context.console.Fail(outputs);
  const Result<ComparisonPrograms> programs = FindComparisonPrograms(context);
  if (!programs.ok()) return context.console.Fail(programs.status());

  context.console.Progress("measuring what links and codecs cost here …");
  const Result<MachineCosts> machine = MeasureMachine(session.settings);
  context.console.EndProgress();
  if (!machine.ok()) return context.console.Fail(machine.status().WithContext("loopback"));

  Comparison comparison;
  comparison.version = context.version;
  comparison.cpus = std::thread::hardware_concurrency();
  if (!session.settings.empty()) comparison.rate = session.settings.front().rate;
  ProgressLine progress(context.console, session.settings.size());
  ComparisonRun run{.programs = *programs,
                    .environment = context.environment,
                    .config_file = session.config.file,
                    .overrides = session.config.AllOverrides(),
                    .machine = &*machine,
                    .on_progress = [&](std::string_view line) { progress.Update(line); }};
  if (!comparison.rate.empty()) context.console.Note("Every process has an emulated NIC of " + comparison.rate + ".");

  int exit_code = 0;
  for (const Setting& setting : session.settings) {
    progress.Begin(setting);
    Result<Row> row = RunSetting(run, setting);
    if (!row.ok()) {
      exit_code = context.console.Fail(row.status());
      break;
    }
    progress.End(*row);
    if (!row->ranks_agree) {
      context.console.Warn(setting.Pattern() + " " + setting.Codec() + ": the ranks ended with different weights");
      exit_code = kWrongResultExit;
    }
    comparison.rows.push_back(*std::move(row));
  }
  if (comparison.rows.empty()) return exit_code;

  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  PrintResult(comparison, seconds, context.console, session.json.to_stdout());
  if (session.json.wanted()) {
    const Status written = session.json.Write(ToJson(comparison));
    if (!written.ok()) exit_code = context.console.Fail(written);
  }
  if (!session.report.empty()) {
    const Status written = WriteOutput("--report", session.report, HtmlReport(comparison));
    if (!written.ok()) exit_code = context.console.Fail(written);
  }
  return exit_code;
}

}  // namespace tally::cli
