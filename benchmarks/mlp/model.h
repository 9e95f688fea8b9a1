// The training job's network: fully connected 196-320-320-320-320-10 with ReLU and softmax cross-entropy, in fp32, and
// SGD with momentum. One thread; the same input gives the same bits on the same machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "benchmarks/mlp/data.h"
#include "benchmarks/mlp/gemm.h"

namespace tally::mlp {

inline constexpr std::array<std::size_t, 6> kWidths = {kInputs, 320, 320, 320, 320, kClasses};
inline constexpr std::size_t kLayers = kWidths.size() - 1;
inline constexpr std::size_t kTensors = 2 * kLayers;  // tensor 2l: weight of layer l (out x in); 2l + 1: its bias

std::string TensorName(std::size_t tensor);  // "fc1.weight", "fc1.bias", …
std::size_t TensorSize(std::size_t tensor);
std::vector<std::uint64_t> TensorShape(std::size_t tensor);
std::size_t ParameterCount();

struct Score {
  double loss = 0;      // mean cross-entropy
  double accuracy = 0;  // in [0, 1]
};

class Mlp {
 public:
  // He-uniform weights from `seed`, biases zero.
  explicit Mlp(std::uint64_t seed);

  std::span<float> parameter(std::size_t tensor) { return parameters_[tensor]; }
  std::span<const float> parameter(std::size_t tensor) const { return parameters_[tensor]; }

  // One forward and backward pass over a batch. Writes d(mean loss)/d(tensor) into gradients[tensor], last layer first,
  // and calls `on_layer(l)` as soon as both gradients of layer l are written. Returns the mean loss.
  double Backward(const Batch& batch, const std::array<std::span<float>, kTensors>& gradients,
                  const std::function<void(std::size_t)>& on_layer);

  // Over every `stride`-th row of `data`.
  Score Evaluate(const Dataset& data, std::size_t stride = 1);

  // v = momentum * v + g; p -= lr * v for one tensor.
  void Update(std::size_t tensor, std::span<const float> gradient, float lr, float momentum);

  // SHA-256 over the parameters' bytes in tensor order, in hex.
  std::string Sha256() const;

 private:
  void Forward(std::span<const float> pixels, std::size_t rows);
  // Turns the last activations into probabilities; the mean loss against `labels`.
  double Softmax(std::span<const std::uint8_t> labels);

  const Gemm& gemm_;
  std::array<std::vector<float>, kTensors> parameters_;
  std::array<std::vector<float>, kTensors> momentum_;
  std::array<std::vector<float>, kLayers> activations_;  // of layer l, rows x kWidths[l + 1]
  std::array<std::vector<float>, 2> deltas_;
};

}  // namespace tally::mlp
