// Per codec of the table: decode_<name> takes a hostile payload, encode_<name> hostile numbers, and where owners answer
// with sums (owner_sum.h) reply_<name> a hostile reply. The first byte of an input chooses among the codec's cases
// (codec_cases.h), the second holds switches, the rest is said where it is taken.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "common/check.h"
#include "common/reduce/reduce.h"
#include "compress/owner_sum.h"
#include "compress/shared_scales.h"
#include "tests/fuzz/target.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

constexpr std::size_t kMaxElements = 65536;  // a slab
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

enum Switches : std::uint8_t {
  kShift = 7,            // bytes by which buffers are misaligned
  kPayloadAsItIs = 8,    // decode: of whatever length, else cut or padded to what the codec says
  kPadWithInput = 16,    // decode: padded with the input over again, else with zeros
  kLarge = 32,           // up to a whole slab, else up to kSmallElements
  kWithoutFeedback = 8,  // encode
  kAnyWeight = 16,       // encode: the weight's 32 bits are from the input, else it is 1
};
constexpr std::size_t kSmallElements = 1100;

struct Variant {
  CodecCase options;
  std::unique_ptr<Codec> codec;
};
using Variants = std::vector<Variant>;

Variants VariantsOf(std::string_view name) {
  Variants variants;
  for (CodecCase& options : CodecCases()) {
    if (options.name != name) continue;
    std::unique_ptr<Codec> codec = options.Make();
    variants.push_back({std::move(options), std::move(codec)});
  }
  return variants;
}

// Memory of exactly this size, so that a sanitizer sees a step beyond it; shifted off its alignment.
template <typename T>
class Exact {
 public:
  Exact(std::size_t count, std::size_t shift, T fill)
      : count_(count), memory_(new std::byte[count * sizeof(T) + shift]), data_(memory_.get() + shift) {
    for (std::size_t i = 0; i < count; ++i) std::memcpy(data_ + i * sizeof(T), &fill, sizeof(T));
  }
  T* data() { return reinterpret_cast<T*>(data_); }
  std::span<T> span() { return {data(), count_}; }

 private:
  std::size_t count_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* data_;
};

bool SameNumber(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

// A payload is refused with a reason, or decodes to finite numbers, always the same, and adds like them. Returns the
// numbers, or nothing at all if refused.
std::vector<float> CheckPayload(const Codec& codec, std::span<const std::byte> payload, std::size_t n, bool* valid) {
  const Status status = codec.Validate(payload, n);
  *valid = status.ok();
  if (!status.ok()) {
    TALLY_CHECK(status.kind() == StatusKind::kCorrupt && !status.text().empty(), status.ToString());
    return {};
  }
  TALLY_CHECK(payload.size() == codec.EncodedBytes(n), "a payload of another length passed");
  std::vector<float> decoded(n, kNaN), again(n, -1.0f), sum(n), expected(n);
  codec.Decode(payload, n, decoded.data());
  codec.Decode(payload, n, again.data());
  for (std::size_t i = 0; i < n; ++i) {
    TALLY_CHECK(SameNumber(decoded[i], again[i]), "decoded twice, two results");
    TALLY_CHECK(std::isfinite(decoded[i]) || !codec.traits().lossy, "decoded to a number that is not finite");
    sum[i] = expected[i] = std::ldexp(static_cast<float>(i % 7) - 3.5f, static_cast<int>(i % 41) - 20);
  }
  codec.DecodeAdd(payload, n, sum.data());
  AddInto(expected.data(), decoded.data(), n);
  for (std::size_t i = 0; i < n; ++i) TALLY_CHECK(SameNumber(sum[i], expected[i]), "DecodeAdd is not Decode and add");
  return decoded;
}

void FuzzDecode(const Variants& variants, std::span<const std::byte> input) {
  FuzzInput in(input);
  const Variant& variant = variants[in.Byte() % variants.size()];
  const std::uint8_t switches = in.Byte();
  const auto size = in.Take<std::uint16_t>();
  const std::size_t n = (switches & kLarge) != 0 ? size + std::size_t{1} : size % kSmallElements;
  const std::span<const std::byte> given = in.rest();
  const bool as_it_is = (switches & kPayloadAsItIs) != 0;
  const std::size_t bytes = as_it_is ? given.size() : variant.codec->EncodedBytes(n);
  Exact<std::byte> payload(bytes, switches & kShift, std::byte{0});
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i >= given.size() && ((switches & kPadWithInput) == 0 || given.empty())) break;
    payload.data()[i] = given[i % given.size()];
  }
  bool valid = false;
  const std::vector<float> decoded = CheckPayload(*variant.codec, payload.span(), n, &valid);
  if (!valid || !variant.options.Exact() || !AllFinite(decoded.data(), n)) return;
  // What was decoded can be encoded without loss.
  Exact<std::byte> encoded(bytes, switches & kShift, std::byte{0xA5});
  std::vector<float> again(n, kNaN);
  variant.codec->Encode(variant.options.Key(), decoded.data(), n, encoded.data(), again.data());
  for (std::size_t i = 0; i < n; ++i) TALLY_CHECK(again[i] == decoded[i], "encoding is not idempotent");
}

