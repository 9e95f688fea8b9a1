#include "worker/cli/bench_codec.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "common/thread_pool.h"
#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/linear.h"
#include "compress/owner_sum.h"
#include "compress/shared_scales.h"
#include "compress/simd_target.h"
#include "worker/cli/options.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

struct CodecBenchOptions {
  ConfigOptions config;
  JsonOption json;
  std::vector<std::string> codecs = {"fp16", "bf16", "int8", "int8_shared", "int4", "onebit", "topk", "randomk", "powersgd"};
  std::vector<std::string> ops = {"encode_ef", "encode", "decode", "decode_add"};
  std::vector<std::uint32_t> threads = {1};
  std::uint64_t elements = 25'000'000;
  std::uint32_t runs = 9;
  bool plain = false;
  bool peer = false;
};

constexpr std::size_t kSlab = 65536;
constexpr double kMostBuffers = 1000;    // sets of them: tiny tensors stay in the caches
constexpr double kBeyondCaches = 256e6;  // bytes that one round over all sets of buffers touches at least

// The buffers of one tensor. Runs go round over several, so that none is found in a cache.
struct Buffers {
  std::vector<float> g, e, result;
  std::vector<std::byte> payload;
};

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename Body>
double Seconds(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

class CodecBench {
 public:
  CodecBench(const CodecBenchOptions& options, const Config::Compression& compression, Console& console)
      : options_(options), compression_(compression), console_(console) {}

  Result<nlohmann::json> Run() {
    MakeBuffers();
    for (const std::uint32_t threads : options_.threads) {
      ThreadPool pool(threads);
      pool_ = &pool;
      for (const std::string& name : options_.codecs) {
        TALLY_ASSIGN_OR_RETURN(const bool linear, MeasureLinear(name));
        if (linear) continue;
        TALLY_ASSIGN_OR_RETURN(std::unique_ptr<Codec> codec, MakeCodec(name, compression_));
        if (codec->traits().integer_sum) {
          MeasureIntegerSum(*codec);
          continue;
        }
        MeasureCodec(*codec, std::string(SimdTarget()));
        const auto reference = codec->MakeReference();
        if (options_.plain && reference != nullptr) MeasureCodec(*reference, "plain");
      }
      if (options_.peer) MeasureNthElement();
    }
    console_.EndProgress();
    return nlohmann::json{{"copy_gbs", copy_gbs_.empty() ? 0.0 : Median(copy_gbs_)}, {"rows", rows_}};
  }

 private:
  // Like gradients: normal, of a magnitude that differs between slabs.
  void MakeBuffers() {
    const std::size_t n = options_.elements;
    const double bytes = static_cast<double>(std::max<std::size_t>(n, 1)) * 16.0;
    buffers_.resize(static_cast<std::size_t>(std::clamp(std::ceil(kBeyondCaches / bytes), 1.0, kMostBuffers)));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<float> pool(std::min<std::size_t>(n, 1'000'003));
    for (float& x : pool) x = normal(random);
    for (Buffers& set : buffers_) {
      set.g.resize(n);
      set.e.resize(n);
      set.result.resize(n);
      for (std::size_t i = 0, j = random() % 1000; i < n; ++i, ++j) {
        set.g[i] = std::ldexp(pool[j % pool.size()], -static_cast<int>(i / kSlab % 7));
        set.e[i] = 0.5f * set.g[i];
      }
    }
  }

  // body(first, count) for every slab, on all threads.
  template <typename Body>
  void ForSlabs(const Body& body) {
    const std::size_t n = options_.elements;
    pool_->Run((n + kSlab - 1) / kSlab,
               [&](std::size_t u) { body(u * kSlab, std::min(kSlab, n - u * kSlab)); });
  }

  // Each thread its part at once: the C library copies past the caches only what is large.
  double CopySeconds(Buffers& set) {
    const std::size_t threads = pool_->threads(), part = options_.elements / threads + 1;
    return Seconds([&] {
      pool_->Run(threads, [&](std::size_t t) {
        const std::size_t first = std::min(t * part, set.g.size()), end = std::min(first + part, set.g.size());
        std::memcpy(set.result.data() + first, set.g.data() + first, (end - first) * sizeof(float));
      });
    });
  }

  // Medians of `op` and of a copy, run in turns.
  template <typename Op>
  void Measure(const std::string& codec, const std::string& op_name, const std::string& target,
               std::uint64_t encoded_bytes, double bytes_per_element, const Op& op) {
    console_.Progress(codec + " " + op_name + ", " + std::to_string(pool_->threads()) + " threads …");
    std::vector<double> op_s, copy_s;
    for (std::uint32_t run = 0; run < options_.runs + 1; ++run) {
      Buffers& set = buffers_[run % buffers_.size()];
      const double copied = CopySeconds(buffers_[(run + 1) % buffers_.size()]);
      const double took = Seconds([&] { op(set); });
      if (run == 0) continue;  // the first one warms up
      copy_s.push_back(copied);
      op_s.push_back(took);
    }
    const double gigabytes = static_cast<double>(options_.elements) * 4 / 1e9;
    const double input_gbs = gigabytes / Median(op_s), copy_gbs = 2 * gigabytes / Median(copy_s);
    const double traffic_gbs = input_gbs / 4 * bytes_per_element;
    copy_gbs_.push_back(copy_gbs);
    rows_.push_back({{"codec", codec},
                     {"op", op_name},
                     {"target", target},
                     {"threads", pool_->threads()},
                     {"elements", options_.elements},
                     {"input_gbs", input_gbs},
                     {"bytes_per_element", bytes_per_element},
                     {"traffic_gbs", traffic_gbs},
                     {"fraction_of_copy", traffic_gbs / copy_gbs},
                     {"encoded_bytes", encoded_bytes}});
  }

  void MeasureCodec(const Codec& codec, const std::string& target) {
    const std::size_t n = options_.elements;
    const auto place = [&](std::size_t first) { return first / kSlab * codec.EncodedBytes(kSlab); };
    const std::size_t encoded = place(n) + codec.EncodedBytes(n % kSlab);
    const EncodeKey key{.seed = compression_.seed, .stochastic = StochasticRounding(compression_)};
    for (Buffers& set : buffers_) {
      set.payload.assign(encoded, std::byte{0});
      ForSlabs([&](std::size_t first, std::size_t count) {
        codec.Encode(key, set.g.data() + first, count, set.payload.data() + place(first), nullptr);
      });
    }
    const auto payload = [&](const Buffers& set, std::size_t first, std::size_t count) {
      return std::span(set.payload).subspan(place(first), codec.EncodedBytes(count));
    };
    const double per_element = static_cast<double>(encoded) / static_cast<double>(n);
    for (const std::string& op : options_.ops) {
      if (op == "encode_ef") {
        Measure(std::string(codec.name()), op, target, encoded, 12 + per_element, [&](Buffers& set) {
          ForSlabs([&](std::size_t first, std::size_t count) {
            (void)codec.EncodeWithFeedback(key, set.g.data() + first, 1.0f, set.e.data() + first,
                                           set.result.data() + first, count, set.payload.data() + place(first));
          });
        });
      } else if (op == "encode") {
        Measure(std::string(codec.name()), op, target, encoded, 4 + per_element, [&](Buffers& set) {
          ForSlabs([&](std::size_t first, std::size_t count) {
            codec.Encode(key, set.g.data() + first, count, set.payload.data() + place(first), nullptr);
          });
        });
      } else if (op == "decode") {
        Measure(std::string(codec.name()), op, target, encoded, 4 + per_element, [&](Buffers& set) {
          ForSlabs([&](std::size_t first, std::size_t count) {
            codec.Decode(payload(set, first, count), count, set.result.data() + first);
          });
        });
      } else {
        Measure(std::string(codec.name()), op, target, encoded, 8 * Touched(codec) + per_element, [&](Buffers& set) {
          ForSlabs([&](std::size_t first, std::size_t count) {
            codec.DecodeAdd(payload(set, first, count), count, set.result.data() + first);
          });
        });
      }
    }
  }

  bool Wanted(const char* op) const { return std::ranges::find(options_.ops, op) != options_.ops.end(); }

  // Encoded with shared scales, and the codes added to an owner's integers.
  void MeasureIntegerSum(const Codec& codec) {
    const std::size_t n = options_.elements;
    constexpr std::uint8_t kVersion = 1;
    const auto sum = codec.MakeOwnerSum(1);
    const auto place = [&](std::size_t first) { return first / kSlab * codec.EncodedBytes(kSlab); };
    const auto sum_place = [&](std::size_t first) { return first / kSlab * (sum->SumBytes(kVersion, kSlab) + 63) / 64 * 64; };
    const std::size_t encoded = place(n) + codec.EncodedBytes(n % kSlab);
    std::vector<float> scales(SharedBlocks(n));
    std::vector<std::byte> sums(sum_place(n) + sum->SumBytes(kVersion, kSlab) + 64);
    for (Buffers& set : buffers_) set.payload.assign(encoded, std::byte{0});
    ForSlabs([&](std::size_t first, std::size_t count) {
      Buffers& set = buffers_[0];
      const auto push = std::span(set.payload).subspan(place(first), codec.EncodedBytes(count));
      codec.Encode({}, set.g.data() + first, count, push.data(), nullptr);
      std::vector<std::byte> answer(sum->SumBytes(0, count));
      sum->Start(0, push, count, answer.data());
      std::vector<float> decoded(count);
      (void)sum->Decode(0, answer, count, nullptr, decoded.data(), scales.data() + first / kSharedBlock);
    });
    const auto encode = [&](Buffers& set, std::size_t first, std::size_t count) {
      (void)codec.EncodeShared(set.g.data() + first, 1.0f, set.e.data() + first, scales.data() + first / kSharedBlock,
                               set.result.data() + first, count, set.payload.data() + place(first));
    };
    for (Buffers& set : buffers_) ForSlabs([&](std::size_t first, std::size_t count) { encode(set, first, count); });
    const std::string name(codec.name()), target(SimdTarget());
    const double per_element = static_cast<double>(encoded) / static_cast<double>(n);
    if (Wanted("encode_ef")) {
      Measure(name, "encode_ef", target, encoded, 12 + per_element, [&](Buffers& set) {
        ForSlabs([&](std::size_t first, std::size_t count) { encode(set, first, count); });
      });
    }
    if (Wanted("decode_add")) {
      Measure(name, "decode_add", target, encoded, 4 + per_element, [&](Buffers& set) {
        ForSlabs([&](std::size_t first, std::size_t count) {
          sum->Add(kVersion, std::span(set.payload).subspan(place(first), codec.EncodedBytes(count)), count,
                   sums.data() + sum_place(first));
        });
      });
    }
  }

  // A linear codec on a nearly square matrix, one tensor on one thread; both phases count as encoding. False if the
  // codec is none.
  Result<bool> MeasureLinear(const std::string& name) {
    Config::Compression compression = compression_;
    compression.codec = name;
    const std::uint8_t id = CodecForTensor("", std::numeric_limits<std::uint64_t>::max(), compression);
    TALLY_ASSIGN_OR_RETURN(const auto codec, MakeLinearCodec(id, compression));
    if (codec == nullptr) return false;
    if (pool_->threads() != 1) return true;
    const auto rows = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(options_.elements)));
    const std::uint64_t columns = options_.elements / rows;
    const TensorSpec spec{"w", ElementCount(rows * columns), DType::kFloat32, {rows, columns}};
    const std::uint64_t slab_elements = CutTensor(spec.elements.value, 1).elements;
    const std::vector<TensorSpec> vectors = codec->Vectors(spec, slab_elements);
    if (vectors.empty()) return InvalidArgument("codec " + name + " does not compress " + std::to_string(rows) + " x " +
                                                std::to_string(columns) + " numbers: take more --elements");
    const auto tensor = codec->Make(
        {.seed = compression_.seed, .tensor = 0, .spec = spec, .slab_elements = slab_elements});
    std::vector<float> first(vectors.front().elements.value), second(vectors.back().elements.value);
    const bool two_phases = vectors.size() > 1;
    const std::uint64_t encoded = 4 * (first.size() + (two_phases ? second.size() : 0));
    const double per_element = static_cast<double>(encoded) / static_cast<double>(options_.elements);
    std::uint64_t step = 0;
    const auto encode = [&](Buffers& set) {
      (void)tensor->Encode(step++, set.g.data(), 1.0f, set.e.data(), set.result.data(), first.data());
      if (two_phases) tensor->EncodeSecond(first.data(), set.result.data(), second.data());
    };
    encode(buffers_[0]);
    const std::string target(SimdTarget());
    // Reads g and e, writes p; in a second phase reads p, then reads it and writes the rest.
    if (Wanted("encode_ef")) Measure(name, "encode_ef", target, encoded, (two_phases ? 24 : 12) + per_element, encode);
    if (Wanted("decode")) {
      Measure(name, "decode", target, encoded, 4 + per_element, [&](Buffers& set) {
        tensor->Decode(two_phases ? second.data() : first.data(), set.result.data());
      });
    }
    return true;
  }

  // The share of the elements that adding a payload reads and writes: those where -0 does not stay.
  double Touched(const Codec& codec) {
    const std::size_t n = std::min<std::size_t>(options_.elements, kSlab);
    std::vector<float> acc(n, -0.0f);
    codec.DecodeAdd(std::span(buffers_[0].payload).first(codec.EncodedBytes(n)), n, acc.data());
    const auto untouched = std::count_if(acc.begin(), acc.end(),
                                         [](float x) { return std::bit_cast<std::uint32_t>(x) == 0x80000000u; });
    return 1.0 - static_cast<double>(untouched) / static_cast<double>(n);
  }

  // What top-k would be with the standard library: a copy of the magnitudes, nth_element, a scan for what is larger.
  void MeasureNthElement() {
    const auto ratio = compression_.ratio;
    Measure("topk", "encode", "std::nth_element", 0, 4 + 6 * ratio, [&](Buffers& set) {
      ForSlabs([&](std::size_t first, std::size_t count) {
        thread_local std::vector<float> magnitudes;
        thread_local std::vector<std::pair<std::uint32_t, float>> taken;
        magnitudes.resize(count);
        const float* p = set.g.data() + first;
        for (std::size_t i = 0; i < count; ++i) magnitudes[i] = std::abs(p[i]);
        const auto k = std::max<std::size_t>(1, static_cast<std::size_t>(static_cast<double>(count) * ratio));
        const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k - 1);
        std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
        const float least = *kth;
        taken.clear();
        for (std::size_t i = 0; i < count; ++i) {
          if (std::abs(p[i]) >= least) taken.emplace_back(static_cast<std::uint32_t>(i), p[i]);
        }
      });
    });
  }

  const CodecBenchOptions& options_;
  const Config::Compression& compression_;
  Console& console_;
  ThreadPool* pool_ = nullptr;
  std::vector<Buffers> buffers_;
  std::vector<double> copy_gbs_;
  nlohmann::json rows_ = nlohmann::json::array();
};

