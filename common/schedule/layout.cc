// Cut, layout, buckets by cap and the send order: pure arithmetic, 64-bit throughout.
#include "common/schedule/layout.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tally {
namespace {

constexpr std::uint64_t kMaxTensorElements = std::uint64_t{1} << 40;
constexpr std::uint32_t kNoBucket = std::numeric_limits<std::uint32_t>::max();

constexpr std::uint64_t CeilDivide(std::uint64_t a, std::uint64_t b) { return a == 0 ? 0 : (a - 1) / b + 1; }

// The bucket of each tensor.
Result<std::vector<std::uint32_t>> BucketOfTensor(std::span<const TensorSpec> tensors,
                                                  std::span<const std::vector<std::uint32_t>> buckets) {
  std::vector<std::uint32_t> bucket_of(tensors.size(), kNoBucket);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for (const std::uint32_t t : buckets[b]) {
      if (t >= tensors.size()) {
        return Corrupt("bucket " + std::to_string(b) + " names tensor " + std::to_string(t) + ", the group has " +
                       std::to_string(tensors.size()));
      }
      if (bucket_of[t] != kNoBucket) {
        return InvalidArgument("tensor " + tensors[t].name + " is in bucket " + std::to_string(bucket_of[t]) +
                               " and again in bucket " + std::to_string(b) + "; a tensor belongs to one bucket");
      }
      bucket_of[t] = static_cast<std::uint32_t>(b);
    }
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (bucket_of[t] == kNoBucket) return InvalidArgument("tensor " + tensors[t].name + " is in no bucket");
  }
  return bucket_of;
}

}  // namespace

Cut CutTensor(std::uint64_t n, std::uint32_t workers) {
  if (n == 0) return {};
  const std::uint64_t k = workers * CeilDivide(n, kMaxSlabElements * workers);
  const std::uint64_t s = std::max(kMinSlabElements, CeilDivide(CeilDivide(n, k), 256) * 256);
  return {s, CeilDivide(n, s)};
}

std::uint64_t Layout::elements() const {
  std::uint64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.elements.value;
  return sum;
}

Result<Layout> MakeLayout(std::span<const TensorSpec> tensors, std::span<const std::vector<std::uint32_t>> buckets,
                          std::uint32_t workers) {
  TALLY_CHECK(workers >= 1, "a layout needs the number of workers");
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> bucket_of, BucketOfTensor(tensors, buckets));

  // Counted before anything is allocated: the numbers may come from a peer.
  std::uint64_t slab_count = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.elements.value > kMaxTensorElements) {
      return InvalidArgument("tensor " + tensor.name + " has " + std::to_string(tensor.elements.value) +
                             " elements; at most 2^40");
    }
    slab_count += CutTensor(tensor.elements.value, workers).count;
    if (slab_count > std::numeric_limits<std::uint32_t>::max()) {
      return InvalidArgument("the group needs more than 2^32-1 slabs (at tensor " + tensor.name + ")");
    }
  }

  Layout layout;
  layout.tensors.assign(tensors.begin(), tensors.end());
  layout.buckets.assign(buckets.begin(), buckets.end());
  layout.bucket_slabs.resize(buckets.size());
  layout.slabs.reserve(slab_count);
  layout.first_slab.reserve(tensors.size() + 1);
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    layout.first_slab.push_back(static_cast<std::uint32_t>(layout.slabs.size()));
    const std::uint64_t n = tensors[t].elements.value;
    const Cut cut = CutTensor(n, workers);
    for (std::uint64_t offset = 0; offset < n; offset += cut.elements) {
      layout.bucket_slabs[bucket_of[t]].push_back(static_cast<std::uint32_t>(layout.slabs.size()));
      layout.slabs.push_back({t, offset, static_cast<std::uint32_t>(std::min(cut.elements, n - offset)), bucket_of[t]});
    }
  }
  layout.first_slab.push_back(static_cast<std::uint32_t>(layout.slabs.size()));
  // A caller's bucket may list its tensors in any order; its slab numbers rise.
  for (std::vector<std::uint32_t>& slabs : layout.bucket_slabs) std::sort(slabs.begin(), slabs.end());
  return layout;
}

std::vector<std::vector<std::uint32_t>> BucketsByCap(std::span<const TensorSpec> tensors, std::uint64_t cap_bytes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  std::uint64_t open_bytes = 0;
  for (std::size_t t = tensors.size(); t-- > 0;) {
    const std::uint64_t bytes = tensors[t].elements.value * DTypeBytes(tensors[t].dtype);
    const bool fits = !buckets.empty() && tensors[buckets.back().front()].dtype == tensors[t].dtype &&
                      bytes <= cap_bytes && open_bytes <= cap_bytes - bytes;
    if (!fits) {
      buckets.emplace_back();
      open_bytes = 0;
    }
    buckets.back().push_back(static_cast<std::uint32_t>(t));
    open_bytes += bytes;
  }
  return buckets;
}

std::vector<std::uint32_t> SendOrder(std::span<const std::uint32_t> slabs, Position self, std::uint32_t positions) {
  TALLY_CHECK(self.value < positions, "a position is below the number of positions");
  const auto key = [&](std::uint32_t u) {
    // Place of u within its stripe: w-1 first, w last.
    const std::uint64_t n = positions;
    const std::uint64_t place = (self.value + 2 * n - 1 - u % n) % n;
    return std::pair{u / positions, place};
  };
  std::vector<std::uint32_t> order(slabs.begin(), slabs.end());
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  return order;
}

}  // namespace tally
