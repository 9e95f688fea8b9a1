// tally compare from its arguments to its JSON: a short training through servers and through a ring, as processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "benchmarks/mlp/data.h"
#include "tests/support/run_command.h"
#include "worker/cli/command.h"

namespace tally::cli {
namespace {

using testing::HasSubstr;

Ran Tally(const std::vector<std::string>& arguments, const std::string& program = TALLY_PROGRAM) {
  CommandContext context;
  context.environment = {{"PATH", "/usr/bin:/bin"}};
  for (const char* sanitizer : {"ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {  // children are instrumented, too
    if (const char* options = std::getenv(sanitizer)) context.environment[sanitizer] = options;
  }
  context.program = program;
  context.version = "1.2.3";
  return RunCommand(arguments, std::move(context));
}

TEST(CompareCommand, TrainsThroughServersAndARingWithTheSameBits) {
  const std::string pictures = std::string(mlp::kFashionMnistFolder) + "/train-images-idx3-ubyte.gz";
  ASSERT_TRUE(std::filesystem::exists(pictures)) << "Debian's package dataset-fashion-mnist is not installed";
  const std::string report = testing::TempDir() + "tally_compare_" + std::to_string(getpid()) + ".html";
  const Ran ran = Tally({"compare", "--modes", "ps,ring", "--codecs", "none", "--workers", "3", "--servers", "2",
                         "--steps", "6", "--rate", "1gbit", "--json", "-", "--report", report});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out);
  ASSERT_EQ(json.at("rows").size(), 2u);
  const nlohmann::json &ps = json.at("rows")[0], &ring = json.at("rows")[1];
  EXPECT_EQ(ps.at("exchange"), "owners");
  EXPECT_EQ(ring.at("schedule"), "ring");
  EXPECT_EQ(ps.at("weights_sha256"), ring.at("weights_sha256"));
  EXPECT_EQ(ps.at("test_accuracy"), ring.at("test_accuracy"));
  EXPECT_EQ(ps.at("nics"), 5);
  // A worker sends its whole gradient to the servers; in the ring 2 (N-1)/N of it.
  constexpr double kGradient = 4 * 374410;
  EXPECT_NEAR(ps.at("worker_sent_bytes_per_step").get<double>(), kGradient, 0.05 * kGradient);
  EXPECT_NEAR(ring.at("worker_sent_bytes_per_step").get<double>(), 4.0 / 3 * kGradient, 0.05 * kGradient);
  EXPECT_NEAR(ps.at("server_received_bytes_per_step").get<double>(), 1.5 * kGradient, 0.15 * kGradient);
  EXPECT_THAT(ran.err, HasSubstr("bit for bit"));
  EXPECT_THAT(ran.err, HasSubstr("emulated"));

  std::ostringstream html;
  html << std::ifstream(report).rdbuf();
  EXPECT_THAT(html.str(), HasSubstr("ring · none"));
  std::filesystem::remove(report);
}

TEST(CompareCommand, WorkersOfANodeSendWhatTheirNodeSendsOnceTogether) {
  const std::string pictures = std::string(mlp::kFashionMnistFolder) + "/train-images-idx3-ubyte.gz";
  ASSERT_TRUE(std::filesystem::exists(pictures)) << "Debian's package dataset-fashion-mnist is not installed";
  const Ran ran = Tally({"compare", "--modes", "hierarchical", "--codecs", "none", "--workers", "4", "--per-node", "2",
                         "--steps", "5", "--rate", "1gbit", "--json", "-"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json row = nlohmann::json::parse(ran.out).at("rows").at(0);
  EXPECT_EQ(row.at("mode"), "hierarchical");
  EXPECT_EQ(row.at("schedule"), "ring");
  EXPECT_EQ(row.at("nics"), 2);
  // A ring of two nodes sends each number once; each of a node's two workers carries half of them.
  constexpr double kGradient = 4 * 374410;
  EXPECT_NEAR(row.at("worker_sent_bytes_per_step").get<double>(), kGradient / 2, 0.05 * kGradient);
}

TEST(CompareCommand, CodecsHaveOptionsOfTheirOwn) {
  const std::string pictures = std::string(mlp::kFashionMnistFolder) + "/train-images-idx3-ubyte.gz";
  ASSERT_TRUE(std::filesystem::exists(pictures)) << "Debian's package dataset-fashion-mnist is not installed";
  const Ran ran = Tally({"compare", "--modes", "ps", "--codecs", "topk,topk:ratio=0.1", "--workers", "2", "--servers", "1",
                         "--steps", "4", "--rate", "1gbit", "--json", "-", "--set", "compression.min_compress_bytes=0"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out);
  const nlohmann::json &usual = json.at("rows").at(0), &more = json.at("rows").at(1);
  EXPECT_EQ(usual.at("codec"), "topk");
  EXPECT_EQ(more.at("codec"), "topk:ratio=0.1");
  EXPECT_GT(more.at("worker_sent_bytes_per_step").get<double>(),
            5 * usual.at("worker_sent_bytes_per_step").get<double>());
}

TEST(CompareCommand, RefusesWhatItCannotDo) {
  const Ran dry_run = Tally({"compare", "--dry-run", "2", "--", "python3", "train.py"});
  EXPECT_EQ(dry_run.exit_code, 2);
  EXPECT_THAT(dry_run.err, HasSubstr("later version"));
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"compare", "--modes", "star"},
           {"compare", "--per-node", "0"},
           {"compare", "--target", "nan"},
           {"compare", "--codecs", "zip"},
           {"compare", "--codecs", "topk:ratio=2"},
           {"compare", "--codecs", "topk:rate=0.1"},
           {"compare", "--codecs", "int8:reply=union"},
           {"compare", "--rate", "fast"},
           {"compare", "--steps", "0"},
           {"compare", "--ps-placement", "colocated", "--workers", "2", "--servers", "3"},
           {"compare", "--set", "compression.rat=0.1"}}) {
    const Ran ran = Tally(wrong);
    EXPECT_EQ(ran.exit_code, 2) << wrong[1] << " " << wrong[2];
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
}

TEST(CompareCommand, NamesAProgramThatIsNotThere) {
  const Ran ran = Tally({"demo"}, "/nonexistent/bin/tally");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("/nonexistent/bin/tally-server"));
}

}  // namespace
}  // namespace tally::cli
