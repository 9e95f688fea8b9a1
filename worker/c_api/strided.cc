#include "worker/c_api/strided.h"

#include <array>
#include <cstddef>
#include <cstring>

#include "common/control.h"
#include "common/units.h"

namespace tally::c_api {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
static_assert(TALLY_MAX_DIMENSIONS == kMaxDimensions);

std::size_t ElementBytes(const tally_array& array) { return DTypeBytes(static_cast<DType>(array.dtype)); }

}  // namespace

Status CountElements(std::uint32_t dimensions, const std::uint64_t* shape, std::uint64_t* elements) {
  if (dimensions > kMaxDimensions) {
    return InvalidArgument(std::to_string(dimensions) + " dimensions: at most " + std::to_string(kMaxDimensions));
  }
  if (dimensions > 0 && shape == nullptr) return InvalidArgument("dimensions without a shape");
  const std::span<const std::uint64_t> sizes(shape, dimensions);
  *elements = 1;
  for (const std::uint64_t size : sizes) {
    if (__builtin_mul_overflow(*elements, size, elements) || *elements > kMaxElements) {
      return InvalidArgument("shape " + ShapeText(sizes) + ": at most 2^40 elements");
    }
  }
  return Status::Ok();
}

std::string ShapeText(std::span<const std::uint64_t> shape) {
  if (shape.empty()) return "scalar";
  std::string text;
  for (const std::uint64_t size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
  return text;
}

bool IsPlain(const tally_array& array) {
  if (reinterpret_cast<std::uintptr_t>(array.data) % ElementBytes(array) != 0) return false;
  if (array.strides == nullptr) return true;
  // A dimension of one element is never stepped along: its stride means nothing.
  std::uint64_t expected = 1;
  for (std::uint32_t d = array.dimensions; d-- > 0;) {
    if (array.shape[d] != 1 && array.strides[d] != static_cast<std::int64_t>(expected)) return false;
    expected *= array.shape[d];
  }
  return true;
}

void Pack(const tally_array& array, void* out) {
  const std::size_t bytes = ElementBytes(array);
  std::array<std::int64_t, TALLY_MAX_DIMENSIONS> strides{};
  std::array<std::uint64_t, TALLY_MAX_DIMENSIONS> index{};
  std::uint64_t elements = 1;
  for (std::uint32_t d = array.dimensions; d-- > 0;) {
    strides[d] = array.strides != nullptr ? array.strides[d] : static_cast<std::int64_t>(elements);
    elements *= array.shape[d];
  }
  if (elements == 0) return;
  // Runs along the last dimension: one copy for each where it has no gaps.
  const std::uint32_t outer = array.dimensions == 0 ? 0 : array.dimensions - 1;
  const std::uint64_t run = array.dimensions == 0 ? 1 : array.shape[outer];
  const std::int64_t step = array.dimensions == 0 ? 1 : strides[outer];
  const auto* from = static_cast<const std::byte*>(array.data);
  auto* to = static_cast<std::byte*>(out);
  for (std::uint64_t done = 0; done < elements; done += run) {
    std::int64_t offset = 0;
    for (std::uint32_t d = 0; d < outer; ++d) offset += static_cast<std::int64_t>(index[d]) * strides[d];
    const std::byte* row = from + offset * static_cast<std::int64_t>(bytes);
    if (step == 1) {
      std::memcpy(to, row, run * bytes);
    } else {
      for (std::uint64_t i = 0; i < run; ++i) {
        std::memcpy(to + i * bytes, row + static_cast<std::int64_t>(i * bytes) * step, bytes);
      }
    }
    to += run * bytes;
    for (std::uint32_t d = outer; d-- > 0;) {
      if (++index[d] < array.shape[d]) break;
      index[d] = 0;
    }
  }
}

}  // namespace tally::c_api
