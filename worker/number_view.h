// NumberView, ConstNumberView: the caller's numbers of any type that collectives know, as memory, count and type. fp16
// and bf16 are their bits, so their type has to be said. Borrows; any alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "common/units.h"

namespace tally {

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) {
    return DType::kFloat32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::kFloat64;
  } else if constexpr (std::is_same_v<T, std::int8_t>) {
    return DType::kInt8;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return DType::kUint8;
  } else if constexpr (std::is_same_v<T, std::int32_t>) {
    return DType::kInt32;
  } else {
    static_assert(std::is_same_v<T, std::int64_t>, "no collective knows this type; of 16-bit numbers say which they are");
    return DType::kInt64;
  }
}

struct NumberView {
  void* data = nullptr;
  std::size_t elements = 0;
  DType dtype = DType::kFloat32;

  NumberView(void* d, std::size_t n, DType type) : data(d), elements(n), dtype(type) {}
  template <typename T>
  NumberView(std::span<T> numbers) : NumberView(numbers.data(), numbers.size(), DTypeOf<T>()) {}  // NOLINT: a view
};

struct ConstNumberView {
  const void* data = nullptr;
  std::size_t elements = 0;
  DType dtype = DType::kFloat32;

  ConstNumberView(const void* d, std::size_t n, DType type) : data(d), elements(n), dtype(type) {}
  ConstNumberView(const NumberView& view) : ConstNumberView(view.data, view.elements, view.dtype) {}  // NOLINT
  template <typename T>
  ConstNumberView(std::span<T> numbers)  // NOLINT: a view
      : ConstNumberView(numbers.data(), numbers.size(), DTypeOf<std::remove_const_t<T>>()) {}
};

}  // namespace tally
