#include "compress/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/check.h"
#include "common/reduce/reduce.h"

namespace tally {
namespace {

constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();

}  // namespace

ErrorFeedback::ErrorFeedback(const Layout& layout, const std::vector<bool>& tensors_with_feedback)
    : written_(layout.slabs.size(), false) {
  TALLY_CHECK(tensors_with_feedback.size() == layout.tensors.size(), "one flag per tensor");
  std::uint64_t start = 0;
  tensors_.resize(layout.tensors.size());
  for (std::size_t t = 0; t < tensors_.size(); ++t) {
    TensorState& tensor = tensors_[t];
    tensor.start = kNone;
    const std::uint32_t first = layout.first_slab[t];
    const std::uint32_t end = layout.first_slab[t + 1];
    if (!tensors_with_feedback[t] || first == end) continue;
    tensor.start = start;
    tensor.elements = layout.tensors[t].elements.value;
    tensor.slab_elements = layout.slabs[first].elements;
    tensor.first_slab = first;
    tensor.slab_count = end - first;
    start += tensor.elements;
  }
  for (auto& buffer : buffers_) buffer.assign(start, 0.0f);
  touched_.reserve(tensors_.size());
}

bool ErrorFeedback::Has(std::uint32_t tensor) const { return tensors_[tensor].start != kNone; }

void ErrorFeedback::Scale(float factor) {
  TALLY_CHECK(touched_.empty(), "no step is open");
  factor_ = factor;
}

const float* ErrorFeedback::Old(const Slab& slab) const {
  const TensorState& tensor = tensors_[slab.tensor];
  if (tensor.start == kNone) return nullptr;
  return Scaled(buffers_[tensor.old].data() + tensor.start + slab.offset, slab.elements);
}

const float* ErrorFeedback::Scaled(const float* e, std::uint64_t count) const {
  if (factor_ == 1) return e;
  scaled_.resize(std::max<std::size_t>(scaled_.size(), count));
  tally::Scale(scaled_.data(), e, factor_, count);
  return scaled_.data();
}

float* ErrorFeedback::Next(const Slab& slab) {
  TensorState& tensor = tensors_[slab.tensor];
  if (tensor.start == kNone) return nullptr;
  const std::size_t number = tensor.first_slab + slab.offset / tensor.slab_elements;
  if (!written_[number]) {
    if (tensor.slabs_written++ == 0) touched_.push_back(slab.tensor);
    written_[number] = true;
  }
  return buffers_[1 - tensor.old].data() + tensor.start + slab.offset;
}

const float* ErrorFeedback::OldTensor(std::uint32_t tensor) const {
  return Has(tensor) ? Scaled(Residual(tensor).data(), tensors_[tensor].elements) : nullptr;
}

float* ErrorFeedback::NextTensor(std::uint32_t tensor) {
  if (!Has(tensor)) return nullptr;
  TensorState& state = tensors_[tensor];
  if (state.slabs_written == 0) touched_.push_back(tensor);
  state.slabs_written = state.slab_count;
  std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(state.first_slab), state.slab_count, true);
  return buffers_[1 - state.old].data() + state.start;
}

void ErrorFeedback::Keep(std::uint32_t tensor) {
  if (!Has(tensor) || tensors_[tensor].slabs_written == 0) return;
  ClearWritten(&tensors_[tensor]);
  std::erase(touched_, tensor);
}

void ErrorFeedback::Add(std::uint32_t tensor, std::uint64_t offset, std::span<const float> values) {
  TALLY_CHECK(Has(tensor), "residuals are added where there are some");
  const TensorState& state = tensors_[tensor];
  TALLY_CHECK(offset <= state.elements && values.size() <= state.elements - offset, "within the tensor");
  // A slab that the open step has not written has no next residual yet, and takes the old one's.
  for (auto& buffer : buffers_) AddInto(buffer.data() + state.start + offset, values.data(), values.size());
}

void ErrorFeedback::Restore(std::uint32_t tensor, std::span<const float> values) {
  TALLY_CHECK(touched_.empty(), "no step is open");
  const TensorState& state = tensors_[tensor];
  TALLY_CHECK(Has(tensor) && values.size() == state.elements, "the whole tensor");
  std::ranges::copy(values, buffers_[state.old].begin() + static_cast<std::ptrdiff_t>(state.start));
}

void ErrorFeedback::Commit() { EndStep(true); }
void ErrorFeedback::Drop() { EndStep(false); }

void ErrorFeedback::EndStep(bool commit) {
  if (commit && factor_ != 1) {
    for (TensorState& tensor : tensors_) {
      if (tensor.start == kNone || tensor.slabs_written == tensor.slab_count) continue;
      float* e = buffers_[tensor.old].data() + tensor.start;
      tally::Scale(e, e, factor_, tensor.elements);
    }
  }
  factor_ = 1;
  for (const std::uint32_t touched : touched_) {
    TensorState& tensor = tensors_[touched];
    if (commit) {
      if (tensor.slabs_written < tensor.slab_count) KeepUnwritten(tensor);
      tensor.old = 1 - tensor.old;
    }
    ClearWritten(&tensor);
  }
  touched_.clear();
}

void ErrorFeedback::ClearWritten(TensorState* tensor) {
  std::fill_n(written_.begin() + static_cast<std::ptrdiff_t>(tensor->first_slab), tensor->slab_count, false);
  tensor->slabs_written = 0;
}

void ErrorFeedback::KeepUnwritten(const TensorState& tensor) {
  for (std::uint32_t i = 0; i < tensor.slab_count; ++i) {
    if (written_[tensor.first_slab + i]) continue;
    const std::uint64_t offset = i * tensor.slab_elements;
    const std::uint64_t count = std::min(tensor.slab_elements, tensor.elements - offset);
    std::memcpy(buffers_[1 - tensor.old].data() + tensor.start + offset,
                buffers_[tensor.old].data() + tensor.start + offset, count * sizeof(float));
  }
}

double ErrorFeedback::L1() const {
  return Sum([](double e) { return std::abs(e); });
}

double ErrorFeedback::L2() const {
  return Sum([](double e) { return e * e; });
}

template <typename Term>
double ErrorFeedback::Sum(const Term& term) const {
  double sum = 0;
  for (std::uint32_t t = 0; t < tensors_.size(); ++t) {
    for (const float e : Residual(t)) sum += term(static_cast<double>(e));
  }
  return sum;
}

std::uint64_t ErrorFeedback::bytes() const { return (buffers_[0].size() + buffers_[1].size()) * sizeof(float); }

std::span<const float> ErrorFeedback::Residual(std::uint32_t tensor) const {
  const TensorState& state = tensors_[tensor];
  if (state.start == kNone) return {};
  return {buffers_[state.old].data() + state.start, state.elements};
}

}  // namespace tally
