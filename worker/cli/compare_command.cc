// tally compare: the training job in the modes, codecs and network that the user names; table, JSON, HTML report.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "compress/codec.h"
#include "worker/cli/codec_setting.h"
#include "worker/cli/comparison_session.h"

namespace tally::cli {
namespace {

struct CompareOptions {
  std::vector<std::string> modes = {"ps", "ring"};
  std::vector<std::string> codecs = {"none", "int8", "topk"};
  std::vector<std::uint64_t> seeds = {1};
  std::vector<std::uint32_t> workers = {4};
  std::uint32_t servers = 2;
  std::string rate = "1gbit";
  std::string placement = "separate";
  std::string feedback = "on";
  std::uint64_t steps = 400;
  double target = 0;
  std::uint32_t dry_run = 0;
  std::uint32_t per_node = 0;
  std::vector<std::string> script;
  ConfigOptions config;
  JsonOption json;
  std::string report;
};

Result<Mode> ModeByName(const std::string& name) {
  for (const Mode mode : {Mode::kPs, Mode::kRing, Mode::kHierarchical, Mode::kHybrid, Mode::kAuto}) {
    if (name == ModeName(mode)) return mode;
  }
  return InvalidArgument("--modes: '" + name + "' is not one of ps, ring, hierarchical, hybrid, auto");
}

// A setting that is named twice runs once.
template <typename T>
std::vector<T> Distinct(const std::vector<T>& list) {
  std::vector<T> distinct;
  for (const T& item : list) {
    if (std::find(distinct.begin(), distinct.end(), item) == distinct.end()) distinct.push_back(item);
  }
  return distinct;
}

std::string CodecList() {
  std::string list;
  for (const std::string& name : CodecNames()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// Of one number of workers.
Status AddSettings(const CompareOptions& options, const CommandContext& context, Setting base,
                   std::vector<Setting>* settings) {
  for (const std::string& mode_name : Distinct(options.modes)) {
    TALLY_ASSIGN_OR_RETURN(base.mode, ModeByName(mode_name));
    base.servers = base.mode != Mode::kRing && base.mode != Mode::kHierarchical ? options.servers : 0;
    base.colocated = base.with_servers() && options.placement == "colocated";
    if (base.colocated && options.servers > base.nodes()) {
      return InvalidArgument("--ps-placement colocated: " + std::to_string(options.servers) + " servers do not fit on " +
                             std::to_string(base.nodes()) + " workers' NICs");
    }
    for (const std::string& codec_text : Distinct(options.codecs)) {
      // Its launcher variables are this process's, not the workers': only codec options and the like are read here.
      ConfigOptions given = options.config;
      given.overrides.push_back("aggregation.mode=ring");
      for (std::string& text : CodecOverrides(codec_text)) given.overrides.push_back(std::move(text));
      TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, given.Load(context.environment));
      base.compression = config.config.compression;
      base.worker_transport = config.config.link.transport;
      base.server_transport = config.config.servers.transport;
      base.codec_text = codec_text;
      TALLY_ASSIGN_OR_RETURN(const CodecTraits codec, TraitsOfCodec(base.compression.codec, base.compression));
      for (const bool feedback : {true, false}) {
        if (!codec.lossy && !feedback) continue;    // a lossless codec has nothing to feed back
        if (codec.momentum && !feedback) continue;  // its momentum is error feedback
        if (codec.lossy && options.feedback != "both" && feedback != (options.feedback == "on")) continue;
        base.compression.error_feedback = feedback;
        for (const std::uint64_t seed : Distinct(options.seeds)) {
          base.seed = seed;
          settings->push_back(base);
        }
      }
    }
  }
  return Status::Ok();
}

// The settings in the order of the options: seeds within feedback within codecs within modes within workers.
Result<std::vector<Setting>> MakeSettings(const CompareOptions& options, const CommandContext& context) {
  if (std::isnan(options.target)) return InvalidArgument("--target: expected a test accuracy from 0 to 1");
  Setting base;
  base.steps = options.steps;
  base.target = options.target;
  if (options.rate != "none") {
    base.rate = options.rate;
    TALLY_ASSIGN_OR_RETURN(base.rate_bits, ParseRate(options.rate));
  }
  const bool hierarchical = std::ranges::find(options.modes, ModeName(Mode::kHierarchical)) != options.modes.end();
  base.workers_per_node = options.per_node != 0 ? options.per_node : hierarchical ? 2 : 1;
  std::vector<Setting> settings;
  for (const std::uint32_t workers : Distinct(options.workers)) {
    base.workers = workers;
    TALLY_RETURN_IF_ERROR(AddSettings(options, context, base, &settings));
  }
  return settings;
}

int RunCompare(const CompareOptions& options, CommandContext& context) {
  if (options.dry_run > 0 || !options.script.empty()) {
    return context.console.Fail(InvalidArgument(
        "--dry-run: trying your own script comes with a later version (it needs the training frameworks' bindings); "
        "without it compare trains its built-in job"));
  }
  Result<std::vector<Setting>> settings = MakeSettings(options, context);
  if (!settings.ok()) return context.console.Fail(settings.status());

  ComparisonSession session;
  session.settings = *std::move(settings);
  session.config = options.config;
  session.json = options.json;
  session.report = options.report;
  return RunComparison(session, context);
}

}  // namespace

Action AddCompareCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<CompareOptions>();
  app.add_option("--modes", options->modes, "ps, ring, hierarchical (rings between nodes), hybrid, auto")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--codecs", options->codecs, "Codecs, each with options of its own: " + CodecList() + "; topk:ratio=0.001")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--error-feedback", options->feedback, "Of lossy codecs: on, off, or both as rows of their own")
      ->check(CLI::IsMember({"on", "off", "both"}))
      ->capture_default_str();
  app.add_option("--workers", options->workers, "Workers; several numbers: rows for each")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--servers", options->servers, "Servers of the modes that use them")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--rate", options->rate, "Emulated NIC of each process, e.g. 1gbit; none = loopback as it is")
      ->capture_default_str();
  app.add_option("--ps-placement", options->placement, "Servers on NICs of their own or on the workers'")
      ->check(CLI::IsMember({"separate", "colocated"}))
      ->capture_default_str();
  app.add_option("--per-node", options->per_node,
                 "Workers that share an emulated NIC and, in mode hierarchical, memory; default 1, with that mode 2")
      ->check(CLI::Range(1, 64));
  app.add_option("--steps", options->steps, "Training steps of each setting")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--seeds", options->seeds, "One row for each")->delimiter(',')->capture_default_str();
  app.add_option("--target", options->target, "Test accuracy whose time is measured, e.g. 0.8")
      ->check(CLI::Range(0.0, 1.0));
  AddJsonOption(app, &options->json);
  app.add_option("--report", options->report, "Write one self-contained HTML file")->type_name("FILE");
  AddConfigOptions(app, &options->config);
  app.add_option("--dry-run", options->dry_run, "Try your own script on N workers (not in this version)")->type_name("N");
  app.add_option("script", options->script, "With --dry-run: program and arguments, after --");
  app.footer(
      "Examples:\n"
      "  tally compare --modes ps,ring --codecs none,int8\n"
      "  tally compare --rate 100mbit --steps 100 --target 0.8 --json out.json --report out.html\n"
      "  tally compare --modes ring,hierarchical --per-node 2   machines of two workers each\n"
      "  tally compare --modes ps --ps-placement colocated --codecs none,topk,topk:ratio=0.001");
  return [options, &context] { return RunCompare(*options, context); };
}

}  // namespace tally::cli
