// The network's gradients against finite differences, its products against plain loops, and that it learns.
#include "benchmarks/mlp/model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "benchmarks/mlp/random.h"

namespace tally::mlp {
namespace {

struct Gradients {
  Gradients() {
    for (std::size_t t = 0; t < kTensors; ++t) {
      memory[t].resize(TensorSize(t));
      spans[t] = memory[t];
    }
  }
  std::array<std::vector<float>, kTensors> memory;
  std::array<std::span<float>, kTensors> spans;
};

// Class c has a bright block of its own.
Dataset Blocks(std::size_t rows, std::uint64_t seed) {
  Random random(seed);
  Dataset data;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t label = i % kClasses;
    data.labels.push_back(static_cast<std::uint8_t>(label));
    for (std::size_t p = 0; p < kInputs; ++p) {
      data.pixels.push_back(random.Uniform() - 0.5f + (p / 19 == label ? 1.0f : 0.0f));
    }
  }
  return data;
}

void ExpectGemmIsExact(const Gemm& gemm) {
  for (const auto& [m, n, k] : {std::array<std::size_t, 3>{1, 1, 1}, {3, 7, 5}, {64, 10, 33}, {17, 64, 196}}) {
    std::vector<float> a(m * k), b(n * k), c(m * n, -1.0f);
    for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(static_cast<int>(i * 7 % 13) - 6);
    for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>(static_cast<int>(i * 5 % 11) - 5);
    const auto expect = [&](const char* what, auto&& a_at, auto&& b_at) {
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < n; ++j) {
          float sum = 0;
          for (std::size_t l = 0; l < k; ++l) sum += a[a_at(i, l)] * b[b_at(l, j)];
          ASSERT_EQ(c[i * n + j], sum) << gemm.name << " " << what << " " << m << "x" << n << "x" << k;
        }
      }
    };
    const auto by_row = [](std::size_t width) { return [width](std::size_t i, std::size_t j) { return i * width + j; }; };
    const auto by_column = [](std::size_t width) {
      return [width](std::size_t i, std::size_t j) { return j * width + i; };
    };
    gemm.times(a.data(), b.data(), c.data(), m, n, k);
    expect("times", by_row(k), by_row(n));
    gemm.times_transposed(a.data(), b.data(), c.data(), m, n, k);
    expect("times_transposed", by_row(k), by_column(k));
    gemm.transposed_times(a.data(), b.data(), c.data(), m, n, k);
    expect("transposed_times", by_column(m), by_row(n));
  }
}

TEST(Gemm, EqualsPlainLoopsOnIntegers) {
  ExpectGemmIsExact(kGemmBaseline);
  ExpectGemmIsExact(MachineGemm());
}

TEST(Mlp, HasItsTensors) {
  EXPECT_EQ(ParameterCount(), 374410u);
  EXPECT_EQ(TensorName(0), "fc1.weight");
  EXPECT_EQ(TensorName(9), "fc5.bias");
  EXPECT_EQ(TensorSize(0), 196u * 320u);
  EXPECT_EQ(TensorSize(9), 10u);
}

TEST(Mlp, GradientsMatchFiniteDifferences) {
  const Dataset data = Blocks(20, 5);
  Mlp model(3);
  Batch batch;
  DrawBatch(data, 1, 0, 0, 16, batch);
  Gradients exact, scratch;
  model.Backward(batch, exact.spans, [](std::size_t) {});
  Random random(11);
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
    // The entries that matter most and some at random.
    std::vector<std::size_t> entries;
    std::size_t top = 0;
    for (std::size_t i = 0; i < TensorSize(tensor); ++i) {
      if (std::fabs(exact.memory[tensor][i]) > std::fabs(exact.memory[tensor][top])) top = i;
    }
    entries.push_back(top);
    for (int i = 0; i < 6; ++i) entries.push_back(random.Below(static_cast<std::uint32_t>(TensorSize(tensor))));
    for (const std::size_t i : entries) {
      float& p = model.parameter(tensor)[i];
      const float before = p;
      const float h = 1.0f / 256;
      p = before + h;
      const double above = model.Backward(batch, scratch.spans, [](std::size_t) {});
      p = before - h;
      const double below = model.Backward(batch, scratch.spans, [](std::size_t) {});
      p = before;
      const double numeric = (above - below) / (2.0 * static_cast<double>(h));
      const double analytic = static_cast<double>(exact.memory[tensor][i]);
      EXPECT_NEAR(numeric, analytic, 1e-3 + 0.05 * std::fabs(analytic)) << TensorName(tensor) << "[" << i << "]";
    }
  }
}