// The law p = decoded + e', exactly where the codec says so: in fp16 up to 2^29, and but for one flushed denormal.
void CheckResidual(const Variant& variant, float p, float decoded, float rest) {
  const bool flush = variant.codec->traits().lossy;
  const float difference = p - decoded;
  TALLY_CHECK(rest == (flush ? Flushed(difference) : difference), "the residual is not p - decoded");
  if (!variant.options.Exact() || std::abs(p) >= 0x1p29f) return;
  const double lost = static_cast<double>(decoded) + static_cast<double>(rest) - static_cast<double>(p);
  TALLY_CHECK(std::abs(lost) < 0x1p-126, "p is not decoded + e'");
}

void FuzzEncode(const Variants& variants, std::span<const std::byte> input) {
  FuzzInput in(input);
  const Variant& variant = variants[in.Byte() % variants.size()];
  const Codec& codec = *variant.codec;
  const std::uint8_t switches = in.Byte();
  const std::size_t repeats = (switches & kLarge) != 0 ? in.Byte() * std::size_t{8} + 1 : 1;
  const auto any_weight = in.Take<float>();
  const float w = (switches & kAnyWeight) != 0 ? any_weight : 1.0f;
  const bool feedback = (switches & kWithoutFeedback) == 0;
  const std::size_t shift = switches & kShift & ~std::size_t{3};  // numbers lie where numbers may

  // The rest is g and e in turn, over again.
  std::vector<float> numbers;
  while (!in.empty()) numbers.push_back(in.Take<float>());
  if (numbers.size() % 2 != 0) numbers.push_back(0.0f);
  const std::size_t pairs = numbers.size() / 2;
  const std::size_t n = std::min(pairs * repeats, kMaxElements);
  Exact<float> g(n, shift, 0.0f), e(n, shift, 0.0f), rest(n, shift, kNaN);
  std::vector<float> p(n);
  for (std::size_t i = 0; i < n; ++i) {
    g.data()[i] = numbers[2 * (i % pairs)];
    e.data()[i] = numbers[2 * (i % pairs) + 1];
    p[i] = ReferenceP(g.data()[i], w, feedback ? e.data() + i : nullptr, codec.traits().lossy);
  }

  const std::size_t bytes = codec.EncodedBytes(n);
  Exact<std::byte> out(bytes, switches & kShift, std::byte{0xA5});
  const EncodeKey key = variant.options.Key();
  const bool finite = codec.EncodeWithFeedback(key, g.data(), w, feedback ? e.data() : nullptr,
                                               feedback ? rest.data() : nullptr, n, out.data());
  TALLY_CHECK(finite == AllFinite(p.data(), n), "wrong about whether all is finite");
  if (!finite) return;
  bool valid = false;
  const std::vector<float> decoded = CheckPayload(codec, out.span(), n, &valid);
  TALLY_CHECK(valid, codec.Validate(out.span(), n).ToString());
  if (feedback) {
    for (std::size_t i = 0; i < n; ++i) CheckResidual(variant, p[i], decoded[i], rest.data()[i]);
  }
  // Two steps give the bytes of one.
  Exact<std::byte> again(bytes, 0, std::byte{0x5A});
  std::vector<float> told(n, kNaN);
  codec.Encode(key, p.data(), n, again.data(), told.data());
  TALLY_CHECK(bytes == 0 || std::memcmp(out.data(), again.data(), bytes) == 0, "one pass and two give other bytes");
  for (std::size_t i = 0; i < n; ++i) TALLY_CHECK(SameNumber(told[i], decoded[i]), "Encode tells other numbers");
}

