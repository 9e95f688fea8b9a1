// What a fuzz target is: a function that takes any bytes and ends the process when a promise is broken.
// Where to add one: a function here, its entry in targets.cc. A new codec has its two targets without a change.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tally {

using FuzzBytes = std::vector<std::byte>;

struct FuzzTarget {
  std::string name;  // also that of its folder in corpus/
  std::function<void(std::span<const std::byte>)> run;
  std::function<std::vector<FuzzBytes>()> seeds;  // inputs that reach deep from the start
};

// Two per codec of the table, then those of messages and the owner.
std::vector<FuzzTarget> FuzzTargets();

// codec_targets.cc
void AddCodecTargets(std::vector<FuzzTarget>* targets);
// message_targets.cc: what a peer or a user sends.
void FuzzFrame(std::span<const std::byte> input);
void FuzzControl(std::span<const std::byte> input);
void FuzzConfig(std::span<const std::byte> input);
std::vector<FuzzBytes> FrameSeeds();
std::vector<FuzzBytes> ControlSeeds();
std::vector<FuzzBytes> ConfigSeeds();
// place_targets.cc: what files say of switches and NICs, and the notes of links in memory.
void FuzzSwitches(std::span<const std::byte> input);
void FuzzNccl(std::span<const std::byte> input);
void FuzzShmNote(std::span<const std::byte> input);
std::vector<FuzzBytes> SwitchesSeeds();
std::vector<FuzzBytes> NcclSeeds();
std::vector<FuzzBytes> ShmNoteSeeds();
// agent_target.cc
void FuzzAgent(std::span<const std::byte> input);
std::vector<FuzzBytes> AgentSeeds();
// owner_target.cc
void FuzzOwner(std::span<const std::byte> input);
std::vector<FuzzBytes> OwnerSeeds();
// state_target.cc
void FuzzState(std::span<const std::byte> input);
std::vector<FuzzBytes> StateSeeds();

// Reads numbers off the front of an input; zeros once it is used up.
class FuzzInput {
 public:
  explicit FuzzInput(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  T Take() {
    std::array<std::byte, sizeof(T)> bytes{};
    const std::size_t count = std::min(sizeof(T), rest_.size());
    std::copy_n(rest_.begin(), count, bytes.begin());
    rest_ = rest_.subspan(count);
    return std::bit_cast<T>(bytes);
  }
  std::uint8_t Byte() { return Take<std::uint8_t>(); }
  bool empty() const { return rest_.empty(); }
  std::span<const std::byte> rest() const { return rest_; }

 private:
  std::span<const std::byte> rest_;
};

// Appends a number as FuzzInput takes it.
template <typename T>
void Append(const T& value, FuzzBytes* out) {
  for (const std::byte byte : std::bit_cast<std::array<std::byte, sizeof(T)>>(value)) out->push_back(byte);
}

}  // namespace tally
