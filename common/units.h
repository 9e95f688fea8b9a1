// Strong types for the numbers that cross interfaces, so that a rank is never passed for a position.
// Each is a plain integer inside: explicit to make, `.value` to read, ordered and hashable.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tally {

template <typename Tag, typename Integer>
struct Strong {
  using Underlying = Integer;
  Integer value = 0;

  constexpr Strong() = default;
  constexpr explicit Strong(Integer v) : value(v) {}
  constexpr auto operator<=>(const Strong&) const = default;
  constexpr Strong& operator++() {
    ++value;
    return *this;
  }
};

using Rank = Strong<struct RankTag, std::uint32_t>;          // a worker, 0..N-1 in the launcher's order
using Position = Strong<struct PositionTag, std::uint32_t>;  // a worker's index in the epoch's ring order
using SlabId = Strong<struct SlabTag, std::uint32_t>;        // u: a slab's number within its group
using BucketId = Strong<struct BucketTag, std::uint32_t>;    // a bucket's number within its group
using GroupId = Strong<struct GroupTag, std::uint32_t>;      // 0 = standalone collectives
using StepId = Strong<struct StepTag, std::uint64_t>;        // a step's number within its group, from 0
using EpochId = Strong<struct EpochTag, std::uint64_t>;      // version of members, layout and tables, from 1
using ElementCount = Strong<struct ElementTag, std::uint64_t>;
using ByteCount = Strong<struct ByteTag, std::uint64_t>;

enum class DType : std::uint8_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };
constexpr std::uint64_t DTypeBytes(DType type) { return type == DType::kFloat32 ? 4 : 2; }
constexpr const char* DTypeName(DType type) {
  return type == DType::kFloat32 ? "fp32" : type == DType::kFloat16 ? "fp16" : "bf16";
}

}  // namespace tally

template <typename Tag, typename Integer>
struct std::hash<tally::Strong<Tag, Integer>> {
  std::size_t operator()(const tally::Strong<Tag, Integer>& s) const noexcept { return std::hash<Integer>{}(s.value); }
};
