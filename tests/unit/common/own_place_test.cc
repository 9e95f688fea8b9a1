// Which switches are above this machine: by setting, files of SLURM and Kubernetes, SLURM's variables; hostile text.
#include "common/topology/own_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "common/schedule/topology.h"
#include "common/topology/switch_map.h"

namespace tally {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kConf =
    "# two leaves\n"
    "SwitchName=s0 Nodes=tux[0-2]\n"
    "SwitchName=s1 Nodes=tux[9-11]\n"
    "SwitchName=top Switches=s[0-1]\n";
constexpr std::string_view kYaml =
    "---\n"
    "- topology: default\n"
    "  tree:\n"
    "    switches:\n"
    "      - switch: top\n"
    "        children: s0\n"
    "      - switch: s0\n"
    "        nodes: tux[0-2]\n";
constexpr std::string_view kLabels = "app=\"train\"\nzone=\"z1\"\nrack=\"r7\"\n";

TEST(OwnPlace, OfFilesByTheirFirstWords) {
  EXPECT_EQ(*SwitchPathIn(kLabels, "any", {"zone", "rack"}), "z1/r7");
  EXPECT_EQ(*SwitchPathIn(kLabels, "any", {"rack"}), "r7");
  EXPECT_EQ(*SwitchPathIn(kConf, "tux10.cluster.local", {}), "top/s1");
  EXPECT_EQ(*SwitchPathIn(kYaml, "tux2", {}), "top/s0");
}

// As an editor of another system, or a hand, leaves them.
TEST(OwnPlace, LabelsMayHaveBlanksAndComments) {
  constexpr std::string_view kByHand = "\r\n# where we are\r\n  zone=\"z1\"  \r\n\t\n \track=\"r7\"\r\n   \r\n#\n";
  EXPECT_EQ(*SwitchPathIn(kByHand, "any", {"zone", "rack"}), "z1/r7");
}

TEST(OwnPlace, FaultsSayWhatToDo) {
  EXPECT_THAT(SwitchPathIn(kLabels, "any", {"row"}).status().text(), HasSubstr("no label row (topology.labels)"));
  EXPECT_THAT(SwitchPathIn("zone=\"z1\nrack\n", "any", {"zone"}).status().text(), HasSubstr("key=\"value\""));
  EXPECT_THAT(SwitchPathIn(kConf, "tux7", {}).status().text(), HasSubstr("topology.host"));
  EXPECT_FALSE(SwitchPathIn(std::string(kMaxTopologyBytes + 1, '#'), "a", {}).ok());
  EXPECT_FALSE(SwitchPathIn("zone=\"a b\"\n", "any", {"zone"}).ok()) << "no name of a switch";
}

TEST(OwnPlace, ASettingGoesBeforeTheFile) {
  Config::Topology topology;
  EXPECT_EQ(*OwnSwitchPath(topology), "");
  topology.file = "/nonexistent/topology.conf";
  EXPECT_THAT(OwnSwitchPath(topology).status().text(), HasSubstr("/nonexistent/topology.conf"));
  topology.file = ::testing::TempDir() + "tally_own_place_" + std::to_string(getpid());
  std::ofstream(topology.file) << kConf;
  topology.host = "tux2";
  EXPECT_EQ(*OwnSwitchPath(topology), "top/s0");
  topology.host = "tux4";
  EXPECT_THAT(OwnSwitchPath(topology).status().text(), HasSubstr(topology.file));
  topology.switch_path = "a/b";
  EXPECT_EQ(*OwnSwitchPath(topology), "a/b");
  std::filesystem::remove(topology.file);
}

TEST(OwnPlace, SlurmsVariablesAreTheWeakestSource) {
  ConfigSources sources;
  sources.environment = {{"SLURM_TOPOLOGY_ADDR", "s1.l2.tux1"},
                         {"SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node"},
                         {"SLURMD_NODENAME", "tux1"}};
  Result<LoadedConfig> loaded = LoadConfig(sources);
  ASSERT_TRUE(loaded.ok()) << loaded.status().text();
  EXPECT_EQ(loaded->config.topology.switch_path, "s1/l2");
  EXPECT_EQ(loaded->config.topology.host, "tux1");
  sources.overrides = {"topology.file=/etc/topology.conf"};
  EXPECT_EQ(LoadConfig(sources)->config.topology.switch_path, "") << "the file says it";
  sources.environment["TALLY_TOPOLOGY_SWITCH"] = "zone/rack";
  sources.environment["TALLY_TOPOLOGY_HOST"] = "h";
  EXPECT_EQ(LoadConfig(sources)->config.topology.switch_path, "zone/rack");
  EXPECT_EQ(LoadConfig(sources)->config.topology.host, "h");
  // Nor does SLURM's name of the host replace one that a file gives.
  ConfigSources with_file;
  with_file.environment = {{"SLURMD_NODENAME", "tux1"}};
  with_file.file = ::testing::TempDir() + "tally_own_place_config_" + std::to_string(getpid());
  std::ofstream(with_file.file) << "[topology]\nhost = \"tux2\"\n";
  EXPECT_EQ(LoadConfig(with_file)->config.topology.host, "tux2");
  std::filesystem::remove(with_file.file);
  sources.overrides = {"topology.switch=a//b"};
  EXPECT_THAT(LoadConfig(sources).status().text(), HasSubstr("topology.switch"));
}

TEST(OwnPlace, SurvivesAnyText) {
  std::mt19937 random(3);
  for (const std::string_view seed : {kConf, kYaml, kLabels}) {
    for (int round = 0; round < 3000; ++round) {
      std::string text(seed);
      for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
      if (round % 3 == 0) text.resize(random() % text.size());
      const Result<std::string> path = SwitchPathIn(text, "tux1", {"zone", "rack"});
      if (path.ok()) {
        EXPECT_TRUE(CheckSwitchPath(*path).ok());
      }
    }
  }
}

}  // namespace
}  // namespace tally
