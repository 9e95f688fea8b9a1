// Layout: how a group's tensors are cut into slabs and buckets. Pure; equal on every member because it is built from
// the published LayoutMessage alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/control.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

inline constexpr std::uint64_t kMaxSlabElements = 65536;
inline constexpr std::uint64_t kMinSlabElements = 4096;

// Cut(n, N) of DESIGN §1: `count` slabs of `elements` each, the last one short. n = 0 gives none. workers >= 1.
struct Cut {
  std::uint64_t elements = 0;  // s; 0 if count is 0
  std::uint64_t count = 0;
};
Cut CutTensor(std::uint64_t n, std::uint32_t workers);

struct Slab {
  std::uint32_t tensor = 0;    // index into Layout::tensors
  std::uint64_t offset = 0;    // first element within the tensor
  std::uint32_t elements = 0;  // 1..65536
  std::uint32_t bucket = 0;
  bool operator==(const Slab&) const = default;
};

struct Layout {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<std::uint32_t>> buckets;  // tensor indices
  std::vector<Slab> slabs;                          // by slab number u
  std::vector<std::uint32_t> first_slab;            // per tensor; size tensors + 1
  std::vector<std::vector<std::uint32_t>> bucket_slabs;  // per bucket: slab numbers, rising

  std::uint64_t elements() const;
};

// Errors: kInvalidArgument / kCorrupt for a bucket that names a tensor twice, not at all, or one that does not exist;
// for more than 2^32-1 slabs; for a tensor beyond 2^40 elements.
Result<Layout> MakeLayout(std::span<const TensorSpec> tensors, std::span<const std::vector<std::uint32_t>> buckets,
                          std::uint32_t workers);

// Buckets by cap: tensors in reverse order of declaration (the order in which backward produces them), dtype-pure; a
// bucket closes before it would exceed cap_bytes (a single larger tensor is a bucket of its own).
std::vector<std::vector<std::uint32_t>> BucketsByCap(std::span<const TensorSpec> tensors, std::uint64_t cap_bytes);

// Within a stripe of N slabs position w sends in the order w-1, w-2, …, w (mod N), stripe by stripe. Returns the slab
// numbers of `slabs` (rising) in that order; a stripe is u div N.
std::vector<std::uint32_t> SendOrder(std::span<const std::uint32_t> slabs, Position self, std::uint32_t positions);

}  // namespace tally