void PrintTable(const nlohmann::json& result, Console& console) {
  Table table({{"codec"}, {"op"}, {"target"}, {"threads", Table::Align::kRight}, {"input GB/s", Table::Align::kRight},
               {"bytes/element", Table::Align::kRight}, {"traffic GB/s", Table::Align::kRight},
               {"of a copy", Table::Align::kRight}, {"encoded", Table::Align::kRight}});
  for (const auto& r : result["rows"]) {
    table.AddRow({r["codec"], r["op"], r["target"], std::to_string(r["threads"].get<std::size_t>()),
                  Fixed(r["input_gbs"], 2), Fixed(r["bytes_per_element"], 3), Fixed(r["traffic_gbs"], 1),
                  Fixed(r["fraction_of_copy"], 2), HumanBytes(static_cast<double>(r["encoded_bytes"].get<std::uint64_t>()))});
  }
  console.Print(table.Text());
  console.Note("copy: " + Fixed(result["copy_gbs"], 1) + " GB/s read and written");
}

int RunBenchCodec(const CodecBenchOptions& options, CommandContext& context) {
  Console& console = context.console;
  const Result<LoadedConfig> config = options.config.Load(context.environment);
  if (!config.ok()) return console.Fail(config.status());
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  const Result<nlohmann::json> result = CodecBench(options, config->config.compression, console).Run();
  if (!result.ok()) return console.Fail(result.status());
  if (!options.json.to_stdout()) PrintTable(*result, console);
  if (options.json.wanted()) {
    if (const Status written = options.json.Write(*result); !written.ok()) return console.Fail(written);
  }
  return 0;
}

}  // namespace

