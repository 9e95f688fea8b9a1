#include "worker/cli/explain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>

#include "common/schedule/layout.h"
#include "compress/codec.h"
#include "compress/codec_state.h"
#include "compress/linear.h"
#include "compress/owner_sum.h"

namespace tally::cli {
namespace {

constexpr double kSparse = 0.1;  // share of non-zeros below which a mean magnitude per block says little (CODECS §1)

// One worker's encoding of all tensors, with or without a residual.
class Trial {
 public:
  static Result<std::unique_ptr<Trial>> Make(const RecordedGradients& gradients, const std::string& text,
                                             bool error_feedback) {
    TALLY_ASSIGN_OR_RETURN(const CodecSetting setting, ParseCodecSetting(text, error_feedback));
    const Config::Compression& options = setting.compression;
    TALLY_ASSIGN_OR_RETURN(const CodecTraits traits, TraitsOfCodec(options.codec, options));
    if (traits.momentum) {
      return InvalidArgument("codec " + text + " sends the largest of a velocity, not of gradients: look at topk");
    }
    std::vector<TensorSpec> tensors;
    std::vector<std::vector<std::uint32_t>> buckets(1);
    for (const RecordedTensor& tensor : gradients.tensors) {
      buckets[0].push_back(static_cast<std::uint32_t>(tensors.size()));
      tensors.push_back({tensor.name, ElementCount(tensor.elements()), DType::kFloat32, {tensor.rows, tensor.columns}});
    }
    TALLY_ASSIGN_OR_RETURN(Layout layout, MakeLayout(tensors, buckets, 1));
    std::unique_ptr<Trial> trial(new Trial(std::move(layout), options, error_feedback && traits.lossy, traits.integer_sum));
    const std::uint8_t id = CodecForTensor("", std::numeric_limits<std::uint64_t>::max(), options);
    TALLY_ASSIGN_OR_RETURN(trial->linear_codec_, MakeLinearCodec(id, options));
    if (trial->linear_codec_ != nullptr) trial->MakeLinear();
    TALLY_ASSIGN_OR_RETURN(trial->codec_, MakeCodec(trial->linear_codec_ != nullptr ? "none" : options.codec, options));
    trial->sum_ = trial->codec_->MakeOwnerSum(1);
    return trial;
  }

  std::uint64_t bytes() const {
    std::uint64_t bytes = 0;
    for (const Slab& slab : layout_.slabs) {
      if (linear_[slab.tensor].state == nullptr) bytes += codec_->EncodedBytes(slab.elements);
    }
    for (const Linear& linear : linear_) bytes += (linear.first.size() + linear.second.size()) * sizeof(float);
    return bytes;
  }

  // p and decoded hold all tensors, one after another.
  Status Step(const std::vector<float>& gradient, std::vector<float>* p, std::vector<float>* decoded) {
    *p = gradient;
    decoded->resize(gradient.size());
    std::size_t at = 0;
    for (std::uint32_t t = 0; t < linear_.size(); ++t) {
      const std::size_t n = layout_.tensors[t].elements.value;
      const float* old = state_.feedback.OldTensor(t);
      for (std::size_t i = 0; old != nullptr && i < n; ++i) (*p)[at + i] += old[i];
      const float* g = gradient.data() + at;
      float* out = decoded->data() + at;
      const bool finite = linear_[t].state != nullptr ? StepLinear(t, g, out) : StepSlabs(t, g, out);
      if (!finite) return InvalidArgument("step " + std::to_string(step_) + " grows beyond fp32");
      at += n;
    }
    state_.Commit();
    ++step_;
    return Status::Ok();
  }

 private:
  // Of a tensor that a linear codec encodes; else without state.
  struct Linear {
    std::unique_ptr<LinearTensor> state;
    std::vector<float> first, second;  // what travels, second empty if there is one phase
  };

