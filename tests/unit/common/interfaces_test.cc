// Which address network.interfaces chooses, of made-up interfaces and of this machine's loopback.
#include "common/transport/interfaces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tally {
namespace {

using ::testing::HasSubstr;

const std::vector<HostAddress> kHost = {
    {"lo", "127.0.0.1", true},     {"lo", "::1", true},          {"eth0", "fe80::1", false},
    {"eth0", "10.0.0.2", false},   {"eth0", "fd00::2", false},   {"eth01", "10.1.0.2", false},
    {"ib0", "192.168.7.3", false}, {"docker0", "172.17.0.1", false}, {"six", "fd00:1::9", false},
};

std::string Choose(const std::vector<std::string>& rules) {
  const Result<std::string> chosen = ChooseAddress(rules, kHost);
  return chosen.ok() ? *chosen : "error: " + chosen.status().text();
}

TEST(Interfaces, ByNameAddressAndNetwork) {
  EXPECT_EQ(Choose({"eth"}), "10.0.0.2");
  EXPECT_EQ(Choose({"=eth01"}), "10.1.0.2");
  EXPECT_EQ(Choose({"ib", "eth"}), "192.168.7.3") << "the first rule decides";
  EXPECT_EQ(Choose({"nope", "eth"}), "10.0.0.2");
  EXPECT_EQ(Choose({"10.1.0.2"}), "10.1.0.2");
  EXPECT_EQ(Choose({"192.168.0.0/16"}), "192.168.7.3");
  EXPECT_EQ(Choose({"10.1.0.0/15"}), "10.0.0.2") << "the bits beyond do not count";
  EXPECT_EQ(Choose({"fd00:1::/32"}), "[fd00:1::9]");
  EXPECT_EQ(Choose({"six"}), "[fd00:1::9]");
  EXPECT_EQ(Choose({"fe80::/10"}), "[fe80::1]");
  EXPECT_EQ(Choose({"lo"}), "127.0.0.1");
  EXPECT_EQ(Choose({"0.0.0.0/0"}), "127.0.0.1");
}

TEST(Interfaces, ACaretTakesAway) {
  EXPECT_EQ(Choose({"^docker"}), "10.0.0.2") << "loopback only where it is named";
  EXPECT_EQ(Choose({"^eth"}), "192.168.7.3");
  EXPECT_EQ(Choose({"eth", "^=eth0"}), "10.1.0.2");
  EXPECT_EQ(Choose({"^10.0.0.0/8", "^192.168.7.3"}), "172.17.0.1");
  EXPECT_THAT(Choose({"^eth", "^ib", "^docker", "^six"}), HasSubstr("error"));
}

TEST(Interfaces, ErrorsSayWhatThereIs) {
  EXPECT_THAT(Choose({"wlan", "=eth"}),
              HasSubstr("network.interfaces = wlan, =eth; there are: lo 127.0.0.1, lo ::1, eth0 fe80::1"));
  for (const char* bad : {"", "^", "=", "^=", "10.0.0.0/33", "10.0.0.0/x", "eth/8", "fd00::/129", "=10.0.0.0/8"}) {
    EXPECT_THAT(Choose({bad}), HasSubstr("is no interface")) << bad;
  }
}

TEST(Interfaces, OthersMayReachThisMachineByAllButLoopback) {
  const std::vector<std::string> all = {"10.1.0.2", "10.0.0.2", "192.168.7.3", "[fd00::2]", "[fd00:1::9]", "172.17.0.1"};
  EXPECT_EQ(MoreAddresses("10.1.0.2", kHost), all) << "the one that leads to the coordinator first, bridges last";
  EXPECT_EQ(MoreAddresses("", kHost).size(), all.size());
  EXPECT_EQ(MoreAddresses("1.2.3.4", {}), std::vector<std::string>{"1.2.3.4"});
  std::vector<HostAddress> many;
  for (int i = 0; i < 20; ++i) many.push_back({"eth" + std::to_string(i), "10.0." + std::to_string(i) + ".1", false});
  EXPECT_EQ(MoreAddresses("10.0.0.1", many).size(), kMaxDataAddresses);
}

TEST(Interfaces, OwnNetworksAreKnownByTheirBits) {
  const std::vector<HostAddress> own = {
      {"lo", "127.0.0.1", true, 8}, {"eth0", "10.0.4.2", false, 22}, {"six", "fd00:1::9", false, 64}, {"old", "1.2.3.4", false}};
  EXPECT_TRUE(OnOwnNetwork("10.0.7.200", own));
  EXPECT_FALSE(OnOwnNetwork("10.0.8.1", own));
  EXPECT_TRUE(OnOwnNetwork("fd00:1::1", own));
  EXPECT_FALSE(OnOwnNetwork("fd00:2::1", own));
  EXPECT_FALSE(OnOwnNetwork("127.0.0.2", own)) << "loopback leads only to oneself";
  EXPECT_FALSE(OnOwnNetwork("1.2.3.4", own)) << "of unknown extent";
  EXPECT_FALSE(OnOwnNetwork("host.name", own));
}

TEST(Interfaces, OfThisMachine) {
  const Result<std::vector<HostAddress>> addresses = HostAddresses();
  ASSERT_TRUE(addresses.ok());
  EXPECT_TRUE(std::ranges::any_of(*addresses, [](const HostAddress& a) { return a.loopback && a.address == "127.0.0.1"; }));
  EXPECT_TRUE(std::ranges::all_of(*addresses, [](const HostAddress& a) { return a.network_bits > 0 && a.network_bits <= 128; }));
  EXPECT_EQ(*DataAddresses("", {}, false, "127.0.0.1"), std::vector<std::string>{"127.0.0.1"}) << "a job on one host";
  EXPECT_EQ(DataAddresses("0.0.0.0", {}, false, "1.2.3.4")->back(), "127.0.0.1");
  EXPECT_EQ(DataAddresses("", {}, false, "0.0.0.0")->back(), "127.0.0.1");
  EXPECT_EQ(*DataAddresses("", {}, false, "1.2.3.4"), std::vector<std::string>{"1.2.3.4"}) << "insecure is not set";
  EXPECT_EQ(*DataAddresses("", {}, false, "0.0.0.0"), std::vector<std::string>{"127.0.0.1"});
  const auto more = static_cast<std::size_t>(std::ranges::count_if(*addresses, [](const HostAddress& a) {
    return !a.loopback && !a.address.starts_with("fe80");
  }));
  EXPECT_EQ(DataAddresses("", {}, true, "0.0.0.0")->size(), std::min(more, kMaxDataAddresses) + 1);
  const std::vector<std::string> loopback = {"127.0.0.0/8"}, other = {"^lo"}, none;
  EXPECT_EQ(DataAddresses("", loopback, false, "1.2.3.4")->front(), "127.0.0.1");
  EXPECT_EQ(*DataAddresses("5.6.7.8", loopback, false, "1.2.3.4"), std::vector<std::string>{"5.6.7.8"});
  EXPECT_EQ(DataAddresses("", none, false, "1.2.3.4")->front(), "1.2.3.4");
  const Result<std::vector<std::string>> off = DataAddresses("", other, false, "1.2.3.4");
  EXPECT_FALSE(off.ok()) << "off loopback without network.insecure, or nothing there";
}

}  // namespace
}  // namespace tally
