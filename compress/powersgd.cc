// Codec powersgd (Vogels et al., NeurIPS 2019): a matrix M (first dimension by the rest) travels as P Q^T of rank r in
// two phases. P = M Q is summed and orthonormalised, Q = M^T P is summed; e' = M - P Q^T with the worker's own Q. Q of
// the last committed step is where the next begins. Tensors that this would not make `rate` times smaller travel as fp32.
#include <algorithm>
#include <vector>

#include "compress/feedback_blocks.h"
#include "compress/flush_denormals.h"
#include "compress/linear.h"
#include "compress/low_rank.h"
#include "compress/philox.h"

namespace tally {
namespace {

class PowerSgdTensor final : public LinearTensor {
 public:
  PowerSgdTensor(const LinearPlace& place, const LowRankShape& shape)
      : place_(place), shape_(shape), p_(shape.rows * shape.rank), q_(shape.columns * shape.rank), q_next_(q_.size()) {
    for (std::size_t j = 0; j < shape_.rank; ++j) DrawColumn(kStart, j, q_.data() + j * shape_.columns);
  }

  bool Encode(std::uint64_t step, const float* g, float w, const float* e, float* e_out, float* vector) override {
    step_ = step;
    kept_ = false;
    const FlushDenormals flush;
    if (e_out == nullptr) scratch_.resize(elements());
    float* m = e_out == nullptr ? scratch_.data() : e_out;
    if (!WeightedSum(g, w, e, elements(), m)) return false;
    RowProducts(shape_, m, q_.data(), vector);
    return true;
  }

  void Keep(std::uint64_t step) override {
    step_ = step;
    kept_ = true;
  }

  void EncodeSecond(const float* mean, float* e_out, float* vector) override {
    const FlushDenormals flush;
    std::copy_n(mean, p_.size(), p_.data());
    Orthonormalize(shape_.rows, shape_.rank, p_.data());
    if (kept_) {
      std::fill_n(vector, q_.size(), 0.0F);
      return;
    }
    float* m = e_out == nullptr ? scratch_.data() : e_out;
    ColumnProducts(shape_, m, p_.data(), vector);
    if (e_out != nullptr) SubtractReconstruction(shape_, p_.data(), vector, m);
    // Q does not count where P is zeros; it says that there was a worker which would have sent something.
    for (std::size_t j = 0; j < shape_.rank; ++j) {
      if (ZeroColumn(p_, j, shape_.rows)) std::fill_n(vector + j * shape_.columns, shape_.columns, 1.0F);
    }
  }

  void Decode(const float* mean, float* out) override {
    const FlushDenormals flush;
    Reconstruct(shape_, p_.data(), mean, out);
    std::copy_n(mean, q_next_.size(), q_next_.data());
    // A column without direction would stay so; one that no worker used is where it was.
    for (std::size_t j = 0; j < shape_.rank; ++j) {
      const bool no_p = ZeroColumn(p_, j, shape_.rows), no_q = ZeroColumn(q_next_, j, shape_.columns);
      float* column = q_next_.data() + j * shape_.columns;
      if (no_p && no_q) {
        std::copy_n(q_.data() + j * shape_.columns, shape_.columns, column);
      } else if (no_p || no_q) {
        DrawColumn(step_, j, column);
      }
    }
  }

  std::span<float> carried() override { return q_; }
  void Commit() override { q_.swap(q_next_); }

 private:
  static constexpr std::uint64_t kStart = (std::uint64_t{1} << 56) - 1;  // no step's number

  std::size_t elements() const { return shape_.rows * shape_.columns; }

  static bool ZeroColumn(const std::vector<float>& matrix, std::size_t j, std::size_t rows) {
    const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(j * rows);
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(rows), [](float x) { return x == 0; });
  }

  // Uniform in (-1, 1), the same on all workers.
  void DrawColumn(std::uint64_t step, std::size_t j, float* column) const {
    const EncodeKey key{
        .seed = place_.seed, .tensor = place_.tensor, .step = step, .position = static_cast<std::uint32_t>(j)};
    PhiloxBlock random{};
    for (std::size_t k = 0; k < shape_.columns; ++k) {
      if (k % 4 == 0) random = RoundingBits(key, k / 4);
      column[k] = (static_cast<float>(random[k % 4] >> 9) + 0.5F) * 0x1p-22F - 1.0F;
    }
  }

  const LinearPlace place_;
  const LowRankShape shape_;
  std::uint64_t step_ = 0;
  bool kept_ = false;                // in the open step
  std::vector<float> p_;             // orthonormal, of the open step
  std::vector<float> q_, q_next_;    // where a step begins, and where the next one would
  std::vector<float> scratch_;       // M, if there is no residual to build it in
};

class PowerSgdCodec final : public LinearCodec {
 public:
  PowerSgdCodec(std::uint32_t rank, double rate) : rank_(rank), rate_(rate) {}
  std::uint8_t id() const override { return 9; }
  std::string_view name() const override { return "powersgd"; }

  std::vector<TensorSpec> Vectors(const TensorSpec& tensor, std::uint64_t) const override {
    const LowRankShape shape = Shape(tensor);
    if (shape.rank == 0) return {};
    return {{tensor.name + "/P", ElementCount(shape.rows * shape.rank), DType::kFloat32},
            {tensor.name + "/Q", ElementCount(shape.columns * shape.rank), DType::kFloat32}};
  }

  std::unique_ptr<LinearTensor> Make(const LinearPlace& place) const override {
    return std::make_unique<PowerSgdTensor>(place, Shape(place.spec));
  }

 private:
  // Rank 0 if the tensor is no matrix or not worth it.
  LowRankShape Shape(const TensorSpec& tensor) const {
    if (tensor.shape.size() < 2 || tensor.elements.value == 0) return {};
    LowRankShape shape;
    shape.rows = tensor.shape.front();
    shape.columns = tensor.elements.value / shape.rows;
    shape.rank = std::min({static_cast<std::size_t>(rank_), shape.rows, shape.columns});
    const auto dense = static_cast<double>(tensor.elements.value);
    if (dense < rate_ * static_cast<double>(shape.rank * (shape.rows + shape.columns))) shape.rank = 0;
    return shape;
  }

  std::uint32_t rank_;
  double rate_;
};

}  // namespace

std::unique_ptr<LinearCodec> MakePowerSgdCodec(const Config::Compression& options) {
  return std::make_unique<PowerSgdCodec>(options.powersgd_rank, options.powersgd_rate);
}

}  // namespace tally