  Trial(Layout layout, const Config::Compression& options, bool error_feedback, bool shared_scales)
      : layout_(std::move(layout)),
        seed_(options.seed),
        stochastic_(StochasticRounding(options)),
        state_{.feedback = {layout_, std::vector<bool>(layout_.tensors.size(), error_feedback)},
               .velocity = {layout_, std::vector<bool>(layout_.tensors.size(), false)},
               .scales = {layout_, std::vector<bool>(layout_.tensors.size(), shared_scales)}},
        linear_(layout_.tensors.size()) {}

  void MakeLinear() {
    for (std::uint32_t t = 0; t < linear_.size(); ++t) {
      const TensorSpec& spec = layout_.tensors[t];
      const std::uint64_t slab_elements = CutTensor(spec.elements.value, 1).elements;
      const std::vector<TensorSpec> vectors = linear_codec_->Vectors(spec, slab_elements);
      if (vectors.empty()) continue;  // does not fit the shape: travels as it is
      linear_[t].first.resize(vectors[0].elements.value);
      if (vectors.size() > 1) linear_[t].second.resize(vectors[1].elements.value);
      linear_[t].state =
          linear_codec_->Make({.seed = seed_, .tensor = t, .spec = spec, .slab_elements = slab_elements});
    }
  }

  bool StepLinear(std::uint32_t t, const float* g, float* out) {
    auto& [state, first, second] = linear_[t];
    float* e_out = state_.feedback.NextTensor(t);
    if (!state->Encode(step_, g, 1.0f, state_.feedback.OldTensor(t), e_out, first.data())) return false;
    if (!second.empty()) state->EncodeSecond(first.data(), e_out, second.data());
    state->Decode(second.empty() ? first.data() : second.data(), out);
    state->Commit();
    return true;
  }

  bool StepSlabs(std::uint32_t t, const float* g, float* out) {
    std::vector<std::byte> payload;
    for (std::uint32_t u = layout_.first_slab[t]; u < layout_.first_slab[t + 1]; ++u) {
      const Slab& slab = layout_.slabs[u];
      payload.resize(codec_->EncodedBytes(slab.elements));
      EncodeKey key;
      key.seed = seed_;
      key.tensor = t;
      key.step = step_;
      key.offset = slab.offset;
      key.stochastic = stochastic_;
      if (!state_.Encode(*codec_, key, slab, u, g + slab.offset, 1.0f, payload.data())) return false;
      if (sum_ == nullptr) {
        codec_->Decode(payload, slab.elements, out + slab.offset);
      } else if (!StepThroughOwner(slab, u, payload, out + slab.offset)) {
        return false;
      }
    }
    return true;
  }

  // Where only the owner's answer tells what a push stands for.
  bool StepThroughOwner(const Slab& slab, std::uint32_t u, std::span<const std::byte> push, float* out) {
    const std::uint8_t version = state_.Version(*codec_);
    std::vector<std::byte> sum(sum_->SumBytes(version, slab.elements));
    sum_->Start(version, push, slab.elements, sum.data());
    std::vector<std::byte> reply(sum_->ReplyBytes(version, sum.data(), slab.elements));
    if (reply.empty()) return false;
    sum_->Reply(version, sum.data(), slab.elements, reply);
    return state_.Decode(*codec_, sum_.get(), reply, u, slab.elements, out);
  }

  const Layout layout_;
  const std::uint64_t seed_;
  const bool stochastic_;
  std::unique_ptr<Codec> codec_;
  std::unique_ptr<LinearCodec> linear_codec_;
  std::unique_ptr<OwnerSum> sum_;
  CodecState state_;
  std::vector<Linear> linear_;
  std::uint64_t step_ = 0;
};

double Norm(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

double Over(double a, double b) { return b > 0 ? a / b : 0; }

ExplainedStep Compare(const std::vector<float>& p, const std::vector<float>& decoded, double gradient_norm) {
  double lost = 0, product = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double a = static_cast<double>(p[i]), b = static_cast<double>(decoded[i]);
    lost += (a - b) * (a - b);
    product += a * b;
  }
  const double norm = Norm(p);
  ExplainedStep step;
  step.error = Over(std::sqrt(lost), norm);
  step.cosine = Over(product, norm * Norm(decoded));
  step.energy_sent = norm > 0 ? 1 - lost / (norm * norm) : 1;
  step.residual = Over(std::sqrt(lost), gradient_norm);
  return step;
}

// What has not arrived of a run of gradients.
class Sums {
 public:
  explicit Sums(std::size_t elements) : wanted_(elements), missing_(elements) {}

