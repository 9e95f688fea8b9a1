#include "compress/stages.h"

#include <gtest/gtest.h>

#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

TEST(CodecStages, StartAndWarmUp) {
  const auto first_steps = [](const Config::Compression& options) {
    std::vector<std::uint64_t> steps;
    for (const CodecStage& stage : CodecStages(options)) steps.push_back(stage.first_step);
    return steps;
  };
  EXPECT_EQ(first_steps({}), (std::vector<std::uint64_t>{0}));
  EXPECT_EQ(first_steps(With(&Config::Compression::start_step, 7)), (std::vector<std::uint64_t>{0})) << "none";
  EXPECT_EQ(first_steps(With(&Config::Compression::codec, "powersgd")), (std::vector<std::uint64_t>{0, 10}));
  Config::Compression options = With(&Config::Compression::codec, "topk");
  EXPECT_EQ(first_steps(options), (std::vector<std::uint64_t>{0}));
  options.warmup = {0.25, 0.0625};
  options.warmup_steps = 3;
  EXPECT_EQ(first_steps(options), (std::vector<std::uint64_t>{0, 3, 6}));
  options.start_step = 7;
  const auto stages = CodecStages(options);
  EXPECT_EQ(first_steps(options), (std::vector<std::uint64_t>{0, 7, 10, 13}));
  EXPECT_TRUE(stages[0].uncompressed);
  EXPECT_FALSE(stages[1].uncompressed);
  EXPECT_EQ(stages[1].options.ratio, 0.25);
  EXPECT_EQ(stages[2].options.ratio, 0.0625);
  EXPECT_EQ(stages[3].options.ratio, options.ratio);
}

}  // namespace
}  // namespace tally
