// Saving, restoring and handing over residuals: nothing is lost, nothing fits where it does not belong.
#include "compress/residual_transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace tally {
namespace {

constexpr ResidualOrigin kOrigin{EpochId(3), 4, Rank(2)};

Layout Cut(const std::vector<TensorSpec>& tensors, std::uint32_t workers, bool reversed = false) {
  std::vector<std::vector<std::uint32_t>> buckets;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    buckets.push_back({reversed ? static_cast<std::uint32_t>(tensors.size()) - 1 - t : t});
  }
  return MakeLayout(tensors, buckets, workers).value();
}

std::vector<TensorSpec> Tensors() {
  return {{"a", ElementCount(10'000)}, {"b", ElementCount(7)}, {"c", ElementCount(5000)}};
}

struct Site {
  explicit Site(Layout cut) : layout(std::move(cut)), feedback(layout, {true, false, true}) {}
  void Fill(float first) {
    for (const std::uint32_t t : {0U, 2U}) {
      float* next = feedback.NextTensor(t);
      for (std::size_t i = 0; i < layout.tensors[t].elements.value; ++i) next[i] = first + static_cast<float>(i % 97);
    }
    feedback.Commit();
  }
  Layout layout;
  ErrorFeedback feedback;
};

TEST(ResidualTransfer, SavedAndRestoredWhateverTheBuckets) {
  Site site(Cut(Tensors(), 4));
  site.Fill(3);
  const SavedResiduals saved = SaveResiduals(site.feedback, site.layout, kOrigin);
  ASSERT_EQ(saved.tensors.size(), 2U);
  EXPECT_EQ(saved.tensors[1].name, "c");
  EXPECT_EQ(saved.L1(), site.feedback.L1());
  Site other(Cut(Tensors(), 4, true));
  other.Fill(50);
  ASSERT_TRUE(RestoreResiduals(saved, other.layout, kOrigin, &other.feedback).ok());
  for (const std::uint32_t t : {0U, 2U}) {
    EXPECT_TRUE(std::ranges::equal(site.feedback.Residual(t), other.feedback.Residual(t)));
  }
  other.feedback.NextTensor(0)[0] = 1;
  other.feedback.Drop();
  EXPECT_EQ(other.feedback.L1(), site.feedback.L1()) << "the restored state is the committed one";
}

TEST(ResidualTransfer, RefusesWhatDoesNotFit) {
  Site site(Cut(Tensors(), 4));
  site.Fill(3);
  const SavedResiduals good = SaveResiduals(site.feedback, site.layout, kOrigin);
  const double before = site.feedback.L1();
  const auto refused = [&](const SavedResiduals& saved, const ResidualOrigin& origin = kOrigin) {
    const Status status = RestoreResiduals(saved, site.layout, origin, &site.feedback);
    EXPECT_EQ(site.feedback.L1(), before);
    return status;
  };
  EXPECT_EQ(refused(good, {EpochId(3), 5, Rank(2)}).kind(), StatusKind::kMismatch);
  const Status other_rank = refused(good, {EpochId(3), 4, Rank(1)});
  EXPECT_NE(other_rank.text().find("rank 1 of 4 in epoch 3"), std::string::npos) << other_rank.text();
  EXPECT_NE(other_rank.text().find("rank 2 of 4 in epoch 3"), std::string::npos) << other_rank.text();
  SavedResiduals bad = good;
  bad.layout_digest ^= 1;
  EXPECT_EQ(refused(bad).kind(), StatusKind::kMismatch);
  bad = good;
  bad.tensors.pop_back();
  EXPECT_NE(refused(bad).text().find("c is missing"), std::string::npos);
  bad = good;
  bad.tensors[1].name = "b";
  EXPECT_EQ(refused(bad).kind(), StatusKind::kMismatch) << "b has no residual";
  bad = good;
  bad.tensors[1] = bad.tensors[0];
  EXPECT_EQ(refused(bad).kind(), StatusKind::kCorrupt);
  bad = good;
  bad.tensors[0].values.pop_back();
  EXPECT_NE(refused(bad).text().find("10000"), std::string::npos);
  bad = good;
  bad.tensors[0].values[77] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refused(bad).kind(), StatusKind::kCorrupt);
  EXPECT_TRUE(refused(good).ok());
  EXPECT_TRUE(refused(good, {EpochId(4), 4, Rank(2)}).ok()) << "a job that resumes has an epoch of its own";
}

TEST(ResidualTransfer, DigestSeesTensorsNotTheirOrder) {
  const std::uint64_t digest = ResidualDigest(Cut(Tensors(), 4));
  EXPECT_EQ(ResidualDigest(Cut(Tensors(), 7, true)), digest);
  std::vector<TensorSpec> tensors = Tensors();
  std::swap(tensors[0], tensors[2]);
  EXPECT_EQ(ResidualDigest(Cut(tensors, 4)), digest);
  tensors[1].elements = ElementCount(8);
  EXPECT_NE(ResidualDigest(Cut(tensors, 4)), digest);
  tensors = Tensors();
  tensors[2].shape = {50, 100};
  EXPECT_NE(ResidualDigest(Cut(tensors, 4)), digest);
}

// A world of four becomes one of three: the leaver's residual goes to a survivor, whose cut is another.
TEST(ResidualTransfer, HandOverKeepsTheSum) {
  Site leaver(Cut(Tensors(), 4)), heir(Cut(Tensors(), 3));
  leaver.Fill(2);
  heir.Fill(40);
  const double sum = leaver.feedback.L1() + heir.feedback.L1();
  const SavedResiduals saved = SaveResiduals(leaver.feedback, leaver.layout, kOrigin);
  ASSERT_TRUE(HandOverResiduals(saved, heir.layout, &heir.feedback).ok());
  EXPECT_EQ(heir.feedback.L1(), sum);
  EXPECT_EQ(heir.feedback.Residual(2)[4999], 42.0F + 2 * static_cast<float>(4999 % 97));
  SavedResiduals stranger = saved;
  stranger.tensors[0].name = "x";
  EXPECT_EQ(HandOverResiduals(stranger, heir.layout, &heir.feedback).kind(), StatusKind::kMismatch);
  EXPECT_EQ(heir.feedback.L1(), sum);
}

// An owner's residuals, slab by slab, go to the positions u mod N of the new layout.
TEST(ResidualTransfer, OwnersResidualsFindTheirHeirs) {
  const Layout layout = Cut(Tensors(), 3);
  std::vector<Site> workers;
  for (int p = 0; p < 3; ++p) workers.emplace_back(layout);
  double given = 0;
  for (std::uint32_t u = 0; u < layout.slabs.size(); ++u) {
    const Slab& slab = layout.slabs[u];
    if (slab.tensor == 1) continue;
    const std::vector<float> kept(slab.elements, static_cast<float>(u + 1));
    given += static_cast<double>(slab.elements) * (u + 1);
    workers[HeirOfSlab(SlabId(u), 3).value].feedback.Add(slab.tensor, slab.offset, kept);
  }
  double found = 0;
  for (const Site& worker : workers) found += worker.feedback.L1();
  EXPECT_EQ(found, given);
  EXPECT_EQ(workers[1].feedback.Residual(0)[4096], 2.0F);
}

}  // namespace
}  // namespace tally
