#include "compress/residual_transfer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>

#include "common/reduce/reduce.h"

namespace tally {
namespace {

// FNV-1a, 64 bits.
class Digest {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<unsigned char>(byte)) * 0x100000001B3;
  }
  void Add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) value_ = (value_ ^ (number >> shift & 0xFF)) * 0x100000001B3;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325;
};

std::string Show(const ResidualOrigin& origin) {
  return "rank " + std::to_string(origin.rank.value) + " of " + std::to_string(origin.world) + " in epoch " +
         std::to_string(origin.epoch.value);
}

// The layout's number of each saved tensor. Errors as HandOverResiduals.
Result<std::vector<std::uint32_t>> Match(std::span<const SavedTensor> saved, const Layout& layout,
                                         const ErrorFeedback& feedback) {
  std::map<std::string_view, std::uint32_t> by_name;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) by_name[layout.tensors[t].name] = t;
  std::vector<std::uint32_t> numbers;
  std::vector<bool> seen(layout.tensors.size());
  for (const SavedTensor& tensor : saved) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end() || !feedback.Has(found->second)) {
      return Mismatch("saved residual of " + tensor.name + ": there is none of that name here");
    }
    if (seen[found->second]) {
      return Corrupt("saved residual of " + tensor.name + " stands twice");
    }
    const std::uint64_t elements = layout.tensors[found->second].elements.value;
    if (tensor.values.size() != elements) {
      return Mismatch("saved residual of " + tensor.name + ": expected " + std::to_string(elements) +
                      " elements, got " + std::to_string(tensor.values.size()));
    }
    if (!AllFinite(tensor.values.data(), tensor.values.size())) {
      return Corrupt("saved residual of " + tensor.name + ": a value is not finite");
    }
    seen[found->second] = true;
    numbers.push_back(found->second);
  }
  return numbers;
}

}  // namespace

double SavedResiduals::L1() const {
  double sum = 0;
  for (const Tensor& tensor : tensors) {
    for (const float e : tensor.values) sum += std::abs(static_cast<double>(e));
  }
  return sum;
}

std::uint64_t ResidualDigest(const Layout& layout) {
  std::uint64_t sum = 0;
  for (const TensorSpec& tensor : layout.tensors) {
    Digest digest;
    digest.Add(tensor.name);
    digest.Add(tensor.elements.value);
    digest.Add(static_cast<std::uint64_t>(tensor.dtype));
    for (const std::uint64_t dimension : tensor.shape) digest.Add(dimension);
    sum += digest.value();
  }
  return sum;
}

SavedResiduals SaveResiduals(const ErrorFeedback& feedback, const Layout& layout, const ResidualOrigin& origin) {
  SavedResiduals saved{.origin = origin, .layout_digest = ResidualDigest(layout), .tensors = {}};
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const std::span<const float> residual = feedback.Residual(t);
    if (feedback.Has(t)) saved.tensors.push_back({.name = layout.tensors[t].name,
                                                     .values = {residual.begin(), residual.end()}});
  }
  return saved;
}

Status CheckOrigin(const SavedResiduals& saved, const Layout& layout, const ResidualOrigin& origin) {
  if (saved.origin.rank != origin.rank || saved.origin.world != origin.world) {
    return Mismatch("saved residuals: expected those of " + Show(origin) + ", got those of " + Show(saved.origin));
  }
  if (const std::uint64_t digest = ResidualDigest(layout); saved.layout_digest != digest) {
    return Mismatch("saved residuals: expected layout " + std::to_string(digest) + ", got " +
                    std::to_string(saved.layout_digest));
  }
  return Status::Ok();
}

Result<std::vector<std::uint32_t>> MatchAll(std::span<const SavedTensor> saved, const Layout& layout,
                                            const ErrorFeedback& feedback) {
  TALLY_ASSIGN_OR_RETURN(std::vector<std::uint32_t> numbers, Match(saved, layout, feedback));
  std::vector<bool> found(layout.tensors.size());
  for (const std::uint32_t t : numbers) found[t] = true;
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    if (feedback.Has(t) && !found[t]) {
      return Mismatch("saved residuals: that of " + layout.tensors[t].name + " is missing");
    }
  }
  return numbers;
}

Status RestoreResiduals(const SavedResiduals& saved, const Layout& layout, const ResidualOrigin& origin,
                        ErrorFeedback* feedback) {
  TALLY_RETURN_IF_ERROR(CheckOrigin(saved, layout, origin));
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> numbers, MatchAll(saved.tensors, layout, *feedback));
  for (std::size_t i = 0; i < numbers.size(); ++i) feedback->Restore(numbers[i], saved.tensors[i].values);
  return Status::Ok();
}

Status HandOverResiduals(const SavedResiduals& saved, const Layout& layout, ErrorFeedback* feedback) {
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> numbers, Match(saved.tensors, layout, *feedback));
  for (std::size_t i = 0; i < numbers.size(); ++i) feedback->Add(numbers[i], 0, saved.tensors[i].values);
  return Status::Ok();
}

}  // namespace tally