std::vector<FuzzBytes> DecodeSeeds(const Variants& variants) {
  std::vector<FuzzBytes> seeds;
  for (std::size_t v = 0; v < variants.size(); ++v) {
    const Codec& codec = *variants[v].codec;
    const auto add = [&](const std::vector<float>& slab) {
      FuzzBytes seed;
      Append(static_cast<std::uint8_t>(v), &seed);
      Append(std::uint8_t{0}, &seed);
      Append(static_cast<std::uint16_t>(slab.size()), &seed);
      FuzzBytes payload(codec.EncodedBytes(slab.size()));
      codec.Encode(variants[v].options.Key(), slab.data(), slab.size(), payload.data(), nullptr);
      seed.insert(seed.end(), payload.begin(), payload.end());
      seeds.push_back(std::move(seed));
    };
    for (const std::size_t n : {0u, 1u, 3u, 17u, 255u, 257u, 600u}) add(RandomSlab(n, 3));
    for (const NamedSlab& slab : AdversarialSlabs()) add({slab.values.begin() + 250, slab.values.begin() + 310});
  }
  return seeds;
}

std::vector<FuzzBytes> EncodeSeeds(const Variants& variants) {
  std::vector<FuzzBytes> seeds;
  std::vector<NamedSlab> slabs = AdversarialSlabs();
  const float largest = std::numeric_limits<float>::max();
  slabs.push_back({"random", RandomSlab(600, 4)});
  slabs.push_back({"large", {largest, -largest, largest / 2, 0x1p29f, 65504.0f, 65520.0f, 1e30f}});
  slabs.push_back({"infinite", {1.0f, std::numeric_limits<float>::infinity()}});
  slabs.push_back({"not a number", {1.0f, kNaN, 2.0f}});
  for (std::size_t v = 0; v < variants.size(); ++v) {
    for (const NamedSlab& slab : slabs) {
      for (const std::uint8_t switches : {std::uint8_t{0}, std::uint8_t{kLarge | kAnyWeight}}) {
        FuzzBytes seed;
        Append(static_cast<std::uint8_t>(v), &seed);
        Append(switches, &seed);
        if ((switches & kLarge) != 0) Append(std::uint8_t{1}, &seed);
        Append(0.3f, &seed);
        const std::size_t count = std::min<std::size_t>(slab.values.size(), 80);
        for (std::size_t i = 0; i < count; ++i) {
          Append(slab.values[slab.values.size() - count + i], &seed);
          Append(slab.values[i] / 3, &seed);
        }
        seeds.push_back(std::move(seed));
      }
    }
  }
  return seeds;
}

// What a codec's owners answer with, for worlds of different lanes and bounds.
struct Answering {
  std::unique_ptr<Codec> codec;
  std::unique_ptr<OwnerSum> sum;
};

std::vector<Answering> AnswersOf(std::string_view name) {
  std::vector<Answering> answers;
  for (const char* reply : {"same", "union"}) {
    Config::Compression options;
    options.codec = name;
    options.reply = reply;
    auto codec = MakeCodec(name, options);
    if (!codec.ok() || !(*codec)->traits().exact_reply) continue;
    for (const std::uint32_t workers : {2U, 300U}) {
      answers.push_back({MakeCodec(name, options).value(), nullptr});
      answers.back().sum = answers.back().codec->MakeOwnerSum(workers);
    }
  }
  return answers;
}

