#include "server/core/owned_slabs.h"

namespace tally {

OwnedSlabs::OwnedSlabs(const Layout& layout, std::span<const std::uint32_t> numbers,
                       std::span<const Codec* const> tensor_codec, std::uint32_t workers)
    : sums_(tensor_codec, workers), local_(layout.slabs.size(), kNotHere) {
  slabs_.reserve(numbers.size());
  for (const std::uint32_t u : numbers) {
    const Slab& slab = layout.slabs[u];
    const Codec* codec = tensor_codec[slab.tensor];
    local_[u] = size();
    slabs_.push_back({u, slab, codec, sums_[slab.tensor], codec->EncodedBytes(slab.elements)});
  }
}

Layout OwnedSlabs::AsTensors() const {
  Layout layout;
  layout.first_slab.push_back(0);
  for (std::uint32_t local = 0; local < size(); ++local) {
    const std::uint32_t elements = slabs_[local].slab.elements;
    layout.tensors.push_back({.name = {}, .elements = ElementCount(elements)});
    layout.slabs.push_back({.tensor = local, .offset = 0, .elements = elements, .bucket = 0});
    layout.first_slab.push_back(local + 1);
  }
  return layout;
}

Status OwnedSlabs::Check(const Frame& push) const {
  const FrameHeader& header = push.header;
  const bool non_finite = (header.flags & kFlagNonFinite) != 0;
  const bool keep = (header.flags & kFlagKeep) != 0;
  if (non_finite && keep) return WrongPush("flags", "non-finite or keep", "both");
  if (header.slabs.empty()) return WrongPush("slabs", "at least one", "none");
  if (non_finite && header.slabs.size() != 1) {
    return WrongPush("slabs of a non-finite frame", "one", std::to_string(header.slabs.size()));
  }
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < header.slabs.size(); ++i) {
    const std::uint32_t u = header.slabs[i];
    if (i > 0 && u <= header.slabs[i - 1]) {
      return WrongPush("slab numbers", "above " + std::to_string(header.slabs[i - 1]), std::to_string(u));
    }
    if (Local(u) == kNotHere) return WrongPush("slab", "one owned here", std::to_string(u));
    const OwnedSlab& owned = slabs_[Local(u)];
    if (owned.slab.bucket != header.bucket.value) {
      return WrongPush("bucket of slab " + std::to_string(u), std::to_string(owned.slab.bucket),
                       std::to_string(header.bucket.value));
    }
    if (owned.codec->id() != header.codec) {
      return WrongPush("codec of slab " + std::to_string(u), std::to_string(owned.codec->id()),
                       std::to_string(header.codec));
    }
    bytes += owned.encoded_bytes;
  }
  if (non_finite || keep) bytes = 0;
  if (push.payload.size() != bytes) {
    return WrongPush("payload", std::to_string(bytes) + " bytes", std::to_string(push.payload.size()));
  }
  if (non_finite || keep) return Status::Ok();
  std::span<const std::byte> rest = push.payload;
  for (const std::uint32_t u : header.slabs) {
    const OwnedSlab& owned = slabs_[Local(u)];
    const Status valid = owned.codec->Validate(rest.first(owned.encoded_bytes), owned.slab.elements);
    if (!valid.ok()) return valid.WithContext("push: slab " + std::to_string(u));
    rest = rest.subspan(owned.encoded_bytes);
  }
  return Status::Ok();
}

Status WrongPush(std::string_view field, const std::string& expected, const std::string& got) {
  return Corrupt(std::string("push: ").append(field) + ": expected " + expected + ", got " + got);
}

}  // namespace tally
