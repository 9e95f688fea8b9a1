// OwnedSlabs: what an owner knows of its slabs for good (number, shape, codec, encoded size), and the checks of a push
// that need nothing else. Pure. "Local" is a slab's index among those owned here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/schedule/layout.h"
#include "common/status.h"
#include "common/transport/link.h"
#include "compress/codec.h"
#include "compress/owner_sum.h"

namespace tally {

struct OwnedSlab {
  std::uint32_t number = 0;  // u
  Slab slab;
  const Codec* codec = nullptr;
  const OwnerSum* sum = nullptr;  // null: the codec sums and answers by itself
  std::size_t encoded_bytes = 0;
};

class OwnedSlabs {
 public:
  static constexpr std::uint32_t kNotHere = std::numeric_limits<std::uint32_t>::max();

  // `numbers` rising; tensor_codec per tensor of the layout, all non-null and outliving this.
  OwnedSlabs(const Layout& layout, std::span<const std::uint32_t> numbers, std::span<const Codec* const> tensor_codec,
             std::uint32_t workers);

  std::uint32_t size() const { return static_cast<std::uint32_t>(slabs_.size()); }
  const OwnedSlab& operator[](std::uint32_t local) const { return slabs_[local]; }
  // kNotHere if slab u is not owned here or does not exist.
  std::uint32_t Local(std::uint32_t u) const { return u < local_.size() ? local_[u] : kNotHere; }

  // A layout in which each owned slab is a tensor of its own, in local order: the shape of their residuals.
  Layout AsTensors() const;

  // Slab numbers, bucket, codec, length and values of a push. Errors: kCorrupt.
  Status Check(const Frame& push) const;

 private:
  const OwnerSums sums_;
  std::vector<OwnedSlab> slabs_;
  std::vector<std::uint32_t> local_;  // per slab of the layout
};

// kCorrupt "push: FIELD: expected EXPECTED, got GOT".
Status WrongPush(std::string_view field, const std::string& expected, const std::string& got);

}  // namespace tally
