// Saved state of a rank, as a checkpoint that anybody may have written: any bytes, and any body under a right checksum.
#include <cstring>

#include "common/check.h"
#include "compress/saved_state.h"
#include "tests/fuzz/target.h"

namespace tally {
namespace {

constexpr std::size_t kSumAt = 16, kBodyAt = 24;

void Check(std::span<const std::byte> bytes) {
  const Result<SavedState> state = DecodeState(bytes);
  if (!state.ok()) {
    TALLY_CHECK(!state.status().text().empty(), "refused without a reason");
    return;
  }
  TALLY_CHECK(std::ranges::equal(EncodeState(*state), bytes), "a saved state changed by reading and writing it");
}

}  // namespace

void FuzzState(std::span<const std::byte> input) {
  Check(input);
  if (input.size() < kBodyAt) return;
  FuzzBytes mended(input.begin(), input.end());
  const FuzzBytes head = EncodeState({});
  std::copy_n(head.begin(), kSumAt, mended.begin());
  const std::uint64_t sum = StateDigest(std::span(mended).subspan(kBodyAt), 0);
  std::memcpy(mended.data() + kSumAt, &sum, sizeof sum);
  Check(mended);
}

std::vector<FuzzBytes> StateSeeds() {
  SavedState state;
  state.residuals.tensors = {{"fc1.weight", {1.5F, -2}, 0, 6}, {"b", {}, 0, 3}};
  state.velocities = {{"fc1.weight", {4, 8}, 0, 7}};
  state.carried = {{"m", {0.25F}, 0, 9}};
  state.owned = {{"fc1.weight", {7}, 4096, 6}};
  return {EncodeState({}), EncodeState(state)};
}

}  // namespace tally
