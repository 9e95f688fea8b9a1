// Where hosts are, as SLURM writes it; hostile text.
#include "common/topology/switch_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/schedule/topology.h"

namespace tally {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr std::string_view kConf =
    "# two leaves\n"
    "SwitchName=s0 Nodes=tux[0-2],x LinkSpeed=900\r\n"
    "switchname=s1   nodes=tux[09-11]  # a comment\n"
    "\n"
    "SwitchName=top Switches=s[0-1]\n";

constexpr std::string_view kYaml =
    "---\n"
    "- topology: default\n"
    "  cluster_default: true\n"
    "  tree:\n"
    "    switches:\n"
    "      - switch: top\n"
    "        children: s[0-1]\n"
    "      - switch: s0   # leaf\n"
    "        nodes: \"tux[0-2],x\"\n"
    "      - switch: s1\n"
    "        nodes: tux[09-11]\n"
    "- topology: other\n"
    "  block:\n"
    "    blocks:\n";

TEST(HostList, ExpandsRanges) {
  const auto expand = [](std::string_view text) {
    const auto names = ExpandHostList(text);
    return names.ok() ? *names : std::vector<std::string>{names.status().text()};
  };
  EXPECT_THAT(expand("a"), ElementsAre("a"));
  EXPECT_THAT(expand("n[08-10,2]x,b"), ElementsAre("n08x", "n09x", "n10x", "n2x", "b"));
  for (const char* bad : {"", "a,,b", "n[", "n]", "n[]", "n[1-]", "n[3-1]", "n[a-b]", "n[1][2]", "n[0-999999999]",
                          "n[0-40000],m[0-40000]", "a b", "a/b", "n[-1]", "n[1-2-3]"}) {
    EXPECT_FALSE(ExpandHostList(bad).ok()) << bad;
  }
}

TEST(SwitchMap, ReadsConfAndYamlAlike) {
  const Result<SwitchMap> conf = ParseTopologyConf(kConf), yaml = ParseTopologyYaml(kYaml);
  ASSERT_TRUE(conf.ok()) << conf.status().text();
  ASSERT_TRUE(yaml.ok()) << yaml.status().text();
  EXPECT_THAT(*conf, ElementsAre(Pair("tux0", "top/s0"), Pair("tux09", "top/s1"), Pair("tux1", "top/s0"),
                                 Pair("tux10", "top/s1"), Pair("tux11", "top/s1"), Pair("tux2", "top/s0"),
                                 Pair("x", "top/s0")));
  EXPECT_EQ(*conf, *yaml);
}

TEST(SwitchMap, NamesTheLineOfAFault) {
  const auto conf = [](std::string_view text) { return ParseTopologyConf(text).status().text(); };
  EXPECT_THAT(conf("SwitchName=a Nodes=x\nNodes=y\n"), HasSubstr("line 2"));
  EXPECT_THAT(conf("SwitchName=a Nodez=x\n"), HasSubstr("line 1"));
  EXPECT_THAT(conf("SwitchName=a Nodes=x\nSwitchName=b Nodes=x\n"), HasSubstr("below \"a\" and below \"b\""));
  EXPECT_THAT(conf("SwitchName=a Nodes=x\nSwitchName=a\n"), HasSubstr("twice"));
  EXPECT_THAT(conf("SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a\n"), HasSubstr("no end"));
  const auto yaml = ParseTopologyYaml("- topology: t\n  block:\n");
  EXPECT_EQ(yaml.status().kind(), StatusKind::kUnsupported);
  EXPECT_THAT(yaml.status().text(), HasSubstr("line 2"));
  EXPECT_THAT(ParseTopologyYaml("- topology: t\n  nodes: x\n").status().text(), HasSubstr("before any switch"));
  EXPECT_THAT(ParseTopologyYaml("- topology: t\n  &anchor\n").status().text(), HasSubstr("line 2"));
  EXPECT_FALSE(ParseTopologyConf(std::string(kMaxTopologyBytes + 1, '#')).ok());
}

TEST(SwitchMap, SurvivesAnyText) {
  std::mt19937 random(2);
  for (const std::string_view seed : {kConf, kYaml}) {
    for (int round = 0; round < 3000; ++round) {
      std::string text(seed);
      for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
      if (round % 3 == 0) text.resize(random() % text.size());
      for (const auto& map : {ParseTopologyConf(text), ParseTopologyYaml(text)}) {
        if (!map.ok()) continue;
        for (const auto& [host, path] : *map) EXPECT_TRUE(CheckSwitchPath(path).ok());
      }
    }
  }
}

TEST(SwitchMap, AddressesOfSlurm) {
  EXPECT_EQ(SwitchPathOfAddress("s0.s4.s8.tux1", "switch.switch.switch.node"), "s0/s4/s8");
  EXPECT_EQ(SwitchPathOfAddress("b1.tux1", "block.node"), "b1");
  EXPECT_EQ(SwitchPathOfAddress("tux1", "node"), "");
  EXPECT_EQ(SwitchPathOfAddress("tux1", "switch.switch.node"), "");
  EXPECT_EQ(SwitchPathOfAddress("", ""), "");
  EXPECT_EQ(SwitchPathOfAddress("a b.c", "switch.node"), "");
}

}  // namespace
}  // namespace tally
