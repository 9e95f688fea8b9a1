// The `tally` command from its arguments to its exit code, and the helpers that commands share.
#include "common/human.h"
#include "worker/cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/run_command.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

using ::testing::HasSubstr;

Ran Tally(const std::vector<std::string>& arguments, std::map<std::string, std::string> environment = {}) {
  CommandContext context;
  environment.emplace("PATH", "/usr/bin:/bin");
  context.environment = std::move(environment);
  context.version = "1.2.3";
  return RunCommand(arguments, std::move(context));
}

TEST(Command, VersionHelpAndUsage) {
  EXPECT_EQ(Tally({"--version"}).out, "tally 1.2.3\n");
  EXPECT_EQ(Tally({"--help"}).exit_code, 0);
  for (const char* command : {"run", "config"}) {
    const Ran help = Tally({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_THAT(help.out, HasSubstr("Examples:"));
  }
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {}, {"nothing"}, {"run"}, {"config"}, {"run", "-n", "2"}, {"config", "check"}, {"run", "-n", "x", "true"}}) {
    const Ran ran = Tally(wrong);
    EXPECT_EQ(ran.exit_code, 2);
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
}

TEST(Command, BenchCodecMeasuresWhatIsAsked) {
  const Ran ran = Tally({"bench", "codec", "--codecs", "int8,topk", "--ops", "encode_ef,decode_add", "--threads", "1,2",
                         "--elements", "70000", "--runs", "7", "--plain", "--peer", "--json", "-"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json result = nlohmann::json::parse(ran.out, nullptr, false);
  ASSERT_TRUE(result.is_object()) << ran.out;
  EXPECT_GT(result["copy_gbs"], 0.0);
  ASSERT_EQ(result["rows"].size(), 2U * (2 * 2 * 2 + 1)) << "threads, codecs, operations, targets; the peer";
  for (const auto& row : result["rows"]) {
    EXPECT_EQ(row["elements"], 70000);
    EXPECT_GT(row["input_gbs"], 0.0);
    EXPECT_NEAR(row["traffic_gbs"], row["input_gbs"].get<double>() / 4 * row["bytes_per_element"].get<double>(), 1e-6);
    if (row["codec"] == "int8") {
      EXPECT_EQ(row["encoded_bytes"], 70000 + 274) << "a scale for every 256";
      const double expected = (row["op"] == "encode_ef" ? 12.0 : 8.0) + 1.0 + 274.0 / 70000;
      EXPECT_NEAR(row["bytes_per_element"], expected, 1e-9);
    }
  }
  const Ran table = Tally({"bench", "codec", "--codecs", "onebit", "--ops", "decode", "--elements", "5000"});
  EXPECT_EQ(table.exit_code, 0);
  EXPECT_THAT(table.out, HasSubstr("onebit"));
  EXPECT_EQ(Tally({"bench", "codec", "--codecs", "int9"}).exit_code, 2);
  EXPECT_EQ(Tally({"bench", "codec", "--ops", "guess"}).exit_code, 2);
  EXPECT_THAT(Tally({"bench", "codec", "--help"}).out, HasSubstr("Examples:"));
}

// 10^9 bytes at 10^9 bytes per second and no cost of a round, so that times are the formulas' factors.
TEST(Command, ModelGivesTheFormulas) {
  const auto times = [](const std::string& codec, std::uint32_t workers, std::uint32_t servers) {
    const Ran ran = Tally({"model", "--codec", codec, "--workers", std::to_string(workers), "--servers",
                           std::to_string(servers), "--bytes", "1GB", "--rate", "1GBps", "--alpha", "0s", "--json", "-"});
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    const nlohmann::json result = nlohmann::json::parse(ran.out, nullptr, false);
    return result.is_object() ? result["rows"][0] : nlohmann::json();
  };
  const auto near = [](const nlohmann::json& time, double expected) {
    EXPECT_NEAR(time.get<double>(), expected, 1e-9);
  };
  const nlohmann::json none = times("none", 8, 4);
  near(none["ps_central_s"], 8);
  near(none["ps_sharded_s"], 2);
  near(none["ps_colocated_s"], 1 + 6.0 / 4);
  near(none["ring_s"], 14.0 / 8);
  near(none["direct_s"], 14.0 / 8);
  near(none["tree_s"], 2);
  near(none["hybrid_s"], 2.0 * 8 * 7 / (64 + 32 - 8));
  const double int8 = 257.0 / 1024, sums = 513.0 / 1024;
  near(times("int8", 8, 4)["ps_sharded_s"], 2 * int8);
  near(times("int8", 8, 4)["ring_s"], 14.0 / 8);
  near(times("int8_shared", 8, 4)["ps_sharded_s"], 2 * sums);
  near(times("randomk", 8, 4)["ring_s"], 14.0 / 8 * 656 / 65536);
  near(times("0.25", 8, 8)["ps_sharded_s"], 0.25);
}

TEST(Command, ConfigShow) {
  const Ran toml = Tally({"config", "show", "--origin"}, {{"TALLY_COMPRESSION_CODEC", "int8"}});
  EXPECT_EQ(toml.exit_code, 0);
  EXPECT_THAT(toml.out, HasSubstr("codec = \"int8\""));
  EXPECT_THAT(toml.out, HasSubstr("# TALLY_COMPRESSION_CODEC"));
  const Ran json = Tally({"config", "show", "--json", "-", "--set", "link.rate=1gbit"});
  const nlohmann::json parsed = nlohmann::json::parse(json.out, nullptr, false);
  ASSERT_TRUE(parsed.is_object()) << json.out;
  bool found = false;
  for (const auto& key : parsed["keys"]) {
    EXPECT_FALSE(key["value"].is_discarded()) << key["name"];
    if (key["name"] != "link.rate") continue;
    found = true;
    EXPECT_EQ(key["value"], "1gbit");
    EXPECT_EQ(key["origin"], "--set");
    EXPECT_EQ(key["scope"], "process");
  }
  EXPECT_TRUE(found);
}

TEST(Command, ConfigCheck) {
  const std::string path = ::testing::TempDir() + "tally_cli_" + std::to_string(getpid()) + ".toml";
  std::ofstream(path) << "[job]\nworkers = 4\n";
  EXPECT_EQ(Tally({"config", "check", path}).exit_code, 0);
  std::ofstream(path) << "[job]\nworkrs = 4\n";
  const Ran bad = Tally({"config", "check", path});
  std::remove(path.c_str());
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr(path + ":2: no setting \"job.workrs\"; did you mean 'job.workers'?"));
}

TEST(Command, RunGivesTheFirstFailuresExitCode) {
  EXPECT_EQ(Tally({"run", "-n", "2", "--", "true"}).exit_code, 0);
  const Ran failed = Tally({"run", "-n", "3", "--grace", "200ms", "--prefix", "--", "sh", "-c",
                            "echo $RANK; [ $RANK != 1 ] || exit 7; sleep 60"});
  EXPECT_EQ(failed.exit_code, 7);
  EXPECT_THAT(failed.out, HasSubstr("[rank 2] 2\n"));
  EXPECT_THAT(failed.err, HasSubstr("tally run: rank 1"));
  EXPECT_THAT(failed.err, HasSubstr("exited with code 7"));
  EXPECT_EQ(Tally({"run", "-n", "1", "--timeout", "100ms", "--grace", "100ms", "sleep", "60"}).exit_code, 3);
  EXPECT_EQ(Tally({"run", "-n", "1", "no-such-program-here"}).exit_code, 2);
}

TEST(Command, UnknownWordsAreNamed) {
  EXPECT_THAT(Tally({"foo", "bar"}).err, HasSubstr("'foo'"));
  EXPECT_THAT(Tally({"config", "foo"}).err, HasSubstr("'foo' of config"));
  EXPECT_THAT(Tally({"config", "show", "--set", "step.timeout=99999999999h"}).err, HasSubstr("out of range"));
}

TEST(Command, OutputsAreTriedBeforeTheWork) {
  for (const std::string path : {"/nonexistent/x.json", "/tmp"}) {
    const Ran run = Tally({"run", "-n", "1", "--prefix", "--json", path, "--", "echo", "ran"});
    EXPECT_EQ(run.exit_code, 2);
    EXPECT_EQ(run.out, "");
    EXPECT_EQ(Tally({"model", "--json", path}).exit_code, 2);
    EXPECT_EQ(Tally({"bench", "allreduce", "--json", path}).exit_code, 2);
    EXPECT_EQ(Tally({"compare", "--report", path}).exit_code, 2);
  }
}

TEST(Command, OutputsReplaceFilesOnly) {
  const std::string base = ::testing::TempDir() + "tally_output_" + std::to_string(getpid());
  ASSERT_EQ(symlink("/dev/full", (base + ".full").c_str()), 0);
  EXPECT_EQ(Tally({"model", "--json", base + ".full"}).exit_code, 1);
  EXPECT_EQ(access((base + ".full.part").c_str(), F_OK), -1);
  ASSERT_EQ(symlink((base + ".end").c_str(), (base + ".link").c_str()), 0);  // to a file that is not there yet
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Tally({"model", "--json", base + ".link"}).exit_code, 0);
    std::ifstream in(base + ".end");
    EXPECT_TRUE(nlohmann::json::parse(in, nullptr, false).is_object());
  }
  for (const char* link : {".full", ".link"}) {
    char end[256];
    EXPECT_GT(readlink((base + link).c_str(), end, sizeof end), 0) << link;
    std::remove((base + link).c_str());
  }
  std::remove((base + ".end").c_str());
}