// A reply is refused with a reason, or takes the bytes it says and decodes to finite numbers or says that it does not.
void FuzzReply(const std::vector<Answering>& answers, std::span<const std::byte> input) {
  FuzzInput in(input);
  const OwnerSum& sum = *answers[in.Byte() % answers.size()].sum;
  const auto version = static_cast<std::uint8_t>(in.Byte() % sum.versions());
  const std::size_t n = in.Take<std::uint16_t>() % kSmallElements + 1;
  std::vector<float> scales(SharedBlocks(n)), next(scales.size());
  for (float& scale : scales) scale = std::bit_cast<float>(static_cast<std::uint32_t>(in.Byte() % 249) << 23);
  const std::span<const std::byte> given = in.rest();
  Exact<std::byte> payload(given.size(), given.size() % 8, std::byte{0});
  std::copy(given.begin(), given.end(), payload.data());
  const Result<std::size_t> bytes = sum.Validate(version, payload.span(), n);
  if (!bytes.ok()) {
    TALLY_CHECK(bytes.status().kind() == StatusKind::kCorrupt && !bytes.status().text().empty(),
                bytes.status().ToString());
    return;
  }
  TALLY_CHECK(*bytes <= given.size(), "a reply takes more than there is");
  std::vector<float> out(n, kNaN);
  const bool finite = sum.Decode(version, payload.span().first(*bytes), n, scales.data(), out.data(), next.data());
  TALLY_CHECK(finite == AllFinite(out.data(), n), "wrong about whether all is finite");
  TALLY_CHECK(AllFinite(next.data(), next.size()), "a shared scale that is not finite");
}

std::vector<FuzzBytes> ReplySeeds(const std::vector<Answering>& answers) {
  std::vector<FuzzBytes> seeds;
  for (std::size_t a = 0; a < answers.size(); ++a) {
    const auto& [codec, sum] = answers[a];
    for (std::uint8_t version = 0; version < sum->versions(); ++version) {
      for (const std::size_t n : {std::size_t{1}, std::size_t{40}, std::size_t{300}}) {
        const std::vector<float> slab = RandomSlab(n, 9);
        FuzzBytes push(codec->EncodedBytes(n)), room(sum->SumBytes(version, n));
        codec->Encode({}, slab.data(), n, push.data(), nullptr);
        sum->Start(version, push, n, room.data());
        sum->Add(version, push, n, room.data());
        FuzzBytes seed, reply(sum->ReplyBytes(version, room.data(), n));
        sum->Reply(version, room.data(), n, reply);
        Append(static_cast<std::uint8_t>(a), &seed);
        Append(version, &seed);
        Append(static_cast<std::uint16_t>(n - 1), &seed);
        seed.resize(seed.size() + SharedBlocks(n), std::byte{120});
        seed.insert(seed.end(), reply.begin(), reply.end());
        seeds.push_back(std::move(seed));
      }
    }
  }
  return seeds;
}

}  // namespace

void AddCodecTargets(std::vector<FuzzTarget>* targets) {
  for (const CodecEntry& codec : Codecs()) {
    const auto variants = std::make_shared<const Variants>(VariantsOf(codec.name));
    targets->push_back({"decode_" + std::string(codec.name),
                        [variants](std::span<const std::byte> input) { FuzzDecode(*variants, input); },
                        [variants] { return DecodeSeeds(*variants); }});
    targets->push_back({"encode_" + std::string(codec.name),
                        [variants](std::span<const std::byte> input) { FuzzEncode(*variants, input); },
                        [variants] { return EncodeSeeds(*variants); }});
    const auto answers = std::make_shared<const std::vector<Answering>>(AnswersOf(codec.name));
    if (answers->empty()) continue;
    targets->push_back({"reply_" + std::string(codec.name),
                        [answers](std::span<const std::byte> input) { FuzzReply(*answers, input); },
                        [answers] { return ReplySeeds(*answers); }});
  }
}

}  // namespace tally
