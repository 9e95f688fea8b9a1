#include "common/node_key.h"

#include <xxhash.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

namespace tally {

std::string NodeKey() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  // A link such as "net:[4026531840]": containers of one machine that have networks of their own are nodes of their own.
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  if (boot.empty() || error) return {};
  const std::string both = boot + " " + network;
  char key[17];
  std::snprintf(key, sizeof key, "%016llx", static_cast<unsigned long long>(XXH3_64bits(both.data(), both.size())));
  return key;
}

}  // namespace tally