TEST(Command, BenchIsCheckedBeforeAnythingStarts) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--sizes", "3"}, {"--mode", "star"}, {"--mode", "ps"}, {"--timeout", "nan"},
           {"--timeout", "99999999999h"}, {"--set", "worker.rank=1"}, {"--set", "job.workers=4"}}) {
    std::vector<std::string> arguments = {"bench", "allreduce", "-n", "2"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Ran ran = Tally(arguments);  // the context has no program: a start would be another error
    EXPECT_EQ(ran.exit_code, 2) << wrong[0] << " " << wrong[1];
    EXPECT_THAT(ran.err, ::testing::Not(HasSubstr("no program"))) << wrong[0] << " " << wrong[1];
  }
}

TEST(Command, BenchOfEveryCollectiveIsCheckedBeforeAnythingStarts) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"allreduce", "--dtype", "fp8"}, {"allreduce", "--op", "mean"}, {"allreduce", "--dtype", "int8", "--op", "avg"},
           {"reducescatter", "--op", "xor"}, {"allreduce", "--dtype", "fp64", "--arena"}, {"allgather", "--op", "sum"},
           {"broadcast", "--arena"}, {"broadcast", "--dtype", "int64", "--sizes", "4"}, {"allgather", "--mode", "star"}}) {
    std::vector<std::string> arguments = {"bench"};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Ran ran = Tally(arguments);
    EXPECT_EQ(ran.exit_code, 2) << wrong[0] << " " << wrong[1] << ": " << ran.err;
    EXPECT_THAT(ran.err, ::testing::Not(HasSubstr("no program"))) << wrong[0] << " " << wrong[1];
  }
  EXPECT_THAT(Tally({"bench", "allreduce", "--dtype", "fp8"}).err, HasSubstr("bf16"));
}

TEST(Table, ColumnsAreAligned) {
  Table table({{"mode"}, {"bytes", Table::Align::kRight}, {"note"}});
  table.AddRow({"ring", "7", "é"});
  table.AddRow({"hybrid", "1024", ""});
  EXPECT_EQ(table.Text(),
            "mode    bytes  note\n"
            "ring        7  é\n"
            "hybrid   1024\n");
}

TEST(Table, Numbers) {
  EXPECT_EQ(Fixed(1.5, 2), "1.50");
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(25 << 20), "25 MiB");
  EXPECT_EQ(HumanSeconds(0.00123), "1.23 ms");
  EXPECT_EQ(HumanSeconds(3.25), "3.25 s");
}

}  // namespace
}  // namespace tally::cli
