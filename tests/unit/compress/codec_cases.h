// What the codec tests share: every codec of the table under several options, slabs that are hard to encode, and the
// denormal rule written out.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "compress/codec.h"

namespace tally {

// Default options but for one.
template <typename Value>
Config::Compression With(Value Config::Compression::*option, const std::type_identity_t<Value>& value) {
  Config::Compression options;
  options.*option = value;
  return options;
}

struct CodecCase {
  std::string name;
  std::string label;
  Config::Compression options;
  bool stochastic = false;

  std::unique_ptr<Codec> Make() const { return MakeCodec(name, options).value(); }
  EncodeKey Key() const {
    return {.seed = 7, .tensor = 3, .step = 11, .position = 2, .offset = 512, .stochastic = stochastic};
  }
  bool Exact() const { return Make()->traits().exact_residual && !stochastic; }
};

inline void PrintTo(const CodecCase& c, std::ostream* out) { *out << c.name << "_" << c.label; }

inline std::vector<float> RandomSlab(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> slab(n);
  // 24 random bits and a spread of 2^20 between elements.
  for (float& x : slab) {
    const auto bits = static_cast<std::int32_t>(random() >> 7) - (1 << 24);
    x = std::ldexp(static_cast<float>(bits), -24 - static_cast<int>(random() % 20));
  }
  return slab;
}

// Every codec of the table under every option that changes its bytes.
inline std::vector<CodecCase> CodecCases() {
  std::vector<CodecCase> cases;
  const std::vector<float> sample = RandomSlab(1000, 1);
  for (const CodecEntry& codec : Codecs()) {
    std::vector<std::vector<std::byte>> seen;
    const auto add = [&](std::string label, const Config::Compression& options, bool stochastic = false) {
      CodecCase c{std::string(codec.name), std::move(label), options, stochastic};
      const std::unique_ptr<Codec> made = c.Make();
      std::vector<std::byte> bytes(made->EncodedBytes(sample.size()));
      made->Encode(c.Key(), sample.data(), sample.size(), bytes.data(), nullptr);
      if (std::ranges::find(seen, bytes) != seen.end()) return;
      seen.push_back(std::move(bytes));
      cases.push_back(std::move(c));
    };
    add("default", {});
    add("stochastic", With(&Config::Compression::rounding, "stochastic"), true);
    add("absmax", With(&Config::Compression::scale, "absmax"));
    add("absmax_stochastic", With(&Config::Compression::scale, "absmax"), true);
    add("half", With(&Config::Compression::ratio, 0.5));
    add("everything", With(&Config::Compression::ratio, 1.0));
    add("fp16_values", With(&Config::Compression::topk_values, "fp16"));
  }
  return cases;
}

inline std::vector<std::size_t> Sizes() {
  std::vector<std::size_t> sizes = {0, 63, 64, 65, 255, 256, 257, 1023, 1025, 4099, 65521, 65535, 65536};
  for (std::size_t n = 1; n <= 17; ++n) sizes.push_back(n);
  return sizes;
}

inline float Flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

// p = fl(fl(w*g) + e), e null for none, by the denormal rule, which `none` does not follow.
inline float ReferenceP(float g, float w, const float* e, bool flush) {
  const auto rule = [flush](float x) { return flush ? Flushed(x) : x; };
  const float c = rule(rule(w) * rule(g));
  return e == nullptr ? c : rule(c + rule(*e));
}

struct NamedSlab {
  std::string name;
  std::vector<float> values;
};

inline std::vector<NamedSlab> AdversarialSlabs(std::size_t n = 600) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  const float normal = std::numeric_limits<float>::min();
  std::vector<NamedSlab> slabs;
  const auto add = [&](std::string name, auto value) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = value(i);
    slabs.push_back({std::move(name), std::move(values)});
  };
  add("zeros", [](std::size_t) { return 0.0f; });
  add("negative zeros", [](std::size_t) { return -0.0f; });
  add("all equal", [](std::size_t) { return 0.7f; });
  add("same magnitude", [](std::size_t i) { return i % 3 == 0 ? -1.1f : 1.1f; });
  add("denormals", [&](std::size_t i) { return (i % 2 == 0 ? tiny : -tiny) * static_cast<float>(i * 1000 + 1); });
  add("one denormal", [](std::size_t i) { return i == 77 ? 1e-40f : 0.0f; });
  add("smallest normals", [&](std::size_t i) { return i % 2 == 0 ? normal : -normal; });
  add("one small value", [](std::size_t i) { return i == 300 ? 6e-8f : 0.0f; });
  add("one huge", [](std::size_t i) { return i == 255 ? 400'000'000.0f : 0.001f; });
  add("last bit", [](std::size_t i) { return std::bit_cast<float>(0x3F800000u + static_cast<std::uint32_t>(i % 2)); });
  add("rounds to 128", [](std::size_t i) { return i < 300 ? 127.5f : 127.49999f; });
  add("halfway", [](std::size_t i) { return static_cast<float>(i % 128) + (i % 128 < 127 ? 0.5f : 0.0f); });
  add("mostly zeros", [](std::size_t i) { return i % 97 == 5 ? static_cast<float>(i) - 300.0f : 0.0f; });
  add("rising", [](std::size_t i) { return static_cast<float>(i); });
  return slabs;
}

}  // namespace tally
