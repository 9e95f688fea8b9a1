// tally explain: what codecs do to a real gradient, step after step, in numbers and pictures. No network needed.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/cli/explain_report.h"
#include "worker/cli/options.h"
#include "worker/cli/output_file.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

struct ExplainOptions {
  std::vector<std::string> codecs = {"int8", "onebit", "topk", "powersgd"};
  std::string gradient;  // empty = the one shipped with the program
  std::size_t steps = 0;  // 0 = all
  std::string report;
  JsonOption json;
};

std::string ShippedGradient(const CommandContext& context) {
  return (std::filesystem::path(context.program).parent_path() / TALLY_DATA_FROM_PROGRAM / "fc1.gradients")
      .lexically_normal()
      .string();
}

nlohmann::json ToJson(const ExplainedGradients& what, std::span<const Explanation> codecs) {
  nlohmann::json tensors = nlohmann::json::array(), rows = nlohmann::json::array();
  for (const RecordedTensor& tensor : what.gradients.tensors) {
    tensors.push_back({{"name", tensor.name}, {"rows", tensor.rows}, {"columns", tensor.columns}});
  }
  for (const Explanation& codec : codecs) {
    nlohmann::json energy = nlohmann::json::array(), residual = nlohmann::json::array();
    for (const ExplainedStep& step : codec.steps) {
      energy.push_back(step.energy_sent);
      residual.push_back(step.residual);
    }
    rows.push_back({{"codec", codec.codec},
                    {"bytes", codec.bytes},
                    {"ratio", codec.ratio},
                    {"relative_error", codec.error},
                    {"cosine", codec.cosine},
                    {"energy_sent", energy},
                    {"residual_norm", residual},
                    {"lost", codec.lost},
                    {"lost_without_feedback", codec.lost_without},
                    {"warnings", codec.warnings}});
  }
  return {{"gradient",
           {{"file", what.source},
            {"tensors", tensors},
            {"elements", what.gradients.elements()},
            {"steps", what.steps},
            {"nonzero_share", NonZeroShare(what.gradients)}}},
          {"rows", rows}};
}

void PrintTable(std::span<const Explanation> codecs, Console& console) {
  const auto right = Table::Align::kRight;
  Table table({{"codec"}, {"bytes", right}, {"ratio", right}, {"error", right}, {"cosine", right},
               {"energy sent", right}, {"residual", right}, {"lost in sum", right}, {"without feedback", right}});
  const auto percent = [](double fraction) { return Fixed(fraction * 100, 1) + " %"; };
  for (const Explanation& codec : codecs) {
    table.AddRow({codec.codec, std::to_string(codec.bytes), Fixed(codec.ratio, 2), percent(codec.error),
                  Fixed(codec.cosine, 4), percent(codec.energy_sent), Fixed(codec.steps.back().residual, 3),
                  percent(codec.lost), percent(codec.lost_without)});
  }
  std::string text = table.Text();
  text.pop_back();
  console.Print(text);
}

int RunExplain(const ExplainOptions& options, CommandContext& context) {
  Console& console = context.console;
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  if (!options.report.empty()) {
    if (const Status output = CheckOutput("--report", options.report); !output.ok()) return console.Fail(output);
  }
  const std::string path = options.gradient.empty() ? ShippedGradient(context) : options.gradient;
  const auto gradients = ReadGradients(path);
  if (!gradients.ok()) return console.Fail(gradients.status());
  if (options.steps > gradients->steps.size()) {
    return console.Fail(InvalidArgument("--steps " + std::to_string(options.steps) + ": " + path + " holds " +
                                        std::to_string(gradients->steps.size())));
  }
  const ExplainedGradients what{*gradients, options.steps > 0 ? options.steps : gradients->steps.size(), path,
                                context.version};
  std::vector<Explanation> codecs;
  for (const std::string& codec : options.codecs) {
    auto explained = Explain(*gradients, what.steps, codec);
    if (!explained.ok()) return console.Fail(explained.status());
    codecs.push_back(*std::move(explained));
  }
  for (const Explanation& codec : codecs) {
    for (const std::string& warning : codec.warnings) console.Warn(warning);
  }
  if (!options.json.to_stdout()) {
    console.Note(std::to_string(what.steps) + " steps of " + std::to_string(gradients->elements()) + " elements, " +
                 Fixed(100 * NonZeroShare(*gradients), 0) + " % of them not zero: " + path);
    PrintTable(codecs, console);
  }
  if (!options.report.empty()) {
    const Status written = WriteOutput("--report", options.report, ExplainReport(what, codecs));
    if (!written.ok()) return console.Fail(written);
    console.Note("report: " + options.report);
  }
  if (options.json.wanted()) {
    if (const Status written = options.json.Write(ToJson(what, codecs)); !written.ok()) return console.Fail(written);
  }
  return 0;
}

}  // namespace

Action AddExplainCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ExplainOptions>();
  app.add_option("--codec", options->codecs, "Codecs, with options of [compression] if wanted: NAME[:OPTION=VALUE...]")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--gradient", options->gradient,
                 "What train_mlp --record-gradients wrote; default: a recording that comes with Tally")
      ->type_name("FILE");
  app.add_option("--steps", options->steps, "Only so many of the recorded steps")->check(CLI::PositiveNumber);
  app.add_option("--report", options->report, "Write the pictures as one HTML file")->type_name("FILE");
  AddJsonOption(app, &options->json);
  app.footer(
      "Each step encodes p = gradient + residual; what was not sent is the next residual. Every tensor of the\n"
      "recording is encoded, however small.\n"
      "  bytes        of a step, with scales, indices and all other metadata\n"
      "  error        |p - decoded| / |p|, mean over steps\n"
      "  energy sent  1 - error^2, mean over steps\n"
      "  residual     its norm after the last step, in units of the gradients' mean norm\n"
      "  lost in sum  what of the sum of all gradients has not arrived at the end; then the same without feedback\n\n"
      "Examples:\n"
      "  tally explain --report explain.html\n"
      "  tally explain --codec int8,topk:ratio=0.1,topk:ratio=0.001:topk_values=fp16\n"
      "  tally run -n 4 -- train_mlp --steps 120 --record-gradients all.gradients\n"
      "  tally explain --gradient all.gradients --codec topk --json -");
  return [options, &context] { return RunExplain(*options, context); };
}

}  // namespace tally::cli
