// Every target without libFuzzer: its seeds, the inputs kept in corpus/, and a few thousand mutations of both, always
// the same. A process that dies leaves the input that killed it as fuzz_<target>.bin in this test's build folder.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "tests/fuzz/target.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace tally {
namespace {

constexpr std::size_t kMutations = 2000;

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const FuzzTarget& target : FuzzTargets()) names.push_back(target.name);
  return names;
}

FuzzTarget Find(const std::string& name) {
  for (FuzzTarget& target : FuzzTargets()) {
    if (target.name == name) return std::move(target);
  }
  return {};
}

std::vector<FuzzBytes> Kept(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = std::filesystem::path(TALLY_SOURCE_DIR "/tests/fuzz/corpus") / name;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<FuzzBytes> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    FuzzBytes& input = inputs.emplace_back();
    for (const char c : std::string{std::istreambuf_iterator<char>(file), {}}) Append(c, &input);
  }
  return inputs;
}

class Mutator {
 public:
  explicit Mutator(const std::vector<FuzzBytes>& inputs) : inputs_(inputs) {}

  FuzzBytes Next() {
    FuzzBytes bytes = inputs_[Below(inputs_.size())];
    for (std::size_t edits = 1 + Below(4); edits > 0; --edits) Edit(&bytes);
    return bytes;
  }

 private:
  std::size_t Below(std::size_t limit) { return random_() % limit; }

  void Edit(FuzzBytes* bytes) {
    constexpr std::uint32_t kNumbers[] = {0,          1,          0x7F,       0x80,       0xFF,       0xFFFF,     0x10000,
                                          0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF,
                                          0x80000000, 0xFFFFFFFF, 0x3F800000};
    const auto at = [&](std::size_t i) { return bytes->begin() + static_cast<std::ptrdiff_t>(i); };
    const std::size_t place = bytes->empty() ? 0 : Below(bytes->size());
    switch (bytes->empty() ? 2 : Below(6)) {
      case 0: (*bytes)[place] ^= static_cast<std::byte>(1u << Below(8)); break;
      case 1: (*bytes)[place] = static_cast<std::byte>(Below(256)); break;
      case 2: bytes->insert(at(place), 1 + Below(8), static_cast<std::byte>(Below(256))); break;
      case 3: bytes->erase(at(place), at(std::min(bytes->size(), place + 1 + Below(8)))); break;
      case 4: {
        FuzzBytes number;
        Append(kNumbers[Below(std::size(kNumbers))], &number);
        for (std::size_t i = 0; i < number.size() && place + i < bytes->size(); ++i) (*bytes)[place + i] = number[i];
        break;
      }
      default: {
        const FuzzBytes& other = inputs_[Below(inputs_.size())];
        const std::size_t from = std::min(place, other.size());
        bytes->resize(place);
        bytes->insert(bytes->end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      }
    }
  }

  const std::vector<FuzzBytes>& inputs_;
  std::mt19937 random_{1};
};

// What runs now, for the process's last words.
const FuzzBytes* current_input = nullptr;
std::string current_file;

void LeaveInput() {
  if (current_input == nullptr) return;
  std::ofstream file(current_file, std::ios::binary);
  file.write(reinterpret_cast<const char*>(current_input->data()), static_cast<std::streamsize>(current_input->size()));
}

class FuzzReplay : public testing::TestWithParam<std::string> {
 protected:
  FuzzReplay() {
    current_file = TALLY_FUZZ_OUT "/fuzz_" + GetParam() + ".bin";
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(LeaveInput);
      return;
    }
    for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGILL}) {
      std::signal(signal, [](int number) {
        std::signal(number, SIG_DFL);
        LeaveInput();
        std::raise(number);
      });
    }
  }

  void Run(const FuzzBytes& input) {
    current_input = &input;
    target_.run(input);
    current_input = nullptr;
  }

  const FuzzTarget target_ = Find(GetParam());
};

TEST_P(FuzzReplay, KeptInputsAndMutations) {
  std::vector<FuzzBytes> inputs = target_.seeds();
  for (FuzzBytes& input : Kept(GetParam())) inputs.push_back(std::move(input));
  ASSERT_FALSE(inputs.empty());
  Run({});
  for (const FuzzBytes& input : inputs) Run(input);
  Mutator mutator(inputs);
  for (std::size_t i = 0; i < kMutations; ++i) Run(mutator.Next());
}

TEST(FuzzCorpus, EveryFolderHasItsTarget) {
  const std::vector<std::string> names = Names();
  for (const auto& entry : std::filesystem::directory_iterator(TALLY_SOURCE_DIR "/tests/fuzz/corpus")) {
    EXPECT_NE(std::ranges::find(names, entry.path().filename().string()), names.end()) << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, FuzzReplay, testing::ValuesIn(Names()), [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace tally
