#include "common/node_key.h"

#include <gtest/gtest.h>

namespace tally {
namespace {

TEST(NodeKey, IsTheSameForAllProcessesOfThisNetworkNamespace) {
  const std::string key = NodeKey();
  EXPECT_EQ(key.size(), 16u);
  EXPECT_EQ(key.find_first_not_of("0123456789abcdef"), std::string::npos) << key;
  EXPECT_EQ(NodeKey(), key);
}

}  // namespace
}  // namespace tally
