#include "server/core/wire_layout.h"

#include <algorithm>
#include <map>
#include <string>

#include "compress/codec.h"
#include "compress/half_numbers.h"
#include "compress/stages.h"

namespace tally {

namespace {

Result<WireLayout> MakeWireLayout(std::span<const TensorSpec> tensors,
                                  std::span<const std::vector<std::uint32_t>> buckets,
                                  std::span<const std::uint8_t> codecs, const Config::Compression& options,
                                  std::uint32_t workers) {
  TALLY_CHECK(codecs.size() == tensors.size(), "one codec per tensor");
  WireLayout result;
  result.declared_tensors = static_cast<std::uint32_t>(tensors.size());
  result.declared_buckets = static_cast<std::uint32_t>(buckets.size());
  std::vector<TensorSpec> dense(tensors.begin(), tensors.end()), wire = dense;
  std::vector<std::vector<std::uint32_t>> wire_buckets(buckets.begin(), buckets.end());
  std::map<std::uint8_t, const LinearCodec*> linear;
  const auto add_vector = [&](const TensorSpec& vector) {
    wire.push_back(vector);
    dense.push_back({vector.name, ElementCount(0), vector.dtype});
    return static_cast<std::uint32_t>(wire.size() - 1);
  };
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    std::vector<std::uint32_t> bucket = wire_buckets[b], second_phase;
    for (std::size_t i = 0, declared = bucket.size(); i < declared; ++i) {
      const std::uint32_t t = bucket[i];
      if (t >= tensors.size()) continue;  // MakeLayout says so
      if (!linear.contains(codecs[t])) {
        TALLY_ASSIGN_OR_RETURN(std::unique_ptr<LinearCodec> made, MakeLinearCodec(codecs[t], options));
        linear[codecs[t]] = made.get();
        if (made != nullptr) result.linear_codecs.push_back(std::move(made));
      }
      const LinearCodec* codec = linear[codecs[t]];
      if (codec == nullptr) continue;
      const std::vector<TensorSpec> vectors =
          codec->Vectors(tensors[t], CutTensor(tensors[t].elements.value, workers).elements);
      if (vectors.empty()) {
        return Corrupt("tensor " + tensors[t].name + " cannot travel as " + std::string(codec->name()));
      }
      LinearPart part{.tensor = t, .codec = codec, .first = add_vector(vectors.front())};
      part.second = vectors.size() > 1 ? add_vector(vectors.back()) : part.first;
      bucket.push_back(part.first);
      if (part.two_phases()) second_phase.push_back(part.second);
      wire[t].elements = ElementCount(0);
      result.linear.push_back(part);
    }
    wire_buckets[b] = std::move(bucket);
    result.second_bucket.push_back(second_phase.empty() ? 0 : static_cast<std::uint32_t>(wire_buckets.size()));
    if (!second_phase.empty()) wire_buckets.push_back(std::move(second_phase));
  }
  TALLY_ASSIGN_OR_RETURN(result.layout, MakeLayout(wire, wire_buckets, workers));
  TALLY_ASSIGN_OR_RETURN(result.dense, MakeLayout(dense, wire_buckets, workers));
  return result;
}

std::uint8_t Uncompressed(const TensorSpec& tensor, ExchangeKind exchange) {
  return exchange == ExchangeKind::kSchedule ? kCodecNone : PlainCodec(tensor.dtype);
}

// What tensors travel with before the codec begins. What an owner rounds off of a 16-bit mean is the residual of the
// slab's owner in the next stage: of the same one, which keeps one, or there must be none.
Result<std::vector<std::uint8_t>> BeforeItBegins(std::span<const TensorSpec> tensors, std::span<const std::uint8_t> codecs,
                                                 ExchangeKind exchange, const Config::Compression& options) {
  const bool owners_change = std::ranges::any_of(codecs, IsLinearCodec);  // as slabs are numbered anew
  std::vector<std::uint8_t> before;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    bool kept = !owners_change;
    if (kept) {
      TALLY_ASSIGN_OR_RETURN(const auto codec, MakeCodec(codecs[t], options));
      kept = HasLossyReply(*codec);
    }
    before.push_back(kept ? Uncompressed(tensors[t], exchange) : kCodecNone);
  }
  return before;
}

}  // namespace

Result<std::vector<WireLayout>> MakeWireStages(std::span<const TensorSpec> tensors,
                                               std::span<const std::vector<std::uint32_t>> buckets,
                                               std::span<const std::uint8_t> codecs, ExchangeKind exchange,
                                               const Config::Compression& options, std::uint32_t workers) {
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> uncompressed, BeforeItBegins(tensors, codecs, exchange, options));
  std::vector<CodecStage> stages = CodecStages(options);
  if (std::ranges::equal(codecs, uncompressed)) stages = {{.first_step = 0, .options = options}};
  std::vector<WireLayout> result;
  for (CodecStage& stage : stages) {
    result.emplace_back();
    TALLY_ASSIGN_OR_RETURN(result.back(), MakeWireLayout(tensors, buckets, stage.uncompressed ? uncompressed : codecs,
                                                         stage.options, workers));
    WireLayout& wire = result.back();
    wire.first_step = stage.first_step;
    wire.options = std::move(stage.options);
    // Vectors travel as they are; so does nothing of the tensors that they stand for.
    wire.codec_ids = stage.uncompressed ? uncompressed : std::vector(codecs.begin(), codecs.end());
    for (const LinearPart& part : wire.linear) wire.codec_ids[part.tensor] = kCodecNone;
    wire.codec_ids.resize(wire.layout.tensors.size(), kCodecNone);
    if (result.size() > 1) wire.renumbered = wire.layout.slabs != result[result.size() - 2].layout.slabs;
  }
  return result;
}

Result<std::vector<std::uint8_t>> ChooseCodecs(std::span<const TensorSpec> tensors, ExchangeKind exchange,
                                               const Config::Compression& options, const AutoCodecs& auto_codecs,
                                               std::uint32_t workers) {
  std::vector<std::uint8_t> codecs;
  Config::Compression resolved = options;
  for (const TensorSpec& tensor : tensors) {
    if (options.codec == kCodecAuto) resolved.codec = auto_codecs.For(tensor.dtype);
    codecs.push_back(CodecForTensor(tensor.name, tensor.elements.value, resolved, tensor.dtype));
    if (codecs.back() == kCodecNone) {
      codecs.back() = Uncompressed(tensor, exchange);
      continue;
    }
    TALLY_ASSIGN_OR_RETURN(const auto linear, MakeLinearCodec(codecs.back(), resolved));
    if (linear == nullptr) continue;
    const std::uint64_t slab_elements = CutTensor(tensor.elements.value, workers).elements;
    if (linear->Vectors(tensor, slab_elements).empty()) codecs.back() = Uncompressed(tensor, exchange);
  }
  return codecs;
}

}  // namespace tally
