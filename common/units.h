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

// Numbers travel as gradients (the first three) or in standalone collectives (all).
enum class DType : std::uint8_t {
  kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2, kFloat64 = 3, kInt8 = 4, kUint8 = 5, kInt32 = 6, kInt64 = 7
};
inline constexpr DType kLastDType = DType::kInt64;
constexpr std::uint64_t DTypeBytes(DType type) {
  constexpr std::uint64_t kBytes[] = {4, 2, 2, 8, 1, 1, 4, 8};
  return kBytes[static_cast<std::uint8_t>(type)];
}
constexpr const char* DTypeName(DType type) {
  constexpr const char* kNames[] = {"fp32", "fp16", "bf16", "fp64", "int8", "uint8", "int32", "int64"};
  return kNames[static_cast<std::uint8_t>(type)];
}
constexpr bool IsGradientType(DType type) { return type <= DType::kBFloat16; }
constexpr bool IsFloating(DType type) { return type <= DType::kFloat64; }

// What a collective makes of one number of each rank.
enum class ReduceOp : std::uint8_t {
  kSum = 0, kMean = 1, kMin = 2, kMax = 3, kProduct = 4, kAnd = 5, kOr = 6, kXor = 7
};
inline constexpr ReduceOp kLastReduceOp = ReduceOp::kXor;
constexpr const char* ReduceOpName(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "product", "and", "or", "xor"};
  return kNames[static_cast<std::uint8_t>(op)];
}
// A mean is of floating numbers, what is bitwise of integers.
constexpr bool Reducible(DType type, ReduceOp op) {
  if (op == ReduceOp::kMean) return IsFloating(type);
  return op < ReduceOp::kAnd || !IsFloating(type);
}

}  // namespace tally

template <typename Tag, typename Integer>
struct std::hash<tally::Strong<Tag, Integer>> {
  std::size_t operator()(const tally::Strong<Tag, Integer>& s) const noexcept { return std::hash<Integer>{}(s.value); }
};
