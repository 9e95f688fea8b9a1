// NICs in a topology file of NCCL; hostile text.
#include "common/topology/nccl_topology.h"

#include <gtest/gtest.h>

#include <random>

namespace tally {
namespace {

constexpr std::string_view kFile = R"(<?xml version="1.0"?>
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64">
    <pci busid="0000:11:00.0" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic></pci>
  </cpu>
  <cpu numaid="1"><nic><net name="eth0" dev="1"/></nic></cpu>
</system>
)";

TEST(NcclTopology, SaysNicsWithTheirNumaNode) {
  const auto nics = ParseNcclTopology(kFile);
  ASSERT_TRUE(nics.ok()) << nics.status().text();
  ASSERT_EQ(nics->size(), 2u);
  EXPECT_EQ((*nics)[0].name, "mlx5_0");
  EXPECT_EQ((*nics)[0].numa, "0");
  EXPECT_EQ((*nics)[0].bytes_per_s, 25e9);
  EXPECT_EQ((*nics)[1].numa, "1");
  EXPECT_EQ((*nics)[1].bytes_per_s, 0);
}

TEST(NcclTopology, RefusesWhatIsNone) {
  std::string deep = "<system>";
  for (int i = 0; i < 100000; ++i) deep += "<a>";
  for (const std::string& bad : {std::string(), std::string("<system>"), std::string("<other/>"), deep,
                                 std::string(2 << 20, ' '), std::string("<system><net name=\"a\x01\"/></system>")}) {
    EXPECT_FALSE(ParseNcclTopology(bad).ok()) << bad.substr(0, 40);
  }
}

TEST(NcclTopology, SurvivesAnyText) {
  std::mt19937 random(4);
  for (int round = 0; round < 3000; ++round) {
    std::string text(kFile);
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    if (round % 3 == 0) text.resize(random() % text.size());
    (void)ParseNcclTopology(text);
  }
}

}  // namespace
}  // namespace tally