Action AddBenchCodec(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<CodecBenchOptions>();
  AddConfigOptions(app, &options->config);
  AddJsonOption(app, &options->json);
  app.add_option("--codecs", options->codecs, "Codecs to measure")->delimiter(',')->capture_default_str();
  app.add_option("--ops", options->ops, "encode_ef (with error feedback), encode, decode, decode_add")
      ->delimiter(',')->capture_default_str()
      ->check(CLI::IsMember({"encode_ef", "encode", "decode", "decode_add"}));
  app.add_option("--threads", options->threads, "Numbers of threads; slabs are shared out, bytes stay the same")
      ->delimiter(',')->capture_default_str()->check(CLI::Range(1, 256));
  app.add_option("--elements", options->elements, "fp32 numbers of a tensor")
      ->capture_default_str()->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 32));
  app.add_option("--runs", options->runs, "Timed runs; medians are shown")->capture_default_str()->check(CLI::Range(7, 10000));
  app.add_flag("--plain", options->plain, "Measure the plain loops that define the bytes, too");
  app.add_flag("--peer", options->peer, "Measure top-k by std::nth_element and a scan, too");
  app.footer(
      "Examples:\n"
      "  tally bench codec                                           every codec on one core\n"
      "  tally bench codec --codecs int8,onebit --threads 1,2 --json speed.json\n"
      "  tally bench codec --codecs topk --set compression.ratio=0.001 --ops encode_ef\n"
      "Of a copy: memory traffic of the operation over that of a plain copy, run in turns with it. Buffers are larger than\n"
      "the caches, or change from run to run until they are.");
  return [options, &context] { return RunBenchCodec(*options, context); };
}

}  // namespace tally::cli
