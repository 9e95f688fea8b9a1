#include "compress/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/config/checks.h"
#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/owner_sum.h"

namespace tally {

#define TALLY_LINEAR_CODEC(id, name, factory)
#define TALLY_CODEC(id, name, factory) std::unique_ptr<Codec> factory(const Config::Compression& options);
#include "compress/codecs.inc"
#undef TALLY_CODEC

namespace {

constexpr std::array kCodecs = {
#define TALLY_CODEC(id, name, factory) CodecEntry{id, name, &factory},
#include "compress/codecs.inc"
#undef TALLY_CODEC
#undef TALLY_LINEAR_CODEC
};

struct Known {
  std::uint8_t id = 0;
  std::string_view name;
  bool linear = false;  // made by MakeLinearCodec
};

constexpr std::array kKnown = {
#define TALLY_CODEC(id, name, factory) Known{id, name, false},
#define TALLY_LINEAR_CODEC(id, name, factory) Known{id, name, true},
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC
#undef TALLY_CODEC
};

constexpr bool IdsAndNamesAreUnique() {
  for (std::size_t i = 0; i < kKnown.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kKnown[i].id == kKnown[j].id || kKnown[i].name == kKnown[j].name) return false;
    }
  }
  return true;
}
static_assert(IdsAndNamesAreUnique(), "codecs.inc gives an id or a name twice");

Status CheckOneOf(std::string_view option, const std::string& value, std::initializer_list<std::string_view> valid) {
  std::string list;
  for (const std::string_view name : valid) {
    if (value == name) return Status::Ok();
    list += (list.empty() ? "" : ", ") + std::string(name);
  }
  return InvalidArgument("compression." + std::string(option) + " = \"" + value + "\": expected one of " + list);
}

template <typename Matches>
const CodecEntry* Find(const Matches& matches) {
  const auto found = std::ranges::find_if(kCodecs, matches);
  return found == kCodecs.end() ? nullptr : &*found;
}

const Known* FindKnown(std::string_view name) {
  const auto found = std::ranges::find(kKnown, name, &Known::name);
  return found == kKnown.end() ? nullptr : &*found;
}

Result<std::unique_ptr<Codec>> Make(const CodecEntry* entry, const std::string& asked,
                                    const Config::Compression& options) {
  if (asked == kCodecAuto) {
    return InvalidArgument("codec auto is picked as a job starts and means nothing here: name a codec");
  }
  if (entry == nullptr) {
    std::string list;
    for (const Known& codec : kKnown) list += (list.empty() ? "" : ", ") + std::string(codec.name);
    return InvalidArgument(std::string("codec ").append(asked) + " is unknown: expected one of " + list);
  }
  TALLY_RETURN_IF_ERROR(CheckCompression(options));
  return entry->make(options);
}

