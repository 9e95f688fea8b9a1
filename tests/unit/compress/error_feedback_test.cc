// Error feedback storage: both buffers, whole steps, slabs that a step does not touch.
#include "compress/error_feedback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace tally {
namespace {

// Three tensors; the first has three slabs, the second none of feedback, the third one slab.
Layout ThreeTensors() {
  Layout layout;
  layout.tensors = {{"a", ElementCount(10)}, {"b", ElementCount(5)}, {"c", ElementCount(3)}};
  layout.slabs = {{0, 0, 4, 0}, {0, 4, 4, 0}, {0, 8, 2, 0}, {1, 0, 5, 0}, {2, 0, 3, 0}};
  layout.first_slab = {0, 3, 4, 5};
  return layout;
}

void Write(ErrorFeedback& feedback, const Slab& slab, float value) {
  std::fill_n(feedback.Next(slab), slab.elements, value);
}

std::vector<float> Of(const ErrorFeedback& feedback, std::uint32_t tensor) {
  const auto residual = feedback.Residual(tensor);
  return {residual.begin(), residual.end()};
}

class ErrorFeedbackTest : public testing::Test {
 protected:
  Layout layout_ = ThreeTensors();
  ErrorFeedback feedback_{layout_, {true, false, true}};
};

TEST_F(ErrorFeedbackTest, StartsAtZeroWithTwoBuffers) {
  EXPECT_TRUE(feedback_.Has(0));
  EXPECT_FALSE(feedback_.Has(1));
  EXPECT_EQ(feedback_.Old(layout_.slabs[3]), nullptr);
  EXPECT_EQ(feedback_.Next(layout_.slabs[3]), nullptr);
  EXPECT_TRUE(feedback_.Residual(1).empty());
  EXPECT_EQ(feedback_.bytes(), 13u * 8u);
  EXPECT_EQ(Of(feedback_, 0), std::vector<float>(10, 0.0f));
}

TEST_F(ErrorFeedbackTest, CommitSwapsAndDropForgets) {
  for (const std::uint32_t u : {0u, 1u, 2u, 4u}) Write(feedback_, layout_.slabs[u], static_cast<float>(u + 1));
  EXPECT_EQ(feedback_.Old(layout_.slabs[1])[0], 0.0f) << "tentative until the verdict";
  feedback_.Commit();
  const std::vector<float> a = {1, 1, 1, 1, 2, 2, 2, 2, 3, 3};
  EXPECT_EQ(Of(feedback_, 0), a);
  EXPECT_EQ(Of(feedback_, 2), std::vector<float>(3, 5.0f));
  EXPECT_EQ(feedback_.L1(), 33.0);
  EXPECT_EQ(feedback_.L2(), 4.0 + 16.0 + 18.0 + 75.0);
  for (const std::uint32_t u : {0u, 1u, 2u, 4u}) Write(feedback_, layout_.slabs[u], 99.0f);
  feedback_.Drop();
  EXPECT_EQ(Of(feedback_, 0), a);
  feedback_.Commit();
  EXPECT_EQ(Of(feedback_, 0), a) << "a step that wrote nothing changes nothing";
}

TEST_F(ErrorFeedbackTest, SlabsNotWrittenKeepTheirResidual) {
  for (const std::uint32_t u : {0u, 1u, 2u, 4u}) Write(feedback_, layout_.slabs[u], static_cast<float>(u + 1));
  feedback_.Commit();
  for (int step = 0; step < 3; ++step) {
    const float value = 10.0f + static_cast<float>(step);
    Write(feedback_, layout_.slabs[1], value);
    feedback_.Commit();
    EXPECT_EQ(Of(feedback_, 0), (std::vector<float>{1, 1, 1, 1, value, value, value, value, 3, 3}));
    EXPECT_EQ(Of(feedback_, 2), std::vector<float>(3, 5.0f));
  }
}

TEST_F(ErrorFeedbackTest, ADropClearsWhatTheStepHadWritten) {
  for (const std::uint32_t u : {0u, 1u, 2u}) Write(feedback_, layout_.slabs[u], 1.0f);
  feedback_.Commit();
  Write(feedback_, layout_.slabs[0], 7.0f);
  feedback_.Drop();
  Write(feedback_, layout_.slabs[2], 8.0f);
  feedback_.Commit();
  EXPECT_EQ(Of(feedback_, 0), (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 1, 8, 8}));
}

