// The linear codecs of codecs.inc.
#include "compress/linear.h"

#include <algorithm>
#include <array>

#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/owner_sum.h"

namespace tally {

#define TALLY_CODEC(id, name, factory)
#define TALLY_LINEAR_CODEC(id, name, factory) \
  std::unique_ptr<LinearCodec> factory(const Config::Compression& options);
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC

namespace {

struct LinearEntry {
  std::uint8_t id = 0;
  std::unique_ptr<LinearCodec> (*make)(const Config::Compression& options) = nullptr;
};

constexpr std::array kLinearCodecs = {
#define TALLY_LINEAR_CODEC(id, name, factory) LinearEntry{id, &factory},
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC
#undef TALLY_CODEC
};

}  // namespace

Result<std::unique_ptr<LinearCodec>> MakeLinearCodec(std::uint8_t id, const Config::Compression& options) {
  const auto found = std::ranges::find(kLinearCodecs, id, &LinearEntry::id);
  if (found == kLinearCodecs.end()) return std::unique_ptr<LinearCodec>();
  TALLY_RETURN_IF_ERROR(CheckCompression(options));
  return found->make(options);
}

Result<TravelBytes> TensorBytes(const TensorSpec& tensor, std::uint32_t workers, const Config::Compression& options) {
  if (options.codec == kCodecAuto) return Unsupported("what codec auto sends is known once a job has started");
  const std::uint64_t n = tensor.elements.value;
  const Cut cut = CutTensor(n, workers);
  std::uint8_t id = CodecForTensor(tensor.name, n, options);
  TALLY_ASSIGN_OR_RETURN(const auto linear, MakeLinearCodec(id, options));
  if (linear != nullptr) {
    std::uint64_t bytes = 0;
    for (const TensorSpec& vector : linear->Vectors(tensor, cut.elements)) {
      bytes += vector.elements.value * sizeof(float);
    }
    if (bytes != 0) return TravelBytes{bytes, bytes};
    id = kCodecNone;
  }
  TALLY_ASSIGN_OR_RETURN(const auto codec, MakeCodec(id, options));
  const auto sum = codec->MakeOwnerSum(workers);
  TravelBytes bytes;
  for (std::uint64_t i = 0; i < cut.count; ++i) {
    const std::uint64_t elements = std::min(cut.elements, n - i * cut.elements);
    const std::uint64_t push = codec->EncodedBytes(elements);
    bytes.push += push;
    bytes.reply += sum == nullptr ? push : sum->UsualReplyBytes(elements);
  }
  return bytes;
}

}  // namespace tally
