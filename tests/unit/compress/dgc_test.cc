// dgc: velocity and residual by their recurrences, the law, clipping, Nesterov, what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

Config::Compression Options(double ratio, double momentum, bool nesterov = false, double clip = 0) {
  Config::Compression options;
  options.codec = "dgc";
  options.ratio = ratio;
  options.dgc_momentum = momentum;
  options.dgc_nesterov = nesterov;
  options.dgc_clip = clip;
  return options;
}

struct Site {
  Site(std::size_t n, const Config::Compression& options)
      : codec(MakeCodec("dgc", options).value()),
        u(n),
        v(n),
        u_next(n),
        v_next(n),
        decoded(n),
        out(codec->EncodedBytes(n)) {}
  bool Encode(const std::vector<float>& g, float w = 1.0F) {
    const bool finite = codec->EncodeWithMomentum({}, g.data(), w, u.data(), u_next.data(), v.data(), v_next.data(),
                                                  g.size(), out.data());
    if (finite) codec->Decode(out, g.size(), decoded.data());
    return finite;
  }
  void Commit() {
    u.swap(u_next);
    v.swap(v_next);
  }
  std::unique_ptr<Codec> codec;
  std::vector<float> u, v, u_next, v_next, decoded;
  std::vector<std::byte> out;
};

// Velocity by hand: three elements, one sent a step, momentum 1/2.
TEST(Dgc, FollowsItsRecurrences) {
  Site site(3, Options(0.3, 0.5));
  ASSERT_TRUE(site.Encode({8, 4, 1}));
  EXPECT_EQ(site.decoded, (std::vector<float>{8, 0, 0}));
  EXPECT_EQ(site.u_next, (std::vector<float>{0, 4, 1})) << "cleared where it was sent";
  EXPECT_EQ(site.v_next, (std::vector<float>{0, 4, 1}));
  site.Commit();
  ASSERT_TRUE(site.Encode({0, 0, 0}));
  EXPECT_EQ(site.decoded, (std::vector<float>{0, 6, 0})) << "4, and half of its velocity";
  EXPECT_EQ(site.u_next, (std::vector<float>{0, 0, 0.5F}));
  EXPECT_EQ(site.v_next, (std::vector<float>{0, 0, 1.5F}));
  site.Commit();
  ASSERT_TRUE(site.Encode({1, 0, 2}, 2.0F));
  EXPECT_EQ(site.decoded, (std::vector<float>{0, 0, 5.75F}));
  EXPECT_EQ(site.u_next, (std::vector<float>{2, 0, 0}));
  EXPECT_EQ(site.v_next, (std::vector<float>{2, 0, 0}));
}

TEST(Dgc, NesterovAddsTheGradientAndTheNextVelocity) {
  Site site(2, Options(0.5, 0.5, true));
  ASSERT_TRUE(site.Encode({8, 4}));
  EXPECT_EQ(site.decoded, (std::vector<float>{12, 0}));
  EXPECT_EQ(site.u_next, (std::vector<float>{0, 4}));
  EXPECT_EQ(site.v_next, (std::vector<float>{0, 6}));
  site.Commit();
  ASSERT_TRUE(site.Encode({0, 0}));
  EXPECT_EQ(site.decoded, (std::vector<float>{0, 7})) << "u = 2, v = 6 + 0 + 1";
}

