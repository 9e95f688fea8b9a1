// Codec: turns the fp32 numbers of one slab into bytes and back (definitions: CODECS.md of the design; laws in
// tests/conformance). Stateless: residuals belong to the caller (ErrorFeedback). Any thread, concurrently.
// Where to add one: a file here and one line in codecs.inc; the conformance tests run over the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/config/config.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

inline constexpr std::uint8_t kCodecNone = 0;  // payload = the fp32 numbers themselves
inline constexpr std::string_view kCodecAuto = "auto";  // a setting, not a codec: the coordinator picks (advisor.h)

// Who takes a slab's mean (DESIGN §5): the owner before encoding the reply, or each receiver after decoding.
enum class DividedBy : std::uint8_t { kOwner, kReceiver };

struct CodecTraits {
  bool lossy = false;
  bool linear = false;           // encodings may be summed anywhere; schedules carry its fp32 vectors
  bool feedback_forced = false;  // refuses to run without error feedback unless the user insists (warning)
  bool momentum = false;         // keeps a velocity besides the residual: EncodeWithMomentum
  bool integer_sum = false;      // once all workers share scales its codes add up as integers: EncodeShared
  bool exact_reply = false;      // the owner answers with the sum as it is: MakeOwnerSum, no residual there
  bool exact_residual = false;   // p - decode is exact in fp32, so p = decode + e' bit by bit
  DividedBy divided_by = DividedBy::kOwner;
};

// What stochastic rounding is keyed by: (seed, tensor) and (step, position, offset/4). Replies use position 2^32-1.
struct EncodeKey {
  std::uint64_t seed = 0;
  std::uint32_t tensor = 0;
  std::uint64_t step = 0;
  std::uint32_t position = 0;
  std::uint64_t offset = 0;  // of the slab's first element within its tensor
  bool stochastic = false;   // else nearest even; codecs without rounding ignore it
};

class OwnerSum;

class Codec {
 public:
  virtual ~Codec() = default;
  virtual std::uint8_t id() const = 0;
  virtual std::string_view name() const = 0;
  virtual CodecTraits traits() const = 0;

  // Exact size of the encoding of n elements. Depends on nothing but n and the codec's options. 0 for n = 0.
  virtual std::size_t EncodedBytes(std::size_t n) const = 0;

  // Encodes p[0..n) into out[0..EncodedBytes(n)). If `decoded` is not null, also writes what receivers will decode.
  // p is finite (the caller has checked). out and decoded do not overlap p.
  virtual void Encode(const EncodeKey& key, const float* p, std::size_t n, std::byte* out, float* decoded) const = 0;

  // Encodes p = fl(fl(w*g) + e) in one pass and writes e_out = p - decode (both null: no feedback, p = fl(w*g)).
  // e and e_out may not overlap. Returns false, with `out` and `e_out` undefined, if any input, product or p is not
  // finite. The default does it in slab-sized steps over Encode; fast codecs override it.
  virtual bool EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out,
                                  std::size_t n, std::byte* out) const;

  // As EncodeWithFeedback, for codecs whose traits say momentum: u is the velocity, u_out what it becomes, v the
  // residual; none is null.
  virtual bool EncodeWithMomentum(const EncodeKey& key, const float* g, float w, const float* u, float* u_out,
                                  const float* v, float* v_out, std::size_t n, std::byte* out) const;
  // As EncodeWithFeedback, for codecs whose traits say integer_sum: with the scale of each block that all workers share
  // (SharedScales), version 1 of the payload.
  virtual bool EncodeShared(const float* g, float w, const float* e, const float* scales, float* e_out, std::size_t n,
                            std::byte* out) const;
  // What a tensor's whole gradient, which arrives multiplied by `scale`, is multiplied by besides its weight, before
  // everything else, on each of `workers`.
  virtual float ClipFactor(const float* g, std::size_t n, double scale, std::uint32_t workers) const;

  // Hostile bytes: length and every field. Decode and DecodeAdd require a payload that passed. Errors: kCorrupt with
  // the field, expected and got.
  virtual Status Validate(std::span<const std::byte> payload, std::size_t n) const = 0;
  virtual void Decode(std::span<const std::byte> payload, std::size_t n, float* out) const = 0;
  // acc[i] = acc[i] + decoded[i], same bits as Decode followed by AddInto, but that a sparse codec leaves elements
  // alone that it does not carry (a -0 there stays; sums of decoded values hold none).
  virtual void DecodeAdd(std::span<const std::byte> payload, std::size_t n, float* acc) const = 0;

  // How many numbers of a payload are the largest that the codec has: finite ones beyond its range become these. 0 where
  // a codec's range is fp32's or adapts to the numbers.
  virtual std::size_t Saturated(std::span<const std::byte> payload, std::size_t n) const;

  // How owners sum and answer, if not by the above; not null where traits say exact_reply. This codec outlives it.
  virtual std::unique_ptr<OwnerSum> MakeOwnerSum(std::uint32_t workers) const;

  // The plain codec that defines the bytes of Encode and EncodeWithFeedback, for tests; null where it is that itself or
  // they are another codec's.
  virtual std::unique_ptr<Codec> MakeReference() const { return nullptr; }
};

// Whether what an owner answers leaves a residual there.
inline bool HasLossyReply(const Codec& codec) { return codec.traits().lossy && !codec.traits().exact_reply; }

struct CodecEntry {
  std::uint8_t id = 0;
  std::string_view name;
  std::unique_ptr<Codec> (*make)(const Config::Compression& options) = nullptr;
};

std::span<const CodecEntry> Codecs();
// Of linear ones too; "codec 77" for an id that nobody has.
std::string CodecName(std::uint8_t id);
bool IsLinearCodec(std::uint8_t id);
// Linear codecs are made by MakeLinearCodec (linear.h). Errors: kInvalidArgument with the list of names (unknown), or
// naming the option that is out of range.
Result<std::unique_ptr<Codec>> MakeCodec(std::string_view name, const Config::Compression& options);
Result<std::unique_ptr<Codec>> MakeCodec(std::uint8_t id, const Config::Compression& options);

// What MakeCodec checks of the options. Errors: kInvalidArgument naming the option that is out of range.
Status CheckCompression(const Config::Compression& options);
// Traits of any codec of the table, the linear ones (linear.h) included; of kCodecAuto those of whatever it may come to.
// Errors as MakeCodec.
Result<CodecTraits> TraitsOfCodec(std::string_view name, const Config::Compression& options);

// Whether replies and pushes round stochastically: `rounding`, where auto = only without error feedback.
bool StochasticRounding(const Config::Compression& options);

// The codec a tensor of `elements` numbers travels with: `none` below min_compress_bytes of its own type or when
// excluded, else the configured one (whose name and options have passed MakeCodec).
std::uint8_t CodecForTensor(std::string_view tensor_name, std::uint64_t elements, const Config::Compression& options,
                            DType type = DType::kFloat32);

}  // namespace tally
