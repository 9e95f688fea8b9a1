// PowerSGD: its arithmetic against double precision, what is exact, the law, warm start, and what it does not compress.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "compress/codec.h"
#include "compress/linear.h"
#include "compress/low_rank.h"

namespace tally {
namespace {

constexpr std::uint8_t kPowerSgd = 9;

std::vector<float> Random(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(n);
  for (float& x : values) x = static_cast<float>(static_cast<int>(random() % 20001) - 10000) / 4096.0F;
  return values;
}

double SquaredNorm(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

double DotOf(const float* a, const float* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(LowRank, ProductsAgreeWithDoublePrecision) {
  for (const LowRankShape& shape : {LowRankShape{1, 1, 1}, LowRankShape{5, 7, 3}, LowRankShape{64, 33, 4},
                                    LowRankShape{13, 129, 9}, LowRankShape{40, 50, 32}}) {
    const auto [a, b, r] = shape;
    const std::vector<float> m = Random(a * b, 1), q = Random(b * r, 2), p = Random(a * r, 3);
    std::vector<float> mq(a * r), mtp(b * r), pqt(a * b);
    RowProducts(shape, m.data(), q.data(), mq.data());
    ColumnProducts(shape, m.data(), p.data(), mtp.data());
    Reconstruct(shape, p.data(), q.data(), pqt.data());
    std::vector<float> rest = m;
    SubtractReconstruction(shape, p.data(), q.data(), rest.data());
    for (std::size_t j = 0; j < r; ++j) {
      for (std::size_t i = 0; i < a; ++i) {
        ASSERT_NEAR(static_cast<double>(mq[j * a + i]), DotOf(&m[i * b], &q[j * b], b), 1e-3);
      }
      for (std::size_t k = 0; k < b; ++k) {
        double sum = 0;
        for (std::size_t i = 0; i < a; ++i) sum += static_cast<double>(m[i * b + k]) * static_cast<double>(p[j * a + i]);
        ASSERT_NEAR(static_cast<double>(mtp[j * b + k]), sum, 1e-3);
      }
    }
    for (std::size_t i = 0; i < a; ++i) {
      for (std::size_t k = 0; k < b; ++k) {
        // The definition, bit by bit: products added in the order of the columns.
        float sum = p[i] * q[k];
        for (std::size_t j = 1; j < r; ++j) sum = sum + p[j * a + i] * q[j * b + k];
        ASSERT_EQ(pqt[i * b + k], sum);
        ASSERT_EQ(rest[i * b + k], m[i * b + k] - sum);
      }
    }
  }
}

void ExpectOrthonormal(const std::vector<float>& p, std::size_t rows, std::size_t rank) {
  for (std::size_t i = 0; i < rank; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      ASSERT_NEAR(DotOf(&p[i * rows], &p[j * rows], rows), i == j ? 1.0 : 0.0, 2e-6) << i << ", " << j;
    }
  }
}

TEST(LowRank, Orthonormalizes) {
  for (const std::size_t rows : {4U, 17U, 320U, 5000U}) {
    for (const std::size_t rank : {1U, 2U, 4U}) {
      std::vector<float> p = Random(rows * rank, static_cast<std::uint32_t>(rows));
      Orthonormalize(rows, rank, p.data());
      ExpectOrthonormal(p, rows, rank);
    }
  }
  // Nearly parallel columns.
  std::vector<float> p(1000, 1.0F);
  for (std::size_t i = 0; i < 500; ++i) p[500 + i] += static_cast<float>(i % 7) * 0x1p-12F;
  Orthonormalize(500, 2, p.data());
  ExpectOrthonormal(p, 500, 2);
}

TEST(LowRank, DependentColumnsBecomeZero) {
  std::vector<float> p = Random(3 * 100, 4);
  for (std::size_t i = 0; i < 100; ++i) p[100 + i] = 3 * p[i];
  Orthonormalize(100, 3, p.data());
  EXPECT_TRUE(std::all_of(p.begin() + 100, p.begin() + 200, [](float x) { return x == 0; }));
  EXPECT_NEAR(DotOf(&p[200], &p[200], 100), 1, 1e-5);
  EXPECT_NEAR(DotOf(&p[200], &p[0], 100), 0, 1e-5);
  std::vector<float> zeros(50, 0.0F);
  Orthonormalize(25, 2, zeros.data());
  EXPECT_EQ(zeros, std::vector<float>(50, 0.0F));
}

TEST(LowRank, PowersOfTwoMakeNoDifference) {
  const std::vector<float> p = Random(2 * 60, 5);
  std::vector<float> expected = p;
  Orthonormalize(60, 2, expected.data());
  for (const int exponent : {-100, -1, 1, 30, 100}) {
    std::vector<float> scaled = p;
    for (float& x : scaled) x = std::ldexp(x, exponent);
    Orthonormalize(60, 2, scaled.data());
    EXPECT_EQ(scaled, expected) << exponent;
  }
}

// The sum of 16 in turn, pairwise, one operation at a time: pinned, so that another compiler cannot change it.
TEST(LowRank, OrthonormalizeIsPinned) {
  std::vector<float> p = {3, 4, 0, 1, 2, 2};
  Orthonormalize(3, 2, p.data());
  EXPECT_EQ(p[0], 0.6F);
  EXPECT_EQ(p[1], 0.8F);
  EXPECT_EQ(p[2], 0.0F);
  std::uint32_t hash = 2166136261U;
  std::vector<float> many = Random(3 * 37, 6);
  Orthonormalize(37, 3, many.data());
  for (const float x : many) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    hash = (hash ^ bits) * 16777619U;
  }
  EXPECT_EQ(hash, 1116092384U);
}

Config::Compression Options(std::uint32_t rank = 2, double rate = 1) {
  Config::Compression options;
  options.codec = "powersgd";
  options.powersgd_rank = rank;
  options.powersgd_rate = rate;
  options.min_compress_bytes = 0;
  return options;
}

TensorSpec Matrix(std::uint64_t rows, std::uint64_t columns) {
  return {"w", ElementCount(rows * columns), DType::kFloat32, {rows, columns}};
}

// Workers that sum without a network.
class Workers {
 public:
  Workers(std::size_t count, std::uint64_t rows, std::uint64_t columns, std::uint32_t rank)
      : codec_(MakeLinearCodec(kPowerSgd, Options(rank)).value()), spec_(Matrix(rows, columns)) {
    const auto vectors = codec_->Vectors(spec_, 65536);
    p_.resize(vectors[0].elements.value);
    q_.resize(vectors[1].elements.value);
    for (std::size_t w = 0; w < count; ++w) {
      states.push_back(codec_->Make({.seed = 3, .tensor = 1, .spec = spec_, .slab_elements = 65536}));
      e.emplace_back(spec_.elements.value);
      e_next.emplace_back(spec_.elements.value);
    }
  }
  // The mean that all deliver.
  std::vector<float> Step(std::uint64_t step, const std::vector<std::vector<float>>& g, bool feedback = true) {
    const auto count = static_cast<float>(states.size());
    std::vector<std::vector<float>> own(states.size(), std::vector<float>(p_.size()));
    for (std::size_t w = 0; w < states.size(); ++w) {
      EXPECT_TRUE(states[w]->Encode(step, g.empty() ? nullptr : g[w].data(), 1.0F, feedback ? e[w].data() : nullptr,
                                    feedback ? e_next[w].data() : nullptr, own[w].data()));
    }
    Mean(own, &p_);
    for (auto& vector : own) vector.resize(q_.size());
    for (std::size_t w = 0; w < states.size(); ++w) {
      states[w]->EncodeSecond(p_.data(), feedback ? e_next[w].data() : nullptr, own[w].data());
    }
    Mean(own, &q_);
    std::vector<float> first, out(spec_.elements.value);
    for (std::size_t w = 0; w < states.size(); ++w) {
      states[w]->Decode(q_.data(), out.data());
      if (w == 0) first = out;
      EXPECT_EQ(out, first) << "all deliver the same bits";
    }
    EXPECT_GT(count, 0);
    return out;
  }
  void Commit() {
    for (auto& state : states) state->Commit();
    e.swap(e_next);
  }
  void Drop() {
    for (auto& state : states) state->Drop();
  }
  const std::vector<float>& p() const { return p_; }

