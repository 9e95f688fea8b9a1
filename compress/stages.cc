#include "compress/stages.h"

namespace tally {
namespace {

constexpr std::uint64_t kPowerSgdStart = 10;  // its first gradients would spoil the warm start

std::uint64_t StartStep(const Config::Compression& options) {
  if (options.codec == "none") return 0;
  return options.start_step.value_or(options.codec == "powersgd" ? kPowerSgdStart : 0);
}

}  // namespace

std::vector<CodecStage> CodecStages(const Config::Compression& options) {
  std::vector<CodecStage> stages;
  std::uint64_t step = StartStep(options);
  if (step > 0) stages.push_back({.first_step = 0, .uncompressed = true, .options = options});
  for (const double ratio : options.warmup) {
    stages.push_back({.first_step = step, .options = options});
    stages.back().options.ratio = ratio;
    step += options.warmup_steps;
  }
  stages.push_back({.first_step = step, .options = options});
  return stages;
}

}  // namespace tally