// Shell pattern of * (any run) and ? (any one character); backs up to the last * only, so time is at most |a|*|b|.
bool MatchesPattern(std::string_view text, std::string_view pattern) {
  std::size_t t = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace

bool Codec::EncodeWithFeedback(const EncodeKey& key, const float* g, float w, const float* e, float* e_out,
                               std::size_t n, std::byte* out) const {
  thread_local std::vector<float> scratch;  // kept, so that a warm step allocates nothing
  if (scratch.size() < 2 * n) scratch.resize(2 * n);
  float* p = scratch.data();
  float* decoded = e_out == nullptr ? nullptr : p + n;
  const FlushDenormals flush;
  if (!WeightAndAdd(g, w, e, n, p)) return false;
  Encode(key, p, n, out, decoded);
  if (e_out != nullptr) {
    for (std::size_t i = 0; i < n; ++i) e_out[i] = p[i] - decoded[i];
  }
  return true;
}

bool Codec::EncodeWithMomentum(const EncodeKey& key, const float* g, float w, const float*, float*, const float* v,
                               float* v_out, std::size_t n, std::byte* out) const {
  TALLY_CHECK(!traits().momentum, "a codec with momentum overrides this");
  return EncodeWithFeedback(key, g, w, v, v_out, n, out);
}

bool Codec::EncodeShared(const float*, float, const float*, const float*, float*, std::size_t, std::byte*) const {
  TALLY_CHECK(false, "a codec whose codes add up as integers overrides this");
  return false;
}

std::size_t Codec::Saturated(std::span<const std::byte>, std::size_t) const { return 0; }

std::unique_ptr<OwnerSum> Codec::MakeOwnerSum(std::uint32_t) const { return nullptr; }

float Codec::ClipFactor(const float*, std::size_t, double, std::uint32_t) const { return 1.0F; }

Status CheckCompression(const Config::Compression& options) {
  // At least one part in a million; also refuses NaN.
  if (!(options.ratio >= 1e-6 && options.ratio <= 1.0)) {
    return InvalidArgument("compression.ratio = " + std::to_string(options.ratio) +
                           ": expected a fraction in (0, 1], in steps of 0.000001");
  }
  TALLY_RETURN_IF_ERROR(CheckOneOf("rounding", options.rounding, {"auto", "nearest_even", "stochastic"}));
  TALLY_RETURN_IF_ERROR(CheckOneOf("scale", options.scale, {"pow2", "absmax"}));
  TALLY_RETURN_IF_ERROR(CheckOneOf("topk_values", options.topk_values, {"fp32", "fp16"}));
  TALLY_RETURN_IF_ERROR(CheckOneOf("randomk_scale", options.randomk_scale, {"auto", "none", "stratum"}));
  TALLY_RETURN_IF_ERROR(CheckOneOf("reply", options.reply, {"same", "union"}));
  if (const auto faults = CodecOptionFaults(options); !faults.empty()) {
    return InvalidArgument(std::string(faults.front().name) + ": " + faults.front().text);
  }
  for (const double ratio : options.warmup) {
    if (!(ratio >= 1e-6 && ratio <= 1.0)) {
      return InvalidArgument("compression.warmup holds " + std::to_string(ratio) + ": expected fractions in (0, 1]");
    }
  }
  if (options.powersgd_rank < 1 || options.powersgd_rank > 32) {
    return InvalidArgument("compression.powersgd_rank = " + std::to_string(options.powersgd_rank) +
                           ": expected 1 to 32");
  }
  if (!(options.powersgd_rate >= 1 && std::isfinite(options.powersgd_rate))) {
    return InvalidArgument("compression.powersgd_rate = " + std::to_string(options.powersgd_rate) +
                           ": expected a number from 1");
  }
  if (!(options.dgc_momentum >= 0 && options.dgc_momentum < 1)) {
    return InvalidArgument("compression.dgc_momentum = " + std::to_string(options.dgc_momentum) + ": expected [0, 1)");
  }
  if (!(options.dgc_clip >= 0 && std::isfinite(options.dgc_clip))) {
    return InvalidArgument("compression.dgc_clip = " + std::to_string(options.dgc_clip) + ": expected a number from 0");
  }
  return Status::Ok();
}

Result<CodecTraits> TraitsOfCodec(std::string_view name, const Config::Compression& options) {
  if (name == kCodecAuto) {
    TALLY_RETURN_IF_ERROR(CheckCompression(options));
    return CodecTraits{.lossy = true};
  }
  const Known* known = FindKnown(name);
  if (known != nullptr && known->linear) {
    TALLY_RETURN_IF_ERROR(CheckCompression(options));
    // Values scaled by what was not sent are right on average.
    const bool unbiased = name == "randomk" && options.randomk_scale != "none";
    return CodecTraits{.lossy = true, .linear = true, .feedback_forced = !unbiased};
  }
  TALLY_ASSIGN_OR_RETURN(const std::unique_ptr<Codec> codec, MakeCodec(name, options));
  return codec->traits();
}

std::span<const CodecEntry> Codecs() { return kCodecs; }

std::string CodecName(std::uint8_t id) {
  const auto found = std::ranges::find(kKnown, id, &Known::id);
  return found == kKnown.end() ? "codec " + std::to_string(id) : std::string(found->name);
}

bool IsLinearCodec(std::uint8_t id) {
  const auto found = std::ranges::find(kKnown, id, &Known::id);
  return found != kKnown.end() && found->linear;
}

Result<std::unique_ptr<Codec>> MakeCodec(std::string_view name, const Config::Compression& options) {
  return Make(Find([name](const CodecEntry& codec) { return codec.name == name; }), std::string(name), options);
}

Result<std::unique_ptr<Codec>> MakeCodec(std::uint8_t id, const Config::Compression& options) {
  return Make(Find([id](const CodecEntry& codec) { return codec.id == id; }), std::to_string(id), options);
}

bool StochasticRounding(const Config::Compression& options) {
  return options.rounding == "stochastic" || (options.rounding == "auto" && !options.error_feedback);
}

std::uint8_t CodecForTensor(std::string_view tensor_name, std::uint64_t elements, const Config::Compression& options,
                            DType type) {
  const std::uint64_t whole_bytes = options.min_compress_bytes + DTypeBytes(type) - 1;
  if (elements < whole_bytes / DTypeBytes(type)) return kCodecNone;
  const auto excludes = [tensor_name](const std::string& pattern) { return MatchesPattern(tensor_name, pattern); };
  if (std::ranges::any_of(options.exclude, excludes)) return kCodecNone;
  const Known* known = FindKnown(options.codec);
  return known == nullptr ? kCodecNone : known->id;
}

}  // namespace tally
