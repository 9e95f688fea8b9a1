// Residuals outside the process that made them: saved and read back, handed over by a leaver, taken to a new layout.
// Uncompressed, in sum units, keyed by tensor name and element, so that buckets, cuts and modes do not matter.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/schedule/layout.h"
#include "common/status.h"
#include "common/units.h"
#include "compress/error_feedback.h"

namespace tally {

// Whose residuals: they fit no other rank and no other world. Epochs tell runs apart; a job that resumes has its own.
struct ResidualOrigin {
  EpochId epoch;
  std::uint32_t world = 0;
  Rank rank;
  std::uint32_t nodes = 0;  // with node stages a digest of which ranks share a node: who keeps what hangs on it
};

// What was kept of a tensor, or of a part of it.
struct SavedTensor {
  std::string name;
  std::vector<float> values;
  std::uint64_t offset = 0;  // of the first value within the tensor
  std::uint8_t codec = 0;    // that kept it
};

struct SavedResiduals {
  using Tensor = SavedTensor;
  ResidualOrigin origin;
  std::uint64_t layout_digest = 0;
  std::vector<Tensor> tensors;  // those with a residual

  double L1() const;  // what is lost if they are
};

// Of names, sizes, types and shapes, in any order; not of buckets.
std::uint64_t ResidualDigest(const Layout& layout);

// The committed residuals.
SavedResiduals SaveResiduals(const ErrorFeedback& feedback, const Layout& layout, const ResidualOrigin& origin);

// What RestoreResiduals does to a site, in two steps. Errors of both: kMismatch for another rank, world or layout, for
// another set of tensors (both values named); kCorrupt for values that are not finite or too few.
Status CheckOrigin(const SavedResiduals& saved, const Layout& layout, const ResidualOrigin& origin);
// The layout's number of each saved tensor. Every tensor with a residual here must be among them.
Result<std::vector<std::uint32_t>> MatchAll(std::span<const SavedTensor> saved, const Layout& layout,
                                            const ErrorFeedback& feedback);

// Makes them this site's, between steps. Errors as above, with nothing changed.
Status RestoreResiduals(const SavedResiduals& saved, const Layout& layout, const ResidualOrigin& origin,
                        ErrorFeedback* feedback);

// Adds them to a site of another worker, world or cut, by name; the sum over all sites stays what it was. Errors, with
// nothing changed: kMismatch for a tensor that has no residual there or another size; kCorrupt as above.
Status HandOverResiduals(const SavedResiduals& saved, const Layout& layout, ErrorFeedback* feedback);

// The worker that takes over what an owner kept of slab u, when the slab's owner, codec or cut changes (DESIGN §5).
inline Position HeirOfSlab(SlabId slab, std::uint32_t positions) { return Position(slab.value % positions); }

}  // namespace tally