TEST_F(ErrorFeedbackTest, WritingTwiceInAStepReadsTheSameOld) {
  Write(feedback_, layout_.slabs[4], 1.0f);
  feedback_.Commit();
  Write(feedback_, layout_.slabs[4], 2.0f);
  EXPECT_EQ(feedback_.Old(layout_.slabs[4])[0], 1.0f);
  Write(feedback_, layout_.slabs[4], 3.0f);  // the step is redone
  EXPECT_EQ(feedback_.Old(layout_.slabs[4])[0], 1.0f);
  feedback_.Commit();
  EXPECT_EQ(feedback_.Old(layout_.slabs[4])[0], 3.0f);
}

TEST_F(ErrorFeedbackTest, AWholeTensorIsOneRun) {
  float* next = feedback_.NextTensor(0);
  for (std::size_t i = 0; i < 10; ++i) next[i] = static_cast<float>(i);
  EXPECT_EQ(feedback_.Next(layout_.slabs[1]), next + 4) << "the same memory";
  EXPECT_EQ(feedback_.OldTensor(0)[9], 0.0f);
  feedback_.Commit();
  EXPECT_EQ(feedback_.OldTensor(0)[9], 9.0f);
  EXPECT_EQ(feedback_.OldTensor(1), nullptr);
  EXPECT_EQ(feedback_.NextTensor(1), nullptr);
}

// A tensor marked keep: no gradient anywhere, so nothing is sent and nothing flushed.
TEST_F(ErrorFeedbackTest, KeepTakesBackWhatTheStepWrote) {
  for (const std::uint32_t u : {0u, 1u, 2u, 4u}) Write(feedback_, layout_.slabs[u], 1.0f);
  feedback_.Commit();
  for (const std::uint32_t u : {0u, 2u, 4u}) Write(feedback_, layout_.slabs[u], 7.0f);
  feedback_.Keep(0);
  feedback_.Keep(1);
  feedback_.Commit();
  EXPECT_EQ(Of(feedback_, 0), std::vector<float>(10, 1.0f));
  EXPECT_EQ(Of(feedback_, 2), std::vector<float>(3, 7.0f));
  std::fill_n(feedback_.NextTensor(0), 10, 5.0f);
  feedback_.Keep(0);
  std::fill_n(feedback_.NextTensor(0), 10, 6.0f);
  feedback_.Commit();
  EXPECT_EQ(Of(feedback_, 0), std::vector<float>(10, 6.0f)) << "what was written after it counts";
}

TEST_F(ErrorFeedbackTest, AddedResidualsSurviveEitherVerdict) {
  const std::vector<float> more = {10, 20, 30};
  for (const bool commit : {true, false}) {
    ErrorFeedback feedback(layout_, {true, false, true});
    for (const std::uint32_t u : {0u, 1u, 2u, 4u}) Write(feedback, layout_.slabs[u], 1.0f);
    feedback.Commit();
    Write(feedback, layout_.slabs[1], 2.0f);  // of an open step, elements 4 to 7
    feedback.Add(0, 3, more);
    if (commit) {
      feedback.Commit();
      EXPECT_EQ(Of(feedback, 0), (std::vector<float>{1, 1, 1, 11, 22, 32, 2, 2, 1, 1}));
    } else {
      feedback.Drop();
      EXPECT_EQ(Of(feedback, 0), (std::vector<float>{1, 1, 1, 11, 21, 31, 1, 1, 1, 1}));
    }
  }
}

TEST_F(ErrorFeedbackTest, AFactorIsPartOfTheStep) {
  const auto& slabs = layout_.slabs;
  for (const Slab& slab : slabs) {
    if (feedback_.Has(slab.tensor)) Write(feedback_, slab, 8);
  }
  feedback_.Commit();
  const Slab& first = slabs[layout_.first_slab[0]];
  for (const bool commit : {false, true}) {
    feedback_.Scale(0.5F);
    EXPECT_EQ(feedback_.Old(first)[0], 4);
    EXPECT_EQ(feedback_.OldTensor(2)[0], 4);
    EXPECT_EQ(feedback_.Residual(2)[0], 8) << "what is committed stays until the verdict";
    Write(feedback_, first, 3);
    if (commit) {
      feedback_.Commit();
    } else {
      feedback_.Drop();
      EXPECT_EQ(feedback_.Old(first)[0], 8);
    }
  }
  // Rewritten, beside it in the same tensor, and in one that the step did not touch.
  const std::span<const float> of_first = feedback_.Residual(0);
  EXPECT_EQ(of_first.front(), 3);
  if (of_first.size() > first.elements) {
    EXPECT_EQ(of_first[first.elements], 4);
  }
  for (const float e : feedback_.Residual(2)) EXPECT_EQ(e, 4);
  EXPECT_EQ(feedback_.Old(first)[0], 3) << "the factor was for that step only";
}

}  // namespace
}  // namespace tally