// Everything that was added to v was sent or is in v, over commits and drops; exact, as the numbers are small dyadic ones.
TEST(Dgc, LawOverCommitsAndDrops) {
  for (const bool nesterov : {false, true}) {
    constexpr std::size_t kElements = 400;
    Site site(kElements, Options(0.02, 0.5, nesterov));
    std::vector<double> added(kElements), sent(kElements);
    std::mt19937 random(4);
    for (int step = 0; step < 12; ++step) {
      std::vector<float> g(kElements);
      for (float& x : g) x = static_cast<float>(static_cast<int>(random() % 65) - 32);
      const std::vector<float> u_before = site.u, v_before = site.v;
      ASSERT_TRUE(site.Encode(g));
      EXPECT_EQ(site.u, u_before);
      EXPECT_EQ(site.v, v_before) << "the old state is read only";
      std::set<std::uint16_t> places;
      for (std::size_t j = 0; j < 8; ++j) {
        std::uint16_t index = 0;
        std::memcpy(&index, site.out.data() + 2 * j, sizeof index);
        places.insert(index);
      }
      ASSERT_EQ(places.size(), 8U);
      for (std::size_t i = 0; i < kElements; ++i) {
        const float u = 0.5F * u_before[i] + g[i];
        const float v = v_before[i] + (nesterov ? g[i] + 0.5F * u : u);
        const bool taken = places.contains(static_cast<std::uint16_t>(i));
        ASSERT_EQ(site.u_next[i], taken ? 0.0F : u);
        ASSERT_EQ(site.v_next[i], taken ? 0.0F : v);
        ASSERT_EQ(site.decoded[i], taken ? v : 0.0F);
        if (step % 4 == 3) continue;  // skipped
        added[i] += static_cast<double>(nesterov ? g[i] + 0.5F * u : u);
        sent[i] += static_cast<double>(site.decoded[i]);
      }
      if (step % 4 != 3) site.Commit();
    }
    for (std::size_t i = 0; i < kElements; ++i) ASSERT_EQ(added[i], sent[i] + static_cast<double>(site.v[i])) << i;
  }
}

// Teeth: two large numbers that take turns. Without the residual the small one never moves.
TEST(Dgc, HasTeeth) {
  Site site(2, Options(0.5, 0));
  double moved = 0;
  for (int step = 0; step < 400; ++step) {
    ASSERT_TRUE(site.Encode({step % 2 == 0 ? 100.0F : -100.0F, 1.0F}));
    moved += static_cast<double>(site.decoded[1]);
    site.Commit();
  }
  EXPECT_GT(moved, 0);
  EXPECT_EQ(moved + static_cast<double>(site.v[1]), 400.0);
}

TEST(Dgc, RefusesWhatIsNotFinite) {
  Site site(5, Options(0.2, 0.9));
  const float huge = std::numeric_limits<float>::max();
  EXPECT_FALSE(site.Encode({1, 2, std::numeric_limits<float>::quiet_NaN(), 4, 5}));
  EXPECT_FALSE(site.Encode({1, 2, 3, 4, std::numeric_limits<float>::infinity()}));
  EXPECT_FALSE(site.Encode({huge, 0, 0, 0, 0}, 2.0F));
  site.u[3] = huge;
  EXPECT_FALSE(site.Encode({0, 0, 0, huge, 0})) << "the velocity overflows";
}

TEST(Dgc, ClipsTheTensorsNorm) {
  const auto codec = MakeCodec("dgc", Options(0.1, 0.9, false, 10)).value();
  const std::vector<float> g = {3, 0, 4, 0, 12, 0, 0, 0, 0, 84};  // norm 85
  EXPECT_FLOAT_EQ(codec->ClipFactor(g.data(), g.size(), 1, 1), 10.0F / 85);
  EXPECT_FLOAT_EQ(codec->ClipFactor(g.data(), g.size(), 1, 4), 5.0F / 85);
  EXPECT_FLOAT_EQ(codec->ClipFactor(g.data(), g.size(), 4, 4), 20.0F / 85) << "a loss scale of 4 is not its norm";
  EXPECT_EQ(codec->ClipFactor(g.data(), 3, 1, 4), 1.0F) << "norm 5 is allowed";
  const std::vector<float> zeros(9);
  EXPECT_EQ(codec->ClipFactor(zeros.data(), 9, 1, 4), 1.0F);
  EXPECT_EQ(MakeCodec("dgc", Options(0.1, 0.9)).value()->ClipFactor(g.data(), g.size(), 1, 1), 1.0F);
}

TEST(Dgc, RefusesOptionsThatMakeNoSense) {
  const auto text = [](const Config::Compression& options) { return MakeCodec("dgc", options).status().text(); };
  Config::Compression options = Options(0.1, 0.9);
  options.error_feedback = false;
  EXPECT_NE(text(options).find("error_feedback"), std::string::npos);
  EXPECT_NE(text(Options(0.1, 1)).find("dgc_momentum"), std::string::npos);
  EXPECT_NE(text(Options(0.1, std::nan(""))).find("dgc_momentum"), std::string::npos);
  EXPECT_NE(text(Options(0.1, 0.9, false, -1)).find("dgc_clip"), std::string::npos);
}

}  // namespace
}  // namespace tally
