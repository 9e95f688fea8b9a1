// The law of conservation over the linear codecs of the table: inputs = delivered sums + residuals of workers, element by
// element, over random schedules of commits, skips, values that are not finite, kept tensors, saving and reading back, and
// workers that come and go. There is no owner's residual: what travels are sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/error_feedback.h"
#include "compress/linear.h"
#include "compress/residual_transfer.h"
#include "compress/saved_state.h"

namespace tally {
namespace {

constexpr std::uint64_t kSteps = 30;

class Job {
 public:
  Job(std::uint8_t codec, std::uint32_t seed) : random_(seed) {
    Config::Compression options;
    options.ratio = 0.05;
    options.powersgd_rank = 2;
    codec_ = MakeLinearCodec(codec, options).value();
    for (const auto& [rows, columns] : {std::pair(61, 40), std::pair(90, 17)}) {
      TensorSpec spec{"m" + std::to_string(rows), ElementCount(static_cast<std::uint64_t>(rows * columns))};
      spec.shape = {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
      open_.emplace_back(spec.elements.value);
      specs_.push_back(std::move(spec));
    }
    Begin(4);
  }

  void Step() {
    const bool bad = Chance(6), skip = bad || Chance(5);
    std::vector<std::vector<double>> input;
    bool finite = true;
    for (std::uint32_t t = 0; t < specs_.size(); ++t) input.push_back(StepOf(t, bad, &finite));
    const bool commit = !skip && finite;
    for (std::uint32_t t = 0; t < specs_.size() && commit; ++t) {
      for (std::size_t i = 0; i < open_[t].size(); ++i) open_[t][i] += input[t][i];
    }
    for (const auto& worker : workers_) {
      commit ? worker->feedback.Commit() : worker->feedback.Drop();
      for (std::size_t t = 0; t < specs_.size(); ++t) {
        commit && delivered_[t] ? worker->tensors[t]->Commit() : worker->tensors[t]->Drop();
      }
    }
    ++step_;
    committed_ += commit;
  }

  // Inputs less what was delivered less all residuals, and the sum of the residuals.
  double Missing() {
    double missing = 0;
    kept_ = 0;
    for (std::uint32_t t = 0; t < specs_.size(); ++t) {
      for (std::size_t i = 0; i < open_[t].size(); ++i) {
        double rest = open_[t][i];
        for (const auto& worker : workers_) {
          const auto e = static_cast<double>(worker->feedback.Residual(t)[i]);
          rest -= e;
          kept_ += std::abs(e);
        }
        missing += std::abs(rest);
      }
    }
    return missing;
  }

  // Between steps: as many workers as before read back what they saved; of another number the leavers hand over.
  void Change() {
    const auto before = static_cast<std::uint32_t>(workers_.size());
    const std::uint32_t after = Chance(2) ? before : 1U << (random_() % 3);
    const std::vector<std::unique_ptr<Worker>> old = std::move(workers_);
    const Layout old_layout = layout_;
    Begin(after);
    for (const auto& worker : workers_) {
      for (std::size_t t = 0; t < specs_.size(); ++t) {
        std::ranges::copy(old[0]->tensors[t]->carried(), worker->tensors[t]->carried().begin());
      }
    }
    for (std::uint32_t p = 0; p < before; ++p) {
      SavedState state;
      state.residuals = SaveResiduals(old[p]->feedback, old_layout, {EpochId(1), before, Rank(p)});
      state = DecodeState(EncodeState(state)).value();
      const Status status =
          after == before
              ? RestoreResiduals(state.residuals, layout_, {EpochId(2), before, Rank(p)}, &workers_[p]->feedback)
              : HandOverResiduals(state.residuals, layout_, &workers_[p % after]->feedback);
      ASSERT_TRUE(status.ok()) << status.text();
    }
  }

  bool Chance(std::uint32_t one_in) { return random_() % one_in == 0; }
  double kept() const { return kept_; }
  std::uint64_t committed() const { return committed_; }

 private:
  struct Worker {
    ErrorFeedback feedback;
    std::vector<std::unique_ptr<LinearTensor>> tensors;
  };

  void Begin(std::uint32_t workers) {
    layout_ = MakeLayout(specs_, std::vector<std::vector<std::uint32_t>>{{0, 1}}, workers).value();
    workers_.clear();
    for (std::uint32_t p = 0; p < workers; ++p) {
      auto worker = std::make_unique<Worker>(
          Worker{ErrorFeedback(layout_, std::vector<bool>(specs_.size(), true)), {}});
      for (std::uint32_t t = 0; t < specs_.size(); ++t) {
        worker->tensors.push_back(codec_->Make({.seed = 7, .tensor = t, .spec = specs_[t], .slab_elements = Cut(t)}));
      }
      workers_.push_back(std::move(worker));
    }
  }
  std::uint64_t Cut(std::uint32_t t) const { return layout_.slabs[layout_.first_slab[t]].elements; }

  // One tensor's exchange, both phases; delivers unless something is not finite. Returns the sum of the inputs.
  std::vector<double> StepOf(std::uint32_t t, bool bad, bool* finite) {
    std::vector<double> input(open_[t].size());
    std::vector<bool> keeps;
    const std::vector<TensorSpec> vectors = codec_->Vectors(specs_[t], Cut(t));
    std::vector<float> sum(vectors.front().elements.value), vector(sum.size());
    const bool all_keep = Chance(8);
    for (const auto& worker : workers_) {
      keeps.push_back(all_keep || Chance(4));
      LinearTensor& tensor = *worker->tensors[t];
      if (keeps.back()) {
        tensor.Keep(step_);
        continue;
      }
      std::vector<float> g(input.size());
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] = static_cast<float>(static_cast<int>(random_() % 16'001) - 8000) / 64.0F;
        input[i] += static_cast<double>(g[i]);
      }
      if (bad && Chance(2)) g[random_() % g.size()] = std::numeric_limits<float>::quiet_NaN();
      *finite = tensor.Encode(step_, g.data(), 1, worker->feedback.OldTensor(t), worker->feedback.NextTensor(t),
                              vector.data()) && *finite;
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += vector[i];
    }
    if (!*finite) return input;
    const auto to_mean = [this](std::vector<float>* all) {
      for (float& x : *all) x /= static_cast<float>(workers_.size());
    };
    to_mean(&sum);
    delivered_[t] = std::ranges::find(keeps, false) != keeps.end();
    if (!delivered_[t]) return input;  // nobody sent anything
    if (vectors.size() > 1) {
      const std::vector<float> first = sum;
      sum.assign(vectors[1].elements.value, 0);
      vector.resize(sum.size());
      for (std::size_t p = 0; p < workers_.size(); ++p) {
        workers_[p]->tensors[t]->EncodeSecond(first.data(), keeps[p] ? nullptr : workers_[p]->feedback.NextTensor(t),
                                              vector.data());
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += vector[i];
      }
      to_mean(&sum);
    }
    std::vector<float> mean(input.size()), other(input.size());
    for (const auto& worker : workers_) {
      worker->tensors[t]->Decode(sum.data(), other.data());
      EXPECT_TRUE(worker == workers_.front() || other == mean) << "workers decode different means";
      mean = other;
    }
    for (std::size_t i = 0; i < input.size(); ++i) {
      input[i] -= static_cast<double>(mean[i]) * static_cast<double>(workers_.size());
    }
    return input;
  }

  std::mt19937 random_;
  std::unique_ptr<LinearCodec> codec_;
  std::vector<TensorSpec> specs_;
  Layout layout_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::vector<double>> open_;  // per tensor: inputs - delivered
  std::vector<bool> delivered_ = std::vector<bool>(2);     // per tensor, in this step
  std::uint64_t step_ = 0, committed_ = 0;
  double kept_ = 0;
};

struct Linear {
  std::string_view name;
  std::uint8_t id;
};
constexpr Linear kLinear[] = {
#define TALLY_CODEC(id, name, factory)
#define TALLY_LINEAR_CODEC(id, name, factory) {name, id},
#include "compress/codecs.inc"
#undef TALLY_LINEAR_CODEC
#undef TALLY_CODEC
};
void PrintTo(const Linear& codec, std::ostream* out) { *out << codec.name; }

class LinearConservation : public testing::TestWithParam<Linear> {};

// randomk moves numbers as they are, so everything is exact: multiples of 1/64, and 1, 2 or 4 workers. PowerSGD computes:
// of numbers below 2^13 each step rounds some ten times, to 2^-11 at worst.
TEST_P(LinearConservation, OverRandomSchedules) {
  double kept = 0;
  std::uint64_t committed = 0;
  for (std::uint32_t seed = 1; seed <= 6; ++seed) {
    Job job(GetParam().id, seed);
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      job.Step();
      if (job.Chance(4)) job.Change();
      if (HasFailure()) return;
      const double elements = 61 * 40 + 90 * 17;
      const double allowed = GetParam().name == "randomk" ? 0 : elements * static_cast<double>(step + 1) * 10 * 0x1p-11;
      ASSERT_LE(job.Missing(), allowed) << "seed " << seed << ", step " << step;
    }
    kept += job.kept();
    committed += job.committed();
  }
  EXPECT_GT(committed, 40U);
  EXPECT_GT(kept, 1e6) << "the codec lost nothing: the test proves nothing";
}

INSTANTIATE_TEST_SUITE_P(Codecs, LinearConservation, testing::ValuesIn(kLinear),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

}  // namespace
}  // namespace tally
