// tally demo: the same training job through parameter servers and through a ring, with and without compression, on
// emulated NICs. Needs no configuration.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "worker/cli/comparison_session.h"

namespace tally::cli {
namespace {

constexpr const char* kRate = "1gbit";

struct DemoOptions {
  JsonOption json;
  std::string report;
};

std::vector<Setting> DemoSettings() {
  Setting base;
  base.rate = kRate;
  base.rate_bits = ParseRate(kRate).value();
  std::vector<Setting> settings;
  const auto add = [&](Mode mode, const char* codec, bool feedback, bool colocated) {
    Setting setting = base;
    setting.mode = mode;
    setting.servers = mode == Mode::kPs ? 2 : 0;
    setting.colocated = colocated;
    setting.compression.codec = codec;
    setting.compression.error_feedback = feedback;
    settings.push_back(setting);
  };
  for (const Mode mode : {Mode::kPs, Mode::kRing}) {
    for (const char* codec : {"none", "int8", "topk"}) add(mode, codec, true, false);
  }
  add(Mode::kPs, "none", true, true);
  add(Mode::kPs, "topk", false, false);
  return settings;
}

}  // namespace

Action AddDemoCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<DemoOptions>();
  AddJsonOption(app, &options->json);
  app.add_option("--report", options->report, "Write an HTML report there")->type_name("FILE");
  app.footer(
      "Trains a small network on Fashion-MNIST with 4 workers and 2 servers on this machine, 400 steps in each of 8\n"
      "settings, each process on an emulated 1 Gbit/s NIC; about two minutes. The last row shows what top-k does\n"
      "without error feedback.\n\n"
      "Examples:\n  tally demo\n  tally demo --report demo.html");
  return [options, &context] {
    ComparisonSession session;
    session.settings = DemoSettings();
    session.json = options->json;
    session.report = options->report;
    return RunComparison(session, context);
  };
}

}  // namespace tally::cli
