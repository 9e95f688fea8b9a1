// LinearCodec: a codec whose encodings add up. It turns a tensor into one or two fp32 vectors (PowerSGD: P, then Q),
// which travel uncompressed, as tensors of their own, through whatever exchange is active; the mean that comes back is
// turned into the tensor's mean. No exchange and no owner knows of it, and there is one encode site: the worker.
// Where to add one: a file here and one TALLY_LINEAR_CODEC line in codecs.inc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "common/config/config.h"
#include "common/control.h"
#include "common/status.h"

namespace tally {

// The tensor that a LinearTensor encodes.
struct LinearPlace {
  std::uint64_t seed = 1;           // of the job
  std::uint32_t tensor = 0;         // its number in the layout
  TensorSpec spec;
  std::uint64_t slab_elements = 0;  // of its cut; the last slab is short
};

// One tensor of one worker, with what it carries from step to step. Thread: one at a time.
class LinearTensor {
 public:
  virtual ~LinearTensor() = default;

  // p = fl(fl(w*g) + e), g null for zeros -> the first vector, and into e_out p - decoded, as far as it is known before
  // the second phase (e, e_out both null: no feedback). False if any p is not finite; vector and e_out are then
  // undefined.
  virtual bool Encode(std::uint64_t step, const float* g, float w, const float* e, float* e_out, float* vector) = 0;
  // Two phases: the mean of the first vectors -> this worker's second vector, and e_out completed.
  virtual void EncodeSecond(const float* /*mean*/, float* /*e_out*/, float* /*vector*/) {}
  // Instead of Encode, in a step in which this worker sends zeros and keeps its residual: the first vector is zeros,
  // EncodeSecond touches no e_out and makes zeros of the second one.
  virtual void Keep(std::uint64_t step) = 0;
  // The tensor's mean from the mean of the last vectors.
  virtual void Decode(const float* mean, float* out) = 0;

  // What is carried from step to step, the same on all workers; between steps, also to be written.
  virtual std::span<float> carried() { return {}; }
  // The step's verdict on what is carried on: taken over, or forgotten.
  virtual void Commit() {}
  virtual void Drop() {}
};

class LinearCodec {
 public:
  virtual ~LinearCodec() = default;
  virtual std::uint8_t id() const = 0;
  virtual std::string_view name() const = 0;
  // What travels instead of the tensor, one vector per phase; none at all if the codec does not fit its shape.
  virtual std::vector<TensorSpec> Vectors(const TensorSpec& tensor, std::uint64_t slab_elements) const = 0;
  virtual std::unique_ptr<LinearTensor> Make(const LinearPlace& place) const = 0;
};

// Null if the id is of no linear codec (then MakeCodec knows it, or nobody). Errors: kInvalidArgument: an option.
Result<std::unique_ptr<LinearCodec>> MakeLinearCodec(std::uint8_t id, const Config::Compression& options);

// Bytes of a whole tensor as it travels to its owners and back, cut for `workers`, whatever its codec (a linear one's
// vectors are the same both ways). Errors as MakeCodec.
struct TravelBytes {
  std::uint64_t push = 0, reply = 0;
};
Result<TravelBytes> TensorBytes(const TensorSpec& tensor, std::uint32_t workers, const Config::Compression& options);

}  // namespace tally
