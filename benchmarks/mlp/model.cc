#include "benchmarks/mlp/model.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "benchmarks/mlp/random.h"

namespace tally::mlp {

std::string TensorName(std::size_t tensor) {
  return "fc" + std::to_string(tensor / 2 + 1) + (tensor % 2 == 0 ? ".weight" : ".bias");
}

std::size_t TensorSize(std::size_t tensor) {
  const std::size_t layer = tensor / 2;
  return tensor % 2 == 0 ? kWidths[layer] * kWidths[layer + 1] : kWidths[layer + 1];
}

std::vector<std::uint64_t> TensorShape(std::size_t tensor) {
  const std::size_t layer = tensor / 2;
  if (tensor % 2 != 0) return {kWidths[layer + 1]};
  return {kWidths[layer + 1], kWidths[layer]};
}

std::size_t ParameterCount() {
  std::size_t count = 0;
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor) count += TensorSize(tensor);
  return count;
}

Mlp::Mlp(std::uint64_t seed) : gemm_(MachineGemm()) {
  Random random(seed);
  for (std::size_t tensor = 0; tensor < kTensors; ++tensor) {
    parameters_[tensor].resize(TensorSize(tensor));
    momentum_[tensor].resize(TensorSize(tensor));
    if (tensor % 2 != 0) continue;
    const float limit = std::sqrt(6.0f / static_cast<float>(kWidths[tensor / 2]));
    for (float& value : parameters_[tensor]) value = (2 * random.Uniform() - 1) * limit;
  }
}

void Mlp::Forward(std::span<const float> pixels, std::size_t rows) {
  const float* input = pixels.data();
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    const std::size_t in = kWidths[layer], out = kWidths[layer + 1];
    auto& activation = activations_[layer];
    activation.resize(rows * out);
    gemm_.times_transposed(input, parameters_[2 * layer].data(), activation.data(), rows, out, in);
    const float* bias = parameters_[2 * layer + 1].data();
    const float floor = layer + 1 < kLayers ? 0.0f : -HUGE_VALF;  // no ReLU after the last layer
    for (std::size_t row = 0; row < rows; ++row) {
      float* a = activation.data() + row * out;
      for (std::size_t i = 0; i < out; ++i) a[i] = std::max(a[i] + bias[i], floor);
    }
    input = activation.data();
  }
}

double Mlp::Softmax(std::span<const std::uint8_t> labels) {
  double loss = 0;
  float* p = activations_[kLayers - 1].data();
  for (const std::uint8_t label : labels) {
    const float top = *std::max_element(p, p + kClasses);
    double sum = 0;
    for (std::size_t i = 0; i < kClasses; ++i) sum += std::exp(static_cast<double>(p[i] - top));
    loss += std::log(sum) - static_cast<double>(p[label] - top);
    for (std::size_t i = 0; i < kClasses; ++i) {
      p[i] = static_cast<float>(std::exp(static_cast<double>(p[i] - top)) / sum);
    }
    p += kClasses;
  }
  return loss / static_cast<double>(labels.size());
}

double Mlp::Backward(const Batch& batch, const std::array<std::span<float>, kTensors>& gradients,
                     const std::function<void(std::size_t)>& on_layer) {
  const std::size_t rows = batch.labels.size();
  Forward(batch.pixels, rows);
  const double loss = Softmax(batch.labels);

  // delta = d(mean loss)/d(output of the layer before its ReLU), rows x out.
  auto& last = activations_[kLayers - 1];
  const float share = 1.0f / static_cast<float>(rows);
  deltas_[0].resize(rows * kClasses);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < kClasses; ++i) {
      const std::size_t at = row * kClasses + i;
      deltas_[0][at] = (last[at] - (batch.labels[row] == i ? 1.0f : 0.0f)) * share;
    }
  }
  std::size_t current = 0;
  for (std::size_t layer = kLayers; layer-- > 0;) {
    const std::size_t in = kWidths[layer], out = kWidths[layer + 1];
    const float* input = layer == 0 ? batch.pixels.data() : activations_[layer - 1].data();
    const float* delta = deltas_[current].data();
    gemm_.transposed_times(delta, input, gradients[2 * layer].data(), out, in, rows);
    const std::span<float> bias = gradients[2 * layer + 1];
    std::fill(bias.begin(), bias.end(), 0.0f);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = 0; i < out; ++i) bias[i] += delta[row * out + i];
    }
    on_layer(layer);
    if (layer == 0) break;
    auto& below = deltas_[1 - current];
    below.resize(rows * in);
    gemm_.times(delta, parameters_[2 * layer].data(), below.data(), rows, in, out);
    for (std::size_t i = 0; i < rows * in; ++i) below[i] = input[i] > 0 ? below[i] : 0.0f;
    current = 1 - current;
  }
  return loss;
}

Score Mlp::Evaluate(const Dataset& data, std::size_t stride) {
  constexpr std::size_t kRows = 250;
  Score score;
  std::size_t correct = 0, seen = 0;
  Batch batch;
  for (std::size_t next = 0; next < data.size();) {
    batch.pixels.clear();
    batch.labels.clear();
    for (; next < data.size() && batch.labels.size() < kRows; next += stride) {
      const auto row = data.row(next);
      batch.pixels.insert(batch.pixels.end(), row.begin(), row.end());
      batch.labels.push_back(data.labels[next]);
    }
    Forward(batch.pixels, batch.labels.size());
    const float* p = activations_[kLayers - 1].data();
    for (const std::uint8_t label : batch.labels) {
      correct += std::max_element(p, p + kClasses) - p == label;
      p += kClasses;
    }
    score.loss += Softmax(batch.labels) * static_cast<double>(batch.labels.size());
    seen += batch.labels.size();
  }
  if (seen == 0) return score;
  score.loss /= static_cast<double>(seen);
  score.accuracy = static_cast<double>(correct) / static_cast<double>(seen);
  return score;
}

void Mlp::Update(std::size_t tensor, std::span<const float> gradient, float lr, float momentum) {
  float* p = parameters_[tensor].data();
  float* v = momentum_[tensor].data();
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    v[i] = momentum * v[i] + gradient[i];
    p[i] -= lr * v[i];
  }
}

std::string Mlp::Sha256() const {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
  std::array<unsigned char, 32> digest{};
  unsigned size = 0;
  bool ok = context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1;
  for (const auto& values : parameters_) {
    ok = ok && EVP_DigestUpdate(context.get(), values.data(), values.size() * sizeof(float)) == 1;
  }
  ok = ok && EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1;
  TALLY_CHECK(ok && size == digest.size(), "SHA-256 of the weights");
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

}  // namespace tally::mlp
