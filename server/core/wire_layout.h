// WireLayout: what of a group's tensors travels. A tensor that a linear codec encodes has no slabs on the wire; its
// vectors are further tensors, numbered last: the first one in the tensor's bucket, a second one (PowerSGD's Q) in a
// bucket behind all declared ones. Pure; equal on every member, as it is built from the layout message and the job's
// settings alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/schedule/layout.h"
#include "common/status.h"
#include "compress/advisor.h"
#include "compress/linear.h"

namespace tally {

// A tensor and the vectors that stand for it.
struct LinearPart {
  std::uint32_t tensor = 0;
  const LinearCodec* codec = nullptr;
  std::uint32_t first = 0;   // its vector of the first phase, a tensor of the wire
  std::uint32_t second = 0;  // of the second; equal to `first` if there is one phase
  bool two_phases() const { return second != first; }
};

// Both layouts number the same tensors; each is empty in one of them unless it travels as it is declared.
struct WireLayout {
  Layout dense;   // as declared, for callers and residuals; vectors are empty
  Layout layout;  // as it travels; tensors with a linear codec are empty
  std::vector<LinearPart> linear;
  std::vector<std::unique_ptr<LinearCodec>> linear_codecs;
  std::uint64_t first_step = 0;      // from which on this is what travels
  Config::Compression options;       // that hold then
  bool renumbered = true;            // its slabs are not those of the stage before
  std::vector<std::uint8_t> codec_ids;  // per tensor of `layout`: what its slabs are encoded with
  std::uint32_t declared_tensors = 0, declared_buckets = 0;
  std::vector<std::uint32_t> second_bucket;  // per declared bucket: that of its second phase, 0 if it has none

  bool is_vector(std::uint32_t tensor) const { return tensor >= declared_tensors; }
};

// One per stage of the codec (compress/stages.h). `codecs`: the id per tensor, of linear codecs or others. Where nothing
// compresses it, a tensor travels in its own type to its owners, in a schedule as fp32; as fp32 also in a stage whose
// owners could not hand their residual to the next one's. Errors as MakeLayout, and kCorrupt for a linear codec that does
// not fit its tensor.
Result<std::vector<WireLayout>> MakeWireStages(std::span<const TensorSpec> tensors,
                                               std::span<const std::vector<std::uint32_t>> buckets,
                                               std::span<const std::uint8_t> codecs, ExchangeKind exchange,
                                               const Config::Compression& options, std::uint32_t workers);

// The codec of each tensor: CodecForTensor, but as if uncompressed where a linear codec does not fit the shape.
// `auto_codecs`: what codec auto stands for.
Result<std::vector<std::uint8_t>> ChooseCodecs(std::span<const TensorSpec> tensors, ExchangeKind exchange,
                                               const Config::Compression& options, const AutoCodecs& auto_codecs,
                                               std::uint32_t workers);

}  // namespace tally
