// codec_gates: does training with each codec end as well as without, and does error feedback carry it? The job of
// train_mlp with simulated workers and paired seeds; a table with the verdict on each gate.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "benchmarks/gates/summary.h"
#include "common/allocator.h"
#include "compress/codec.h"
#include "worker/cli/output_file.h"
#include "worker/cli/table.h"

namespace tally::gates {
namespace {

using cli::CodecSetting;
using cli::Fixed;
using cli::ParseCodecSetting;
using cli::Table;

struct Options {
  std::vector<std::string> codecs;  // empty = all of the library, topk with two ratios
  std::vector<std::uint32_t> workers = {4};
  std::uint64_t seeds = 5;
  TrainingJob job;
  double target = 0.84;
  std::string feedback = "auto";
  unsigned threads = 1;
  std::string data = mlp::kFashionMnistFolder;
  std::string json;
  bool resume = false;
  double stop_after_s = 0;
};

struct Task {
  std::uint32_t workers = 0;
  std::uint64_t seed = 0;
  CodecSetting setting;
};

std::vector<std::string> AllCodecs() {
  std::vector<std::string> names;
  for (const std::string& name : cli::CodecNames()) {
    names.push_back(name);
    if (name == "topk") names.emplace_back("topk:ratio=0.001");
    if (name == "powersgd") names.emplace_back("powersgd:powersgd_rank=2");
  }
  return names;
}

// Seed by seed, so that a run that is stopped has compared like with like.
Result<std::vector<Task>> Plan(const Options& options) {
  std::vector<CodecSetting> settings;
  for (const std::string& text : options.codecs.empty() ? AllCodecs() : options.codecs) {
    TALLY_ASSIGN_OR_RETURN(const CodecSetting with, ParseCodecSetting(text, true));
    TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(with.compression.codec, with.compression));
    if (traits.momentum) {  // feedback is built in
      settings.push_back(with);
      continue;
    }
    TALLY_ASSIGN_OR_RETURN(const CodecSetting without, ParseCodecSetting(text, false));
    const bool twin = options.feedback == "both" || (options.feedback == "auto" && traits.feedback_forced);
    if (!traits.lossy || options.feedback != "off") settings.push_back(with);
    if (traits.lossy && (twin || options.feedback == "off")) settings.push_back(without);
  }
  std::vector<Task> tasks;
  for (const std::uint32_t workers : options.workers) {
    for (std::uint64_t seed = 1; seed <= options.seeds; ++seed) {
      for (const CodecSetting& setting : settings) tasks.push_back({workers, seed, setting});
    }
  }
  return tasks;
}

Result<std::vector<TrainingResult>> ReadResults(const Options& options) {
  std::vector<TrainingResult> results;
  std::ifstream in(options.json);
  if (!in) return results;
  const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
  if (!json.is_object() || !json.contains("runs")) return Corrupt(options.json + ": not what codec_gates writes");
  const auto same = [&](const char* name, auto value) { return json.value(name, value) == value; };
  if (!same("batch", options.job.batch) || !same("lr", options.job.lr) || !same("momentum", options.job.momentum)) {
    return InvalidArgument(options.json + ": holds runs of another batch, learning rate or momentum");
  }
  for (const auto& run : json["runs"]) {
    TALLY_ASSIGN_OR_RETURN(TrainingResult result, TrainingResultFromJson(run));
    if (result.steps != options.job.steps) return InvalidArgument(options.json + ": holds runs of other steps");
    results.push_back(std::move(result));
  }
  return results;
}

bool IsDone(const Task& task, const std::vector<TrainingResult>& results) {
  return std::ranges::any_of(results, [&](const TrainingResult& r) {
    return r.codec == task.setting.text && r.error_feedback == task.setting.compression.error_feedback &&
           r.workers == task.workers && r.seed == task.seed;
  });
}

nlohmann::json ToJson(const Options& options, const std::vector<TrainingResult>& results) {
  nlohmann::json runs = nlohmann::json::array(), rows = nlohmann::json::array();
  for (const TrainingResult& result : results) runs.push_back(ToJson(result));
  for (const SummaryRow& row : Summarize(results, options.target)) {
    const auto difference = [](const std::optional<Estimate>& e) {
      return e ? nlohmann::json{{"mean", e->mean}, {"error", e->error}} : nlohmann::json(nullptr);
    };
    rows.push_back({{"codec", row.codec},
                    {"error_feedback", row.error_feedback},
                    {"workers", row.workers},
                    {"seeds", row.seeds},
                    {"push_bytes", row.push_bytes},
                    {"reply_bytes", row.reply_bytes},
                    {"accuracy", row.accuracy.mean},
                    {"accuracy_error", row.accuracy.error},
                    {"minus_none", difference(row.below_none)},
                    {"minus_no_feedback", difference(row.above_twin)},
                    {"reached_target", row.reached},
                    {"steps_to_target", row.reached > 0 ? nlohmann::json(row.steps_to_target) : nullptr},
                    {"gate", row.gate},
                    {"passed", row.passed ? nlohmann::json(*row.passed) : nullptr}});
  }
  return {{"batch", options.job.batch},       {"lr", options.job.lr}, {"momentum", options.job.momentum},
          {"target", options.target},         {"rows", rows},         {"runs", runs}};
}

std::string PlusMinus(const Estimate& estimate) {
  return Fixed(estimate.mean * 100, 2) + " ± " + Fixed(estimate.error * 100, 2);
}

void Print(const Options& options, const std::vector<TrainingResult>& results) {
  const auto right = Table::Align::kRight;
  Table table({{"codec"}, {"feedback"}, {"workers", right}, {"seeds", right}, {"bytes up", right},
               {"bytes down", right}, {"accuracy %", right}, {"minus none", right}, {"minus no feedback", right},
               {"steps to " + Fixed(options.target * 100, 0) + " %", right}, {"gate"}, {"verdict"}});
  for (const SummaryRow& row : Summarize(results, options.target)) {
    std::string steps = row.reached > 0 ? Fixed(row.steps_to_target, 0) : "-";
    if (row.reached > 0 && row.reached < row.seeds) steps += " (" + std::to_string(row.reached) + " seeds)";
    table.AddRow({row.codec, row.codec == "none" ? "-" : row.error_feedback ? "yes" : "no", std::to_string(row.workers),
                  std::to_string(row.seeds), std::to_string(row.push_bytes), std::to_string(row.reply_bytes),
                  PlusMinus(row.accuracy), row.below_none ? PlusMinus(*row.below_none) : "-",
                  row.above_twin ? PlusMinus(*row.above_twin) : "-", steps, row.gate,
                  row.passed ? (*row.passed ? "met" : "MISSED") : "-"});
  }
  std::fputs(table.Text().c_str(), stdout);
}

Status RunAll(const Options& options) {
  TALLY_ASSIGN_OR_RETURN(std::vector<Task> tasks, Plan(options));
  std::vector<TrainingResult> results;
  if (!options.json.empty()) {
    TALLY_RETURN_IF_ERROR(cli::CheckOutput("--json", options.json));
    if (options.resume) {
      TALLY_ASSIGN_OR_RETURN(results, ReadResults(options));
    }
  }
  std::erase_if(tasks, [&](const Task& task) { return IsDone(task, results); });
  std::map<std::uint32_t, TrainingData> data;
  for (const Task& task : tasks) {
    if (data.contains(task.workers)) continue;
    TALLY_ASSIGN_OR_RETURN(data[task.workers], LoadTrainingData(task.workers, options.data));
  }

  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto late = [&] { return options.stop_after_s > 0 && seconds() > options.stop_after_s; };
  std::mutex mutex;
  std::size_t next = 0, done = 0;
  Status failure;
  const auto work = [&] {
    for (;;) {
      const Task* task = nullptr;
      {
        const std::lock_guard lock(mutex);
        if (next == tasks.size() || !failure.ok() || late()) return;
        task = &tasks[next++];
      }
      auto result = RunTraining(data.at(task->workers), options.job, task->setting, task->seed, late);
      const std::lock_guard lock(mutex);
      if (!result.ok()) {
        if (!late() && failure.ok()) failure = result.status().WithContext(task->setting.text);
        return;
      }
      const char* feedback = task->setting.compression.error_feedback ? "" : ", no feedback";
      std::fprintf(stderr, "%zu/%zu  %.0f s  %u workers, seed %llu, %s%s: %.2f %%\n", ++done, tasks.size(), seconds(),
                   task->workers, static_cast<unsigned long long>(task->seed), task->setting.text.c_str(), feedback,
                   result->accuracy * 100);
      results.push_back(*std::move(result));
      if (options.json.empty()) continue;
      const Status written = cli::WriteOutput("--json", options.json, ToJson(options, results).dump(1) + "\n");
      if (!written.ok()) failure = written;
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  Print(options, results);
  return failure;
}

int Main(int argc, char** argv) {
  KeepLargeBlocks();
  Options options;
  CLI::App app("Trains the label-sorted Fashion-MNIST job with simulated workers under each codec, with and without "
               "error feedback, from the same seeds, and says whether each codec's gate holds.");
  app.add_option("--codecs", options.codecs, "Codecs with options, NAME[:OPTION=VALUE...]; default: all of the library")
      ->delimiter(',');
  app.add_option("--feedback", options.feedback, "auto (twins without it where a codec needs it), on, off, both")
      ->check(CLI::IsMember({"auto", "on", "off", "both"}))
      ->capture_default_str();
  app.add_option("--workers", options.workers, "Numbers of workers")->delimiter(',')->capture_default_str();
  app.add_option("--steps", options.job.steps, "Steps of a run")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seeds", options.seeds, "Seeds 1 to this for each setting")->capture_default_str();
  app.add_option("--batch", options.job.batch, "Pictures per worker and step")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--lr", options.job.lr, "Learning rate")->capture_default_str();
  app.add_option("--momentum", options.job.momentum, "Momentum")->capture_default_str();
  app.add_option("--eval-every", options.job.eval_every, "Steps between points of the curve")->capture_default_str();
  app.add_option("--target", options.target, "Accuracy whose steps are counted")->capture_default_str();
  app.add_option("--threads", options.threads, "Runs at the same time")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--data", options.data, "Folder of Debian's package dataset-fashion-mnist")->capture_default_str();
  app.add_option("--json", options.json, "Write every run and the summary, after each run")->type_name("FILE");
  app.add_flag("--resume", options.resume, "Keep the runs that the --json file holds and do those that it lacks");
  app.add_option("--stop-after", options.stop_after_s, "Seconds after which no result is waited for; 0 = never")
      ->capture_default_str();
  app.footer("Examples:\n"
             "  codec_gates --seeds 1 --steps 300 --codecs none,int8,topk\n"
             "  codec_gates --json gates.json --threads 2\n"
             "  codec_gates --json gates.json --resume --codecs none,topk:ratio=0.1:topk_values=fp16 --workers 4,16");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : ExitCode(StatusKind::kInvalidArgument);
  }
  const Status status = RunAll(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "codec_gates: %s\n", status.ToString().c_str());
  return ExitCode(status.kind());
}

}  // namespace
}  // namespace tally::gates

int main(int argc, char** argv) { return tally::gates::Main(argc, argv); }
