#include "worker/cli/gradient_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>

#include "common/check.h"
#include "common/crc32c.h"
#include "compress/codec.h"

namespace tally::cli {
namespace {

constexpr char kMagic[8] = {'T', 'A', 'L', 'L', 'Y', 'G', 'R', 'D'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kMaxTensors = 4096, kMaxNameBytes = 128, kMaxSteps = 65536;
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{1} << 30;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  std::size_t left() const { return rest_.size(); }
  std::span<const std::byte> Take(std::size_t bytes) {
    const auto taken = rest_.first(bytes);
    rest_ = rest_.subspan(bytes);
    return taken;
  }
  Result<std::uint32_t> Number(const char* field, std::uint32_t least, std::uint32_t most) {
    if (left() < sizeof(std::uint32_t)) return Corrupt(std::string(field) + ": the file ends before it");
    std::uint32_t value = 0;
    std::memcpy(&value, Take(sizeof value).data(), sizeof value);
    if (value < least || value > most) {
      return Corrupt(std::string(field) + ": expected " + std::to_string(least) + " to " + std::to_string(most) +
                     ", got " + std::to_string(value));
    }
    return value;
  }

 private:
  std::span<const std::byte> rest_;
};

void Append(std::vector<std::byte>* out, std::span<const std::byte> bytes) {
  const std::size_t at = out->size();
  out->resize(at + bytes.size());
  std::memcpy(out->data() + at, bytes.data(), bytes.size());
}
void AppendNumber(std::vector<std::byte>* out, std::uint64_t value) {
  const auto number = static_cast<std::uint32_t>(value);
  Append(out, std::as_bytes(std::span(&number, 1)));
}

// fp16 values are what the codec of that name makes of fp32 ones.
std::unique_ptr<Codec> CodecOf(DType type) {
  return MakeCodec(type == DType::kFloat16 ? "fp16" : "none", Config::Compression{}).value();
}

Result<RecordedTensor> ReadTensor(Reader* reader) {
  constexpr std::uint32_t kMaxSide = 1u << 24;
  RecordedTensor tensor;
  TALLY_ASSIGN_OR_RETURN(tensor.rows, reader->Number("rows", 1, kMaxSide));
  TALLY_ASSIGN_OR_RETURN(tensor.columns, reader->Number("columns", 1, kMaxSide));
  TALLY_ASSIGN_OR_RETURN(const std::uint32_t length, reader->Number("length of a name", 1, kMaxNameBytes));
  if (reader->left() < length) return Corrupt("name of a tensor: the file ends inside it");
  for (const std::byte byte : reader->Take(length)) tensor.name += static_cast<char>(byte);
  if (std::ranges::any_of(tensor.name, [](char c) { return c < 0x20 || c > 0x7e; })) {
    return Corrupt("name of a tensor: expected printable ASCII");
  }
  return tensor;
}

}  // namespace

std::size_t RecordedGradients::elements() const {
  std::size_t count = 0;
  for (const RecordedTensor& tensor : tensors) count += tensor.elements();
  return count;
}

std::vector<std::byte> EncodeGradients(const RecordedGradients& gradients, DType type) {
  TALLY_CHECK(type != DType::kBFloat16, "gradients are recorded in fp32 or fp16");
  std::vector<std::byte> out;
  Append(&out, std::as_bytes(std::span(kMagic)));
  AppendNumber(&out, kVersion);
  AppendNumber(&out, type == DType::kFloat16 ? 1 : 0);
  AppendNumber(&out, gradients.steps.size());
  AppendNumber(&out, gradients.tensors.size());
  for (const RecordedTensor& tensor : gradients.tensors) {
    AppendNumber(&out, tensor.rows);
    AppendNumber(&out, tensor.columns);
    AppendNumber(&out, tensor.name.size());
    Append(&out, std::as_bytes(std::span(tensor.name)));
  }
  const auto codec = CodecOf(type);
  for (const std::vector<float>& step : gradients.steps) {
    TALLY_CHECK(step.size() == gradients.elements(), "a step holds all tensors' values");
    const std::size_t at = out.size();
    out.resize(at + codec->EncodedBytes(step.size()));
    codec->Encode({}, step.data(), step.size(), out.data() + at, nullptr);
  }
  AppendNumber(&out, Crc32c(out));
  return out;
}

Result<RecordedGradients> DecodeGradients(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  if (bytes.size() < sizeof kMagic || std::memcmp(reader.Take(sizeof kMagic).data(), kMagic, sizeof kMagic) != 0) {
    return Corrupt("not a file of recorded gradients: it does not begin with TALLYGRD");
  }
  TALLY_RETURN_IF_ERROR(reader.Number("version", kVersion, kVersion).status());
  TALLY_ASSIGN_OR_RETURN(const std::uint32_t type, reader.Number("type", 0, 1));
  TALLY_ASSIGN_OR_RETURN(const std::uint32_t steps, reader.Number("steps", 1, kMaxSteps));
  TALLY_ASSIGN_OR_RETURN(const std::uint32_t tensors, reader.Number("tensors", 1, kMaxTensors));
  RecordedGradients gradients;
  for (std::uint32_t t = 0; t < tensors; ++t) {
    TALLY_ASSIGN_OR_RETURN(RecordedTensor tensor, ReadTensor(&reader));
    gradients.tensors.push_back(std::move(tensor));
  }
  // At most 2^60 elements, so that the product below cannot wrap unnoticed.
  const std::uint64_t value_bytes = type == 1 ? 2 : 4, elements = gradients.elements();
  constexpr std::size_t kCrcBytes = sizeof(std::uint32_t);
  if (elements > kMaxFileBytes || elements * value_bytes * steps + kCrcBytes != reader.left()) {
    return Corrupt("values: expected " + std::to_string(steps) + " steps of " + std::to_string(elements) +
                   " numbers and a checksum, got " + std::to_string(reader.left()) + " bytes");
  }
  std::uint32_t checksum = 0;
  std::memcpy(&checksum, bytes.last(kCrcBytes).data(), kCrcBytes);
  if (checksum != Crc32c(bytes.first(bytes.size() - kCrcBytes))) return Corrupt("checksum: the file was changed");

  const auto codec = CodecOf(type == 1 ? DType::kFloat16 : DType::kFloat32);
  for (std::uint32_t s = 0; s < steps; ++s) {
    const auto payload = reader.Take(value_bytes * elements);
    if (const Status valid = codec->Validate(payload, elements); !valid.ok()) {
      return valid.WithContext("step " + std::to_string(s));
    }
    std::vector<float>& step = gradients.steps.emplace_back(elements);
    codec->Decode(payload, elements, step.data());
    if (!std::ranges::all_of(step, [](float value) { return std::isfinite(value); })) {
      return Corrupt("step " + std::to_string(s) + ": a value that is not finite");
    }
  }
  return gradients;
}

Result<RecordedGradients> ReadGradients(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = in ? std::streamoff{in.tellg()} : -1;
  if (size < 0) return Unavailable(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read"));
  if (static_cast<std::uint64_t>(size) > kMaxFileBytes) return Corrupt(path + ": larger than 1 GiB");
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  in.seekg(0);
  if (!in.read(reinterpret_cast<char*>(bytes.data()), size)) {
    return Unavailable(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read"));
  }
  auto gradients = DecodeGradients(bytes);
  if (!gradients.ok()) return gradients.status().WithContext(path);
  return gradients;
}

}  // namespace tally::cli
