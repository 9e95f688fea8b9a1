// tally topology: what it reads, the order that it finds, and its faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/run_command.h"
#include "worker/cli/command.h"
#include "worker/cli/topology_sources.h"

namespace tally::cli {
namespace {

using ::testing::HasSubstr;

Ran Topology(std::vector<std::string> arguments, std::map<std::string, std::string> environment = {}) {
  arguments.insert(arguments.begin(), "topology");
  CommandContext context;
  context.environment = std::move(environment);
  return RunCommand(arguments, std::move(context));
}

std::string File(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "tally_topology_" + std::to_string(::getpid()) + "_" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(TopologyCommand, OrdersTheRanksOfAHostList) {
  const std::string conf = File("t.conf", "SwitchName=l0 Nodes=n[1-2]\nSwitchName=l1 Nodes=n[3-4]\nSwitchName=s Switches=l[0-1]\n");
  const Ran ran = Topology({"--hosts", "n[1,3,2,4]", "--tasks", "2", "--cyclic", "--switches", conf, "--json", "-"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << ran.out;
  EXPECT_EQ(json["order"], (std::vector<int>{0, 4, 2, 6, 1, 5, 3, 7}));
  EXPECT_EQ(json["slow_edges"]["by_rank"]["leave_node"], 8);
  EXPECT_EQ(json["slow_edges"]["by_rank"]["leave_switch"], 8);
  EXPECT_EQ(json["slow_edges"]["by_positions"]["leave_node"], 4);
  EXPECT_EQ(json["slow_edges"]["by_positions"]["leave_switch"], 2);
  EXPECT_EQ(json["members"][4]["position"], 1);
  EXPECT_EQ(json["members"][4]["switch"], "s/l0");
  const Ran drawn = Topology({"--hosts", "n[1,3,2,4]", "--tasks", "2", "--cyclic", "--switches", conf});
  EXPECT_THAT(drawn.out, HasSubstr("s/l0\n  n1  rank 0, 4\n  n2  rank 2, 6\ns/l1\n"));
  EXPECT_THAT(drawn.out, HasSubstr("8 of 8 edges leave a node, 8 of them a switch"));
  EXPECT_THAT(drawn.out, HasSubstr("0 -> 4 => 2 -> 6 #> 1"));
  const Ran slurm = Topology({"--json", "-"}, {{"SLURM_JOB_NODELIST", "n[1-2]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}});
  EXPECT_EQ(nlohmann::json::parse(slurm.out, nullptr, false)["members"].size(), 4u);
  std::filesystem::remove(conf);
}

TEST(TopologyCommand, FindsATourAndReadsMembers) {
  const std::string matrix = File("m.txt", "# MB/s\n0 9 1 9\n9 0 9 1\n1, 9, 0, 9\n9 1 9 0\n");
  const std::string members = File("m.json", R"({"members": [{"rank": 1, "node": "b"}, {"rank": 0, "node": "a"}]})");
  const Ran ran = Topology({"--matrix", matrix, "--members", members, "--json", "-"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const nlohmann::json json = nlohmann::json::parse(ran.out, nullptr, false);
  EXPECT_EQ(json["tour"]["least"], 9);
  EXPECT_EQ(json["tour"]["optimal"], true);
  EXPECT_EQ(json["members"][1]["node"], "b");
  EXPECT_TRUE(json["machine"]["numa"].is_array());
  EXPECT_THAT(Topology({"--matrix", matrix}).out, HasSubstr("this machine:"));
  std::filesystem::remove(matrix);
  std::filesystem::remove(members);
}

TEST(TopologyCommand, NamesWhatIsWrong) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--members", "/nonexistent"}, {"--hosts", "n["}, {"--hosts", "n[1-2]", "--tasks", "1,2,3"}, {"--tasks", "2"},
           {"--matrix", "/nonexistent"}, {"--nccl", "/nonexistent"}, {"--hosts", "n1", "--switches", "/nonexistent"}}) {
    const Ran ran = Topology(wrong);
    EXPECT_EQ(ran.exit_code, 2) << wrong[0];
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err, "");
  }
  EXPECT_THAT(Topology({"--help"}).out, HasSubstr("Examples:"));
}

TEST(TopologySources, RefuseBadText) {
  for (const char* bad : {"", "[]", "{}", R"({"members": 1})", R"({"members": [1]})", R"({"members": [{"rank": 1, "node": "a"}]})",
                          R"({"members": [{"rank": 0}]})", R"({"members": [{"rank": 0, "node": "a", "switch": "a//b"}]})",
                          R"({"members": [{"rank": 0, "node": "a"}, {"rank": 0, "node": "a"}]})"}) {
    EXPECT_FALSE(MembersOfJson(bad).ok()) << bad;
  }
  for (const char* bad : {"", "x", "1,2", "2(x", "2(x3)", "(x2)", "99999999999"}) {
    EXPECT_FALSE(MembersOfHosts("n[1-4]", bad, false, {}).ok()) << bad;
  }
  EXPECT_EQ(MembersOfHosts("n[1-4]", "2(x3),1", false, {})->size(), 7u);
}

}  // namespace
}  // namespace tally::cli