  std::vector<std::unique_ptr<LinearTensor>> states;
  std::vector<std::vector<float>> e, e_next;

 private:
  static void Mean(const std::vector<std::vector<float>>& own, std::vector<float>* mean) {
    for (std::size_t i = 0; i < mean->size(); ++i) {
      float sum = own[0][i];
      for (std::size_t w = 1; w < own.size(); ++w) sum = sum + own[w][i];
      (*mean)[i] = sum / static_cast<float>(own.size());
    }
  }
  std::unique_ptr<LinearCodec> codec_;
  TensorSpec spec_;
  std::vector<float> p_, q_;
};

std::vector<float> Outer(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> m;
  for (const float x : a) {
    for (const float y : b) m.push_back(x * y);
  }
  return m;
}

TEST(PowerSgd, ARankOneGradientComesBackAtOnce) {
  Workers workers(3, 30, 50, 2);
  std::vector<std::vector<float>> g;
  const std::vector<float> right = Random(50, 8);
  std::vector<double> mean(1500);
  for (std::uint32_t w = 0; w < 3; ++w) {
    g.push_back(Outer(Random(30, 20 + w), right));
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += static_cast<double>(g[w][i]) / 3;
  }
  const std::vector<float> delivered = workers.Step(0, g);
  // One direction on the right: P has rank one, and the mean lies in its span; each worker's own part may not.
  for (std::size_t i = 0; i < mean.size(); ++i) ASSERT_NEAR(static_cast<double>(delivered[i]), mean[i], 1e-4);
}

// Gradients = delivered + residuals, over commits and skips, within rounding; a skipped step leaves everything.
TEST(PowerSgd, LawOverCommitsAndDrops) {
  constexpr std::size_t kWorkers = 3, kElements = 40 * 24;
  Workers workers(kWorkers, 40, 24, 2);
  std::vector<double> open(kElements);
  double residual = 0;
  for (std::uint32_t step = 0; step < 30; ++step) {
    std::vector<std::vector<float>> g;
    for (std::uint32_t w = 0; w < kWorkers; ++w) g.push_back(Random(kElements, 100 * step + w));
    if (step % 9 == 8) g.clear();  // missing: flushes residuals
    const std::vector<float> delivered = workers.Step(step, g);
    if (step % 4 == 2) {
      workers.Drop();
      const std::vector<float> p = workers.p();
      const std::vector<float> again = workers.Step(step, g);
      EXPECT_EQ(again, delivered) << "a dropped step leaves Q and e";
      EXPECT_EQ(workers.p(), p);
      if (step % 8 == 2) {
        workers.Drop();
        continue;
      }
    }
    workers.Commit();
    for (std::size_t i = 0; i < kElements; ++i) {
      for (const auto& own : g) open[i] += static_cast<double>(own[i]);
      open[i] -= kWorkers * static_cast<double>(delivered[i]);
    }
  }
  for (std::size_t i = 0; i < kElements; ++i) {
    for (const auto& own : workers.e) {
      open[i] -= static_cast<double>(own[i]);
      residual += std::abs(static_cast<double>(own[i]));
    }
    ASSERT_NEAR(open[i], 0, 1e-3) << i;
  }
  EXPECT_GT(residual, 100);
}

TEST(PowerSgd, WarmStartFollowsAConstantGradient) {
  // Rank 4 with singular values falling by halves; power iteration over steps finds the leading ones.
  std::vector<float> g(60 * 60);
  for (std::uint32_t k = 0; k < 4; ++k) {
    const std::vector<float> part = Outer(Random(60, 40 + k), Random(60, 50 + k));
    for (std::size_t i = 0; i < g.size(); ++i) g[i] += std::ldexp(part[i], -static_cast<int>(k));
  }
  const auto error = [&](bool warm) {
    Workers workers(1, 60, 60, 2);
    double last = 0;
    for (std::uint64_t step = 0; step < 8; ++step) {
      const std::vector<float> delivered = workers.Step(step, {g}, false);
      std::vector<float> rest = g;
      for (std::size_t i = 0; i < g.size(); ++i) rest[i] -= delivered[i];
      last = SquaredNorm(rest);
      if (warm) workers.Commit();
    }
    return last;
  };
  EXPECT_LT(error(true), error(false));
}

TEST(PowerSgd, ResidualIsAContraction) {
  Workers workers(1, 50, 70, 4);
  const std::vector<float> g = Random(50 * 70, 9);
  (void)workers.Step(0, {g});
  EXPECT_LT(SquaredNorm(workers.e_next[0]), SquaredNorm(g));
}

// Teeth: a large part that goes back and forth hides a small constant one from rank 1. With feedback it arrives.
TEST(PowerSgd, FeedbackHasTeeth) {
  std::vector<float> unit_a(20), unit_b(30), ones_a(20), ones_b(30);
  unit_a[0] = unit_b[0] = 1;
  ones_a[7] = ones_b[9] = 1;
  const std::vector<float> big = Outer(unit_a, unit_b), small = Outer(ones_a, ones_b);
  const auto moved = [&](bool feedback) {
    Workers workers(1, 20, 30, 1);
    double sum = 0;
    for (std::uint64_t step = 0; step < 400; ++step) {
      std::vector<float> g(600);
      for (std::size_t i = 0; i < 600; ++i) g[i] = (step % 2 == 0 ? 100.0F : -100.0F) * big[i] + small[i];
      const std::vector<float> delivered = workers.Step(step, {g}, feedback);
      workers.Commit();
      sum += static_cast<double>(delivered[7 * 30 + 9]);
    }
    return sum;
  };
  EXPECT_LT(moved(false), 10);
  EXPECT_GT(moved(true), 200);
}

TEST(PowerSgd, ZeroGradientsDoNotEndIt) {
  Workers workers(2, 20, 20, 2);
  const std::vector<float> zero(400), g = Outer(Random(20, 1), Random(20, 2));
  EXPECT_EQ(workers.Step(0, {zero, zero}), zero);
  workers.Commit();
  const std::vector<float> delivered = workers.Step(1, {g, g});
  for (std::size_t i = 0; i < 400; ++i) ASSERT_NEAR(delivered[i], g[i], 1e-4F) << "a column of zeros is drawn anew";
}

TEST(PowerSgd, RefusesWhatIsNotFinite) {
  const auto codec = MakeLinearCodec(kPowerSgd, Options()).value();
  const auto state = codec->Make({.seed = 1, .tensor = 0, .spec = Matrix(10, 10), .slab_elements = 100});
  std::vector<float> g(100, 1.0F), vector(20);
  g[99] = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(state->Encode(0, g.data(), 1.0F, nullptr, nullptr, vector.data()));
  g[99] = std::numeric_limits<float>::max();
  EXPECT_FALSE(state->Encode(0, g.data(), 4.0F, nullptr, nullptr, vector.data()));
}

TEST(PowerSgd, WhatItCompresses) {
  const auto vectors = [](const TensorSpec& spec, std::uint32_t rank, double rate) {
    return MakeLinearCodec(kPowerSgd, Options(rank, rate)).value()->Vectors(spec, 65536);
  };
  EXPECT_EQ(vectors(Matrix(64, 36), 4, 2), (std::vector<TensorSpec>{{"w/P", ElementCount(256)}, {"w/Q", ElementCount(144)}}));
  EXPECT_TRUE(vectors({"w", ElementCount(10'000)}, 4, 2).empty()) << "no shape";
  EXPECT_TRUE(vectors({"w", ElementCount(100), DType::kFloat32, {100}}, 1, 1).empty());
  // 8*8 = 64 elements; rank 2 takes 2*16 = 32: exactly twice less.
  EXPECT_EQ(vectors(Matrix(8, 8), 2, 2).size(), 2U);
  EXPECT_TRUE(vectors(Matrix(8, 8), 2, 2.01).empty());
}

TEST(PowerSgd, RankIsCutToTheSmallerSide) {
  const TensorSpec kernel{"k", ElementCount(144 * 3), DType::kFloat32, {3, 16, 3, 3}};
  // 432 elements; rank 3 takes 3 * 147 = 441.
  EXPECT_TRUE(MakeLinearCodec(kPowerSgd, Options(8)).value()->Vectors(kernel, 65536).empty());
  EXPECT_EQ(MakeLinearCodec(kPowerSgd, Options(2)).value()->Vectors(kernel, 65536)[1].elements.value, 288U);
  EXPECT_EQ(TensorBytes(kernel, 2, Options(2)).value().push, 4U * 2 * 147);
  EXPECT_EQ(TensorBytes(kernel, 2, Options(8)).value().push, 4U * 432);
  for (const std::uint32_t rank : {0U, 33U}) EXPECT_FALSE(MakeLinearCodec(kPowerSgd, Options(rank)).ok());
}

}  // namespace
}  // namespace tally
