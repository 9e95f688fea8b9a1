#include "compress/saved_state.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "common/control.h"

namespace tally {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr std::uint64_t kMagic = 0x45564153594C4C54;  // "TLLYSAVE"
constexpr std::size_t kSumAt = 16, kBodyAt = 24;
// By kind of entry.
constexpr std::array kSections = {&SavedState::velocities, &SavedState::carried, &SavedState::owned,
                                 &SavedState::scales};

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    PutBytes(&value, sizeof value);
  }
  void PutBytes(const void* from, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(from);
    out.insert(out.end(), bytes, bytes + size);
  }
  void PutEntry(std::uint8_t kind, const SavedTensor& tensor) {
    Put(kind);
    Put(tensor.codec);
    Put(static_cast<std::uint16_t>(tensor.name.size()));
    PutBytes(tensor.name.data(), tensor.name.size());
    Put(tensor.offset);
    Put(std::uint64_t{tensor.values.size()});
    PutBytes(tensor.values.data(), tensor.values.size() * sizeof(float));
  }
  std::vector<std::byte> out;
};

Status Wrong(const std::string& field, std::uint64_t expected, std::uint64_t got) {
  return Corrupt("saved state: " + field + ": expected " + std::to_string(expected) + ", got " + std::to_string(got));
}

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  std::size_t left() const { return rest_.size(); }

  template <typename T>
  Status Get(const char* field, T* value) {
    return GetBytes(field, sizeof *value, value);
  }
  Status GetBytes(const std::string& field, std::uint64_t size, void* to) {
    if (size > rest_.size()) {
      return Corrupt("saved state ends within " + field + ": expected " + std::to_string(size) + " bytes, got " +
                     std::to_string(rest_.size()));
    }
    if (size != 0) std::memcpy(to, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return Status::Ok();
  }

 private:
  std::span<const std::byte> rest_;
};

Status ReadEntry(Reader& reader, std::uint8_t* kind, SavedTensor* tensor) {
  std::uint16_t name_bytes = 0;
  std::uint64_t count = 0;
  TALLY_RETURN_IF_ERROR(reader.Get("an entry's kind", kind));
  TALLY_RETURN_IF_ERROR(reader.Get("an entry's codec", &tensor->codec));
  TALLY_RETURN_IF_ERROR(reader.Get("a name's length", &name_bytes));
  tensor->name.resize(std::min<std::size_t>(name_bytes, reader.left()));
  TALLY_RETURN_IF_ERROR(reader.GetBytes("a name", name_bytes, tensor->name.data()));
  if (!IsPrintableName(tensor->name)) return Corrupt("saved state: a name is not printable or too long");
  TALLY_RETURN_IF_ERROR(reader.Get("an offset", &tensor->offset));
  TALLY_RETURN_IF_ERROR(reader.Get("a count", &count));
  if (const std::uint64_t left = reader.left() / sizeof(float); count > left) {
    return Wrong("values of " + tensor->name, count, left);
  }
  tensor->values.resize(count);
  return reader.GetBytes("values of " + tensor->name, count * sizeof(float), tensor->values.data());
}

std::uint64_t BodySum(std::span<const std::byte> bytes, std::uint32_t nodes) {
  return XXH3_64bits_withSeed(bytes.data() + kBodyAt, bytes.size() - kBodyAt, nodes);
}

}  // namespace

std::vector<std::byte> EncodeState(const SavedState& state) {
  Writer writer;
  const SavedResiduals& residuals = state.residuals;
  std::size_t entries = residuals.tensors.size(), values = 0;
  for (const SavedTensor& tensor : residuals.tensors) values += tensor.values.size();
  for (const auto section : kSections) {
    entries += (state.*section).size();
    for (const SavedTensor& tensor : state.*section) values += tensor.values.size();
  }
  writer.out.reserve(kBodyAt + 64 + entries * 160 + values * sizeof(float));
  writer.Put(kMagic);
  writer.Put(kSavedStateVersion);
  writer.Put(residuals.origin.nodes);
  writer.Put(std::uint64_t{0});
  writer.Put(residuals.origin.epoch.value);
  writer.Put(residuals.origin.world);
  writer.Put(residuals.origin.rank.value);
  writer.Put(residuals.layout_digest);
  writer.Put(state.step.value);
  writer.Put(state.learning_rate);
  writer.Put(static_cast<std::uint32_t>(entries));
  for (const SavedTensor& tensor : residuals.tensors) writer.PutEntry(0, tensor);
  for (std::uint8_t i = 0; i < kSections.size(); ++i) {
    for (const SavedTensor& tensor : state.*kSections[i]) writer.PutEntry(static_cast<std::uint8_t>(i + 1), tensor);
  }
  const std::uint64_t sum = BodySum(writer.out, residuals.origin.nodes);
  std::memcpy(writer.out.data() + kSumAt, &sum, sizeof sum);
  return std::move(writer.out);
}

std::uint64_t StateDigest(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Result<SavedState> DecodeState(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  std::uint64_t magic = 0, sum = 0;
  std::uint32_t version = 0, nodes = 0, entries = 0;
  TALLY_RETURN_IF_ERROR(reader.Get("its magic number", &magic));
  if (magic != kMagic) return Wrong("magic number", kMagic, magic);
  TALLY_RETURN_IF_ERROR(reader.Get("its version", &version));
  if (version != kSavedStateVersion) {
    return Unsupported("saved state of version " + std::to_string(version) + ", this program reads version " +
                       std::to_string(kSavedStateVersion));
  }
  TALLY_RETURN_IF_ERROR(reader.Get("its nodes", &nodes));
  TALLY_RETURN_IF_ERROR(reader.Get("its checksum", &sum));
  if (const std::uint64_t found = BodySum(bytes, nodes); found != sum) {
    return Wrong("checksum", sum, found);
  }
  SavedState state;
  SavedResiduals& residuals = state.residuals;
  residuals.origin.nodes = nodes;
  TALLY_RETURN_IF_ERROR(reader.Get("the epoch", &residuals.origin.epoch.value));
  TALLY_RETURN_IF_ERROR(reader.Get("the world", &residuals.origin.world));
  TALLY_RETURN_IF_ERROR(reader.Get("the rank", &residuals.origin.rank.value));
  TALLY_RETURN_IF_ERROR(reader.Get("the layout's digest", &residuals.layout_digest));
  TALLY_RETURN_IF_ERROR(reader.Get("the step", &state.step.value));
  TALLY_RETURN_IF_ERROR(reader.Get("the learning rate", &state.learning_rate));
  TALLY_RETURN_IF_ERROR(reader.Get("the number of entries", &entries));
  std::uint8_t last = 0;
  for (std::uint32_t i = 0; i < entries; ++i) {
    std::uint8_t kind = 0;
    SavedTensor tensor;
    TALLY_RETURN_IF_ERROR(ReadEntry(reader, &kind, &tensor));
    if (kind < last) return Wrong("kind of an entry, at least", last, kind);
    last = kind;
    if (kind > kSections.size()) return Wrong("kind of an entry, at most", kSections.size(), kind);
    (kind == 0 ? residuals.tensors : state.*kSections[kind - 1U]).push_back(std::move(tensor));
  }
  if (reader.left() != 0) return Wrong("bytes after the last entry", 0, reader.left());
  return state;
}

}  // namespace tally
