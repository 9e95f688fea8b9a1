#include "compress/shared_scales.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "compress/quantize.h"

namespace tally {
namespace {

Layout BlocksAsElements(const Layout& layout, const std::vector<bool>& tensors) {
  Layout blocks;
  if (std::ranges::find(tensors, true) == tensors.end()) return blocks;
  blocks.first_slab.push_back(0);
  for (std::uint32_t u = 0; u < layout.slabs.size(); ++u) {
    const auto count = static_cast<std::uint32_t>(SharedBlocks(layout.slabs[u].elements));
    blocks.tensors.push_back({.name = {}, .elements = ElementCount(count)});
    blocks.slabs.push_back({.tensor = u, .offset = 0, .elements = count, .bucket = 0});
    blocks.first_slab.push_back(u + 1);
  }
  return blocks;
}

std::vector<bool> PerSlab(const Layout& layout, const std::vector<bool>& tensors) {
  std::vector<bool> slabs;
  if (std::ranges::find(tensors, true) == tensors.end()) return slabs;
  for (const Slab& slab : layout.slabs) slabs.push_back(tensors[slab.tensor]);
  return slabs;
}

}  // namespace

SharedScales::SharedScales(const Layout& layout, const std::vector<bool>& tensors)
    : as_tensors_(BlocksAsElements(layout, tensors)), scales_(as_tensors_, PerSlab(layout, tensors)) {}

float* SharedScales::Next(std::uint32_t slab) {
  if (!any()) return nullptr;
  given_ = given_ || scales_.Has(slab);
  return scales_.Next(as_tensors_.slabs[slab]);
}

void SharedScales::Restore(std::uint32_t slab, std::span<const float> values) {
  scales_.Restore(slab, values);
  known_ = true;
}

void SharedScales::Forget() {
  for (std::uint32_t u = 0; u < as_tensors_.slabs.size(); ++u) {
    if (scales_.Has(u)) scales_.Restore(u, std::vector<float>(as_tensors_.slabs[u].elements));
  }
  known_ = given_ = false;
}

bool SharedScales::IsScale(float value) {
  const auto exponent = static_cast<std::byte>(std::bit_cast<std::uint32_t>(value) >> 23 & 0xFF);
  return Pow2Scale<8>::IsValid(&exponent) && Pow2Scale<8>::Load(&exponent) == value && !std::signbit(value);
}

void SharedScales::Commit() {
  scales_.Commit();
  known_ = known_ || given_;
  given_ = false;
}

void SharedScales::Drop() {
  scales_.Drop();
  given_ = false;
}

}  // namespace tally
