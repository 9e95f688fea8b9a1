// The targets as one libFuzzer program: --target=NAME chooses, beside libFuzzer's own flags (which start with one dash;
// it leaves those with two alone and hands them on to processes that it starts).
//   --list         prints the names            --seeds=FOLDER  writes FOLDER/NAME/* for every target
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string_view>

#include "tests/fuzz/target.h"

namespace {

tally::FuzzTarget& Chosen() {
  static tally::FuzzTarget chosen;
  return chosen;
}

void WriteSeeds(const std::filesystem::path& folder) {
  for (const tally::FuzzTarget& target : tally::FuzzTargets()) {
    std::filesystem::create_directories(folder / target.name);
    std::size_t number = 0;
    for (const tally::FuzzBytes& seed : target.seeds()) {
      std::ofstream file(folder / target.name / std::to_string(number++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument == "--list") {
      for (const tally::FuzzTarget& target : tally::FuzzTargets()) std::cout << target.name << "\n";
      std::exit(0);
    }
    if (argument.starts_with("--seeds=")) {
      WriteSeeds(argument.substr(std::strlen("--seeds=")));
      std::exit(0);
    }
    if (!argument.starts_with("--target=")) continue;
    for (tally::FuzzTarget& target : tally::FuzzTargets()) {
      if (target.name == argument.substr(std::strlen("--target="))) Chosen() = std::move(target);
    }
  }
  if (Chosen().run) return 0;
  std::cerr << "--target=NAME is missing or unknown; --list prints the names\n";
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Chosen().run(std::as_bytes(std::span(data, size)));
  return 0;
}