  void Add(const std::vector<float>& gradient, const std::vector<float>& decoded) {
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      wanted_[i] += static_cast<double>(gradient[i]);
      missing_[i] += static_cast<double>(gradient[i]) - static_cast<double>(decoded[i]);
    }
  }
  double Lost() const {
    double wanted = 0, missing = 0;
    for (std::size_t i = 0; i < wanted_.size(); ++i) {
      wanted += wanted_[i] * wanted_[i];
      missing += missing_[i] * missing_[i];
    }
    return Over(std::sqrt(missing), std::sqrt(wanted));
  }

 private:
  std::vector<double> wanted_, missing_;
};

double MeanNorm(const RecordedGradients& gradients, std::size_t steps) {
  double sum = 0;
  for (std::size_t s = 0; s < steps; ++s) sum += Norm(gradients.steps[s]);
  return sum / static_cast<double>(steps);
}

std::vector<std::string> Warnings(const RecordedGradients& gradients, const std::string& codec) {
  std::vector<std::string> warnings;
  const double share = NonZeroShare(gradients);
  if (codec.substr(0, codec.find(':')) == "onebit" && share < kSparse) {
    warnings.push_back("onebit: only " + std::to_string(std::lround(share * 100)) +
                       " % of the elements are not zero, and every zero becomes plus the mean magnitude: exclude "
                       "such tensors (compression.exclude)");
  }
  return warnings;
}

}  // namespace

double NonZeroShare(const RecordedGradients& gradients) {
  double non_zero = 0, all = 0;
  for (const std::vector<float>& step : gradients.steps) {
    non_zero += static_cast<double>(std::ranges::count_if(step, [](float value) { return value != 0; }));
    all += static_cast<double>(step.size());
  }
  return Over(non_zero, all);
}

Result<Explanation> Explain(const RecordedGradients& gradients, std::size_t steps, const std::string& codec) {
  TALLY_ASSIGN_OR_RETURN(const auto with, Trial::Make(gradients, codec, true));
  TALLY_ASSIGN_OR_RETURN(const auto without, Trial::Make(gradients, codec, false));
  Explanation result;
  result.codec = codec;
  result.bytes = with->bytes();
  result.ratio = Over(4.0 * static_cast<double>(gradients.elements()), static_cast<double>(result.bytes));
  result.warnings = Warnings(gradients, codec);
  const double gradient_norm = MeanNorm(gradients, steps);
  Sums sums(gradients.elements()), sums_without(gradients.elements());
  std::vector<float> p, decoded;
  for (std::size_t s = 0; s < steps; ++s) {
    const std::vector<float>& gradient = gradients.steps[s];
    TALLY_RETURN_IF_ERROR(without->Step(gradient, &p, &decoded));
    sums_without.Add(gradient, decoded);
    TALLY_RETURN_IF_ERROR(with->Step(gradient, &p, &decoded));
    sums.Add(gradient, decoded);
    result.steps.push_back(Compare(p, decoded, gradient_norm));
    if (s > 0) continue;
    result.decoded = decoded;
    result.residual = p;
    for (std::size_t i = 0; i < p.size(); ++i) result.residual[i] -= decoded[i];
  }
  const auto count = static_cast<double>(steps);
  for (const ExplainedStep& step : result.steps) {
    result.error += step.error / count;
    result.cosine += step.cosine / count;
    result.energy_sent += step.energy_sent / count;
  }
  result.lost = sums.Lost();
  result.lost_without = sums_without.Lost();
  return result;
}

}  // namespace tally::cli
