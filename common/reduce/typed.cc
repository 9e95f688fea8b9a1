// The compiler vectorises these loops, once for each instruction set that Highway offers; the best one is chosen at run
// time.
#include "common/reduce/typed.h"

#include <cstring>

#include "common/check.h"
#include "common/reduce/combine.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/reduce/typed.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

template <ReduceOp kOp, typename T>
void Run(std::byte* __restrict a, const std::byte* __restrict b, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T x, y;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b + i * sizeof(T), sizeof(T));
    x = Combine<kOp>(x, y);
    std::memcpy(a + i * sizeof(T), &x, sizeof(T));
  }
}

template <typename T>
void RunOf(ReduceOp op, std::byte* a, const std::byte* b, std::size_t n) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean: return Run<ReduceOp::kSum, T>(a, b, n);
    case ReduceOp::kMin: return Run<ReduceOp::kMin, T>(a, b, n);
    case ReduceOp::kMax: return Run<ReduceOp::kMax, T>(a, b, n);
    case ReduceOp::kProduct: return Run<ReduceOp::kProduct, T>(a, b, n);
    case ReduceOp::kAnd:
    case ReduceOp::kOr:
    case ReduceOp::kXor: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == ReduceOp::kAnd) return Run<ReduceOp::kAnd, T>(a, b, n);
    if (op == ReduceOp::kOr) return Run<ReduceOp::kOr, T>(a, b, n);
    return Run<ReduceOp::kXor, T>(a, b, n);
  }
}

void Reduce(DType type, ReduceOp op, std::byte* a, const std::byte* b, std::size_t n) {
  switch (type) {
    case DType::kFloat32: return RunOf<float>(op, a, b, n);
    case DType::kFloat16: return RunOf<Float16Bits>(op, a, b, n);
    case DType::kBFloat16: return RunOf<BFloat16Bits>(op, a, b, n);
    case DType::kFloat64: return RunOf<double>(op, a, b, n);
    case DType::kInt8: return RunOf<std::int8_t>(op, a, b, n);
    case DType::kUint8: return RunOf<std::uint8_t>(op, a, b, n);
    case DType::kInt32: return RunOf<std::int32_t>(op, a, b, n);
    case DType::kInt64: return RunOf<std::int64_t>(op, a, b, n);
  }
}

template <typename T>
void DivideBy(std::byte* a, std::uint32_t count, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T x;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    x = Average(x, count);
    std::memcpy(a + i * sizeof(T), &x, sizeof(T));
  }
}

void Divide(DType type, std::byte* a, std::uint32_t count, std::size_t n) {
  if (type == DType::kFloat32) DivideBy<float>(a, count, n);
  if (type == DType::kFloat16) DivideBy<Float16Bits>(a, count, n);
  if (type == DType::kBFloat16) DivideBy<BFloat16Bits>(a, count, n);
  if (type == DType::kFloat64) DivideBy<double>(a, count, n);
}

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Reduce);
HWY_EXPORT(Divide);

void ReduceInto(DType type, ReduceOp op, std::byte* a, const std::byte* b, std::size_t n) {
  TALLY_CHECK(Reducible(type, op), "an operation that the type of numbers has");
  HWY_DYNAMIC_DISPATCH(Reduce)(type, op, a, b, n);
}

void AverageInPlace(DType type, std::byte* a, std::uint32_t count, std::size_t n) {
  TALLY_CHECK(IsFloating(type) && count > 0, "a mean of floating numbers");
  HWY_DYNAMIC_DISPATCH(Divide)(type, a, count, n);
}

}  // namespace tally
#endif  // HWY_ONCE
