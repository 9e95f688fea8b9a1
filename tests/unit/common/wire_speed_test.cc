#include "common/transport/wire_speed.h"

#include <gtest/gtest.h>

namespace tally {
namespace {

TEST(WireSpeed, TheConfiguredRateCountsFirst) {
  const WireSpeed wire = SpeedOfWire(1e9, "127.0.0.1");
  EXPECT_EQ(wire.bytes_per_s, 125e6);
  EXPECT_EQ(wire.source, "link.rate");
}

TEST(WireSpeed, LoopbackIsNoWire) {
  for (const char* host : {"127.0.0.1", "[::1]", "localhost"}) EXPECT_EQ(SpeedOfWire(0, host).bytes_per_s, 0) << host;
}

TEST(WireSpeed, WhatTheSystemDoesNotKnowIsAssumedAndSaidToBe) {
  const WireSpeed wire = SpeedOfWire(0, "192.0.2.1");  // for documentation: nobody's
  EXPECT_EQ(wire.bytes_per_s, 1.25e9);
  EXPECT_NE(wire.source.find("assumed"), std::string::npos) << wire.source;
}

TEST(WireSpeed, AnyAddressMeansTheFastestNic) {
  EXPECT_GT(SpeedOfWire(0, "0.0.0.0").bytes_per_s, 0);
  EXPECT_EQ(SpeedOfWire(0, "[::]").source, SpeedOfWire(0, "0.0.0.0").source);
}

}  // namespace
}  // namespace tally
