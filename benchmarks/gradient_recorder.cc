#include "benchmarks/gradient_recorder.h"

#include <algorithm>

namespace tally::mlp {

Result<GradientRecorder> GradientRecorder::Make(const RecordOptions& options, std::uint64_t trained) {
  if (options.steps == 0 || options.from >= trained || options.steps > trained - options.from) {
    return InvalidArgument("--record-gradients: steps " + std::to_string(options.from) + " to " +
                           std::to_string(options.from + options.steps) + " are not among the " +
                           std::to_string(trained) + " that are trained");
  }
  GradientRecorder recorder;
  recorder.options_ = options;
  for (std::size_t t = 0; t < kTensors; ++t) {
    if (!options.tensor.empty() && TensorName(t) != options.tensor) continue;
    const std::size_t rows = kWidths[t / 2 + 1], columns = TensorSize(t) / rows;
    const std::size_t kept = options.rows > 0 ? std::min<std::size_t>(options.rows, rows) : rows;
    recorder.tensors_.push_back(t);
    recorder.recorded_.tensors.push_back(
        {TensorName(t), static_cast<std::uint32_t>(kept), static_cast<std::uint32_t>(columns)});
  }
  if (recorder.tensors_.empty()) return InvalidArgument("--record-tensor " + options.tensor + ": no such tensor");
  return recorder;
}

void GradientRecorder::Take(std::uint64_t step, const std::array<std::span<float>, kTensors>& gradients) {
  if (step < options_.from || step - options_.from >= options_.steps) return;
  std::vector<float>& values = recorded_.steps.emplace_back();
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const auto kept = gradients[tensors_[i]].first(recorded_.tensors[i].elements());
    values.insert(values.end(), kept.begin(), kept.end());
  }
}

std::vector<std::byte> GradientRecorder::Bytes() const {
  return cli::EncodeGradients(recorded_, options_.half ? DType::kFloat16 : DType::kFloat32);
}

}  // namespace tally::mlp
