// The training gates in small: the simulated exchange against plain sums, error feedback against its absence, and the
// verdicts.
#include <gtest/gtest.h>

#include <cmath>
#include <future>

#include "benchmarks/gates/simulated_exchange.h"
#include "benchmarks/gates/summary.h"
#include "benchmarks/gates/training_run.h"

namespace tally::gates {
namespace {

Config::Compression Compression(const std::string& codec) {
  Config::Compression compression;
  compression.codec = codec;
  compression.min_compress_bytes = 0;
  return compression;
}

TEST(SimulatedExchange, NoneDeliversTheMean) {
  const std::vector<TensorSpec> tensors = {{"a", ElementCount(70'001)}, {"b", ElementCount(3)}};
  for (const std::uint32_t workers : {1u, 2u, 4u}) {
    const auto exchange = SimulatedExchange::Make(tensors, workers, Compression("none")).value();
    for (int step = 0; step < 2; ++step) {
      for (std::uint32_t w = 0; w < workers; ++w) {
        for (std::uint32_t t = 0; t < 2; ++t) {
          const std::span<float> input = exchange->Input(t);
          for (std::size_t i = 0; i < input.size(); ++i) input[i] = static_cast<float>((i % 64) * (2 * w + 1));
        }
        ASSERT_TRUE(exchange->Push(w).ok());
      }
      ASSERT_TRUE(exchange->EndStep().ok());
      for (std::uint32_t t = 0; t < 2; ++t) {
        const std::span<const float> output = exchange->Output(t);
        for (std::size_t i = 0; i < output.size(); ++i) {
          ASSERT_EQ(output[i], static_cast<float>((i % 64) * workers)) << workers << " " << t << " " << i;
        }
      }
    }
    EXPECT_EQ(exchange->push_bytes(), 70'004u * 4);
    EXPECT_EQ(exchange->reply_bytes(), 70'004u * 4);
  }
}

// g = (100, 1), (-100, 1), ... with one of two elements sent: without feedback the second never arrives.
TEST(SimulatedExchange, FeedbackBringsWhatWasNotSent) {
  for (const bool feedback : {true, false}) {
    Config::Compression compression = Compression("topk");
    compression.ratio = 0.5;
    compression.error_feedback = feedback;
    const std::vector<TensorSpec> tensors = {{"a", ElementCount(2)}};
    const auto exchange = SimulatedExchange::Make(tensors, 2, compression).value();
    float second = 0;
    for (int step = 0; step < 400; ++step) {
      for (std::uint32_t w = 0; w < 2; ++w) {
        exchange->Input(0)[0] = step % 2 == 0 ? 100.0f : -100.0f;
        exchange->Input(0)[1] = 1;
        ASSERT_TRUE(exchange->Push(w).ok());
      }
      ASSERT_TRUE(exchange->EndStep().ok());
      second += exchange->Output(0)[1];
    }
    if (feedback) {
      EXPECT_GT(second, 150);
    } else {
      EXPECT_EQ(second, 0);
    }
  }
}

// A matrix of rank one, half of it from each worker: delivered as the mean, dense before the start and in two phases
// after it.
TEST(SimulatedExchange, LinearCodecsDeliverTheMean) {
  Config::Compression compression = Compression("powersgd");
  compression.powersgd_rank = 1;
  compression.start_step = 2;
  const std::vector<TensorSpec> tensors = {{"m", ElementCount(32 * 32), DType::kFloat32, {32, 32}}};
  const auto exchange = SimulatedExchange::Make(tensors, 2, compression).value();
  for (int step = 0; step < 6; ++step) {
    for (std::uint32_t w = 0; w < 2; ++w) {
      for (std::size_t i = 0; i < 1024; ++i) {
        exchange->Input(0)[i] = static_cast<float>(i / 32 + 1) * (w == 0 ? 2.0f : 4.0f);
      }
      ASSERT_TRUE(exchange->Push(w).ok());
    }
    ASSERT_TRUE(exchange->EndStep().ok());
    EXPECT_EQ(exchange->push_bytes(), step < 2 ? 4096u : 256u);
    for (std::size_t i = 0; i < 1024; ++i) {
      const auto expected = static_cast<float>(i / 32 + 1) * 3;
      ASSERT_NEAR(exchange->Output(0)[i], expected, step < 2 ? 0 : 1e-3f * expected) << step << " " << i;
    }
  }
}

// Every codec of the library takes part.
TEST(SimulatedExchange, KnowsEveryCodec) {
  const std::vector<TensorSpec> tensors = {{"m", ElementCount(64 * 32), DType::kFloat32, {64, 32}}};
  for (const std::string& codec : cli::CodecNames()) {
    const auto exchange = SimulatedExchange::Make(tensors, 2, Compression(codec)).value();
    float sent = 0;
    for (int step = 0; step < 12; ++step) {
      for (std::uint32_t w = 0; w < 2; ++w) {
        for (std::size_t i = 0; i < 2048; ++i) exchange->Input(0)[i] = static_cast<float>((i * 7 + w) % 13) - 6;
        ASSERT_TRUE(exchange->Push(w).ok()) << codec;
      }
      ASSERT_TRUE(exchange->EndStep().ok()) << codec;
      for (const float value : exchange->Output(0)) sent += std::abs(value);
    }
    EXPECT_GT(sent, 0) << codec;
    EXPECT_GT(exchange->push_bytes(), 0u) << codec;
    EXPECT_LE(exchange->push_bytes(), 8192u) << codec;
  }
}

TEST(SimulatedExchange, RefusesWhatItCannotDo) {
  const std::vector<TensorSpec> tensors = {{"a", ElementCount(2)}};
  EXPECT_FALSE(SimulatedExchange::Make(tensors, 2, Compression("zip")).ok());
  const auto exchange = SimulatedExchange::Make(tensors, 1, Compression("int8")).value();
  exchange->Input(0)[1] = HUGE_VALF;
  EXPECT_FALSE(exchange->Push(0).ok());
}

TrainingResult Ended(const std::string& codec, bool feedback, std::uint64_t seed, double accuracy) {
  return {.codec = codec, .error_feedback = feedback, .workers = 4, .seed = seed, .steps = 10, .accuracy = accuracy,
          .curve = {{5, accuracy / 2}, {10, accuracy}}};
}

TEST(Summary, JudgesGatesOnPairedMeans) {
  const std::vector<TrainingResult> runs = {
      Ended("none", true, 1, 0.86),       Ended("none", true, 2, 0.88),       Ended("topk", true, 1, 0.85),
      Ended("topk", true, 2, 0.87),       Ended("topk", false, 1, 0.79),      Ended("topk", false, 2, 0.81),
      Ended("onebit", true, 1, 0.82),     Ended("onebit", true, 2, 0.84),     Ended("onebit", false, 1, 0.70),
      Ended("onebit", false, 2, 0.70),    Ended("int8", true, 1, 0.86),       Ended("int8", true, 2, 0.89),
      Ended("topk:ratio=0.5", true, 1, 1), Ended("bf16", true, 3, 0.5)};
  const std::vector<SummaryRow> rows = Summarize(runs, 0.86);
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_NEAR(rows[0].accuracy.mean, 0.87, 1e-12);
  EXPECT_NEAR(rows[0].accuracy.error, 0.01, 1e-12);
  EXPECT_FALSE(rows[0].passed);
  EXPECT_EQ(rows[0].reached, 2u);
  EXPECT_EQ(rows[0].steps_to_target, 10);
  EXPECT_NEAR(rows[1].below_none->mean, -0.01, 1e-12);
  EXPECT_NEAR(rows[1].below_none->error, 0, 1e-12);
  EXPECT_NEAR(rows[1].above_twin->mean, 0.06, 1e-12);
  EXPECT_EQ(rows[1].passed, true);   // 1 point below, 6 above its twin
  EXPECT_FALSE(rows[2].passed);      // a twin has no gate of its own
  EXPECT_EQ(rows[3].passed, false);  // 4 points below
  EXPECT_EQ(rows[5].passed, true);
  EXPECT_FALSE(rows[6].passed);  // its twin did not run
  EXPECT_FALSE(rows[7].passed);  // no uncompressed run of that seed
}

// The job itself in short: without momentum and with large steps, so that what never arrives is missed early. Measured
// over several seeds: with feedback 9 (topk) and 12 (onebit) points better than without.
TEST(CodecGates, ErrorFeedbackCarriesShortTraining) {
  const auto data = LoadTrainingData(4, mlp::kFashionMnistFolder);
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  const TrainingJob job{.steps = 250, .batch = 8, .lr = 0.1, .momentum = 0, .eval_every = 0};
  const auto accuracy = [&](const std::string& codec, bool feedback) {
    return std::async(std::launch::async, [&data, &job, codec, feedback] {
      return RunTraining(*data, job, cli::ParseCodecSetting(codec, feedback).value(), 1).value().accuracy;
    });
  };
  auto none = accuracy("none", true);
  auto topk = accuracy("topk", true), topk_without = accuracy("topk", false);
  auto onebit = accuracy("onebit", true), onebit_without = accuracy("onebit", false);
  const double uncompressed = none.get(), with_topk = topk.get(), with_onebit = onebit.get();
  EXPECT_GT(uncompressed, 0.7);
  EXPECT_GT(with_topk, uncompressed - 0.04);
  EXPECT_GT(with_onebit, uncompressed - 0.04);
  EXPECT_GT(with_topk, topk_without.get() + 0.03);
  EXPECT_GT(with_onebit, onebit_without.get() + 0.04);
}

}  // namespace
}  // namespace tally::gates