TEST(Mlp, HandsLayersOverLastFirstWithBothGradientsWritten) {
  const Dataset data = Blocks(20, 5);
  Mlp model(3);
  Batch batch;
  DrawBatch(data, 1, 0, 0, 8, batch);
  Gradients final, seen;
  for (auto& memory : seen.memory) std::fill(memory.begin(), memory.end(), NAN);
  std::vector<std::size_t> order;
  model.Backward(batch, final.spans, [](std::size_t) {});
  model.Backward(batch, seen.spans, [&](std::size_t layer) {
    order.push_back(layer);
    EXPECT_EQ(seen.memory[2 * layer], final.memory[2 * layer]);
    EXPECT_EQ(seen.memory[2 * layer + 1], final.memory[2 * layer + 1]);
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{4, 3, 2, 1, 0}));
}

TEST(Mlp, MeanOfShardGradientsIsTheGradientOfTheWholeBatch) {
  const Dataset data = Blocks(64, 9);
  Mlp model(3);
  Batch whole;
  DrawBatch(data, 1, 0, 0, 64, whole);
  Gradients all, part;
  std::array<std::vector<double>, kTensors> mean;
  for (std::size_t t = 0; t < kTensors; ++t) mean[t].resize(TensorSize(t));
  for (std::size_t w = 0; w < 4; ++w) {
    Batch batch;
    batch.labels.assign(whole.labels.begin() + static_cast<std::ptrdiff_t>(16 * w),
                        whole.labels.begin() + static_cast<std::ptrdiff_t>(16 * (w + 1)));
    batch.pixels.assign(whole.pixels.begin() + static_cast<std::ptrdiff_t>(16 * w * kInputs),
                        whole.pixels.begin() + static_cast<std::ptrdiff_t>(16 * (w + 1) * kInputs));
    model.Backward(batch, part.spans, [](std::size_t) {});
    for (std::size_t t = 0; t < kTensors; ++t) {
      for (std::size_t i = 0; i < mean[t].size(); ++i) mean[t][i] += static_cast<double>(part.memory[t][i]) / 4;
    }
  }
  model.Backward(whole, all.spans, [](std::size_t) {});
  for (std::size_t t = 0; t < kTensors; ++t) {
    for (std::size_t i = 0; i < mean[t].size(); ++i) ASSERT_NEAR(mean[t][i], static_cast<double>(all.memory[t][i]), 1e-5);
  }
}

TEST(Mlp, UpdateIsMomentumSgd) {
  Mlp model(3);
  const float before = model.parameter(9)[4];
  const std::vector<float> gradient(TensorSize(9), 2.0f);
  model.Update(9, gradient, 0.25f, 0.5f);  // v = 2
  EXPECT_EQ(model.parameter(9)[4], before - 0.5f);
  model.Update(9, gradient, 0.25f, 0.5f);  // v = 3
  EXPECT_EQ(model.parameter(9)[4], before - 1.25f);
}

TEST(Mlp, SameSeedSameWeightsAndHash) {
  Mlp a(7), b(7), c(8);
  EXPECT_EQ(a.Sha256(), b.Sha256());
  EXPECT_NE(a.Sha256(), c.Sha256());
  EXPECT_EQ(a.Sha256().size(), 64u);
  b.parameter(8)[3] += 1.0f;
  EXPECT_NE(a.Sha256(), b.Sha256());
}

TEST(Mlp, Learns) {
  const Dataset data = Blocks(400, 21);
  Mlp model(1);
  const Score before = model.Evaluate(data);
  Gradients gradients;
  Batch batch;
  for (std::uint64_t step = 0; step < 30; ++step) {
    DrawBatch(data, 1, 0, step, 64, batch);
    model.Backward(batch, gradients.spans, [](std::size_t) {});
    for (std::size_t t = 0; t < kTensors; ++t) model.Update(t, gradients.memory[t], 0.01f, 0.9f);
  }
  const Score after = model.Evaluate(data);
  EXPECT_LT(before.accuracy, 0.5);
  EXPECT_GT(after.accuracy, 0.9);
  EXPECT_LT(after.loss, before.loss);
  EXPECT_EQ(model.Evaluate(data, 401).accuracy, 1.0);  // one row
}

}  // namespace
}  // namespace tally::mlp
