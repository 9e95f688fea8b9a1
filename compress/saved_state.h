// SavedState: what the codecs of one rank carry from step to step in a group, taken out of the process, and its bytes.
// Bytes, little-endian: magic "TLLYSAVE", u32 version, u32 nodes, u64 XXH3 of all that follows (seed: nodes); u64 epoch,
// u32 world, u32 rank, u64 layout digest, u64 step, fp32 learning rate, u32 number of entries; per entry, by rising kind,
// u8 kind, u8 codec, u16 length of the name, the name, u64 offset, u64 count, fp32 values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "common/units.h"
#include "compress/residual_transfer.h"

namespace tally {

inline constexpr std::uint32_t kSavedStateVersion = 1;

struct SavedState {
  SavedResiduals residuals;            // of the worker, and whose they are
  StepId step;                         // the one that comes next
  float learning_rate = 0;             // of the last committed step, if residuals follow it
  std::vector<SavedTensor> velocities;  // of codecs with momentum
  std::vector<SavedTensor> carried;     // of linear codecs: the same on all ranks
  std::vector<SavedTensor> owned;       // residuals of the slabs that this worker owns
  std::vector<SavedTensor> scales;      // per slab, that all workers share, one per block: the same on all ranks
};

std::vector<std::byte> EncodeState(const SavedState& state);
// Hostile bytes: nothing is trusted, nothing larger than the input is allocated. Values may be anything. Errors:
// kCorrupt (what is wrong, expected and got), kUnsupported (another version, both named).
Result<SavedState> DecodeState(std::span<const std::byte> bytes);

// XXH3, to compare what ranks carry.
std::uint64_t StateDigest(std::span<const std::byte> bytes, std::uint64_t seed);

}  // namespace tally
