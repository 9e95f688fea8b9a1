// What a group's codecs carry from step to step, taken out for a checkpoint and put back. Loop side, between steps: an
// owner here finishes no slab of the next step before this worker has sent its part.
#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "common/reduce/reduce.h"
#include "server/core/owner.h"
#include "worker/group_runtime.h"

namespace tally {
namespace {

SavedTensor Copied(const std::string& name, std::span<const float> values, std::uint8_t codec, std::uint64_t offset = 0) {
  return {name, {values.begin(), values.end()}, offset, codec};
}

std::string Arrangement(std::uint32_t nodes) {
  return nodes == 0 ? "without node stages" : "with node stages (arrangement " + std::to_string(nodes) + ")";
}

Status Misfit(const std::string& what, const std::string& expected, const std::string& got) {
  return Mismatch("saved state: " + what + ": expected " + expected + ", got " + got);
}

}  // namespace

SavedState GroupRuntime::Save(const ResidualOrigin& origin, const Owner* owner) const {
  const Layout& dense = tables_->dense;
  const std::vector<std::uint8_t>& codecs = tables_->message.codecs;
  SavedState saved;
  saved.step = step_;
  saved.learning_rate = last_rate_;
  saved.residuals = SaveResiduals(state_.feedback, dense, origin);
  saved.velocities = SaveResiduals(state_.velocity, dense, origin).tensors;
  Numbers numbers;
  for (std::uint32_t t = 0; t < dense.tensors.size(); ++t) numbers[dense.tensors[t].name] = t;
  for (SavedTensor& tensor : saved.residuals.tensors) tensor.codec = codecs[numbers.at(tensor.name)];
  for (SavedTensor& tensor : saved.velocities) tensor.codec = codecs[numbers.at(tensor.name)];
  for (const Linear& linear : linear_) {
    const std::uint32_t t = linear.part.tensor;
    const std::span<const float> carried = linear.tensor->carried();
    if (!carried.empty()) saved.carried.push_back(Copied(dense.tensors[t].name, carried, codecs[t]));
  }
  const Layout& wire = StageOf(step_)->tables->layout;  // as its owners number slabs
  for (std::uint32_t u = 0; owner != nullptr && u < wire.slabs.size(); ++u) {
    const Slab& slab = wire.slabs[u];
    const std::span<const float> residual = owner->Residual(SlabId(u));
    if (residual.empty()) continue;
    saved.owned.push_back(Copied(dense.tensors[slab.tensor].name, residual, codecs[slab.tensor], slab.offset));
  }
  for (std::uint32_t u = 0; state_.scales.known() && u < dense.slabs.size(); ++u) {
    const Slab& slab = dense.slabs[u];
    const std::span<const float> scales = state_.scales.Values(u);
    if (scales.empty()) continue;
    saved.scales.push_back(Copied(dense.tensors[slab.tensor].name, scales, codecs[slab.tensor], slab.offset));
  }
  return saved;
}

Status GroupRuntime::CheckCodecs(std::span<const SavedTensor> saved, const Numbers& numbers) const {
  for (const SavedTensor& tensor : saved) {
    const auto found = numbers.find(tensor.name);
    if (found == numbers.end()) return Mismatch("saved state of " + tensor.name + ": there is no such tensor here");
    if (const std::uint8_t codec = tables_->message.codecs[found->second]; tensor.codec != codec) {
      const bool picked = tables_->options.codec == kCodecAuto;
      return Misfit("codec of " + tensor.name, CodecName(codec),
                    CodecName(tensor.codec) + (picked ? "; auto picks anew: name the codec in order to resume" : ""));
    }
    if (!AllFinite(tensor.values.data(), tensor.values.size())) {
      return Corrupt("saved state of " + tensor.name + ": a value is not finite");
    }
  }
  return Status::Ok();
}

Status GroupRuntime::Restore(const SavedState& saved, const ResidualOrigin& origin, Owner* owner) {
  if (open_ || broken_) return InvalidArgument("saved state is read back between steps of a job that runs");
  const Layout& dense = tables_->dense;
  TALLY_RETURN_IF_ERROR(CheckOrigin(saved.residuals, dense, origin));
  const bool any = !saved.residuals.tensors.empty() || !saved.velocities.empty() || !saved.scales.empty();
  if (any && saved.residuals.origin.nodes != origin.nodes) {
    return Mismatch("saved state: of a job " + Arrangement(saved.residuals.origin.nodes) + ", this one is " +
                    Arrangement(origin.nodes) +
                    "; what codecs keep lies with the rank that carries it, so resume with the same ranks on each node");
  }
  if (saved.step != step_) {
    return Misfit("step (GroupOptions::first_step)", std::to_string(step_.value), std::to_string(saved.step.value));
  }
  if (!std::isfinite(saved.learning_rate) || saved.learning_rate < 0) {
    return Corrupt("saved state: learning rate: expected a finite number >= 0, got " +
                   std::to_string(saved.learning_rate));
  }
  Numbers numbers;
  for (std::uint32_t t = 0; t < dense.tensors.size(); ++t) numbers[dense.tensors[t].name] = t;
  for (const auto* section : {&saved.residuals.tensors, &saved.velocities, &saved.carried, &saved.owned, &saved.scales}) {
    TALLY_RETURN_IF_ERROR(CheckCodecs(*section, numbers));
  }
  TALLY_ASSIGN_OR_RETURN(const auto residuals, MatchAll(saved.residuals.tensors, dense, state_.feedback));
  TALLY_ASSIGN_OR_RETURN(const auto velocities, MatchAll(saved.velocities, dense, state_.velocity));
  TALLY_ASSIGN_OR_RETURN(const auto carried, MatchCarried(saved.carried));
  TALLY_ASSIGN_OR_RETURN(const auto owned, MatchOwned(saved.owned, numbers));
  TALLY_ASSIGN_OR_RETURN(const auto scales, MatchScales(saved.scales));

  for (std::size_t i = 0; i < residuals.size(); ++i) state_.feedback.Restore(residuals[i], saved.residuals.tensors[i].values);
  for (std::size_t i = 0; i < velocities.size(); ++i) state_.velocity.Restore(velocities[i], saved.velocities[i].values);
  for (std::size_t i = 0; i < carried.size(); ++i) std::ranges::copy(saved.carried[i].values, carried[i].begin());
  const std::size_t wire_slabs = StageOf(step_)->tables->layout.slabs.size();
  for (std::uint32_t u = 0; owner != nullptr && u < wire_slabs; ++u) {
    const std::size_t elements = owner->Residual(SlabId(u)).size();
    if (elements != 0) owner->RestoreResidual(SlabId(u), std::vector<float>(elements));
  }
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const SavedTensor& tensor = saved.owned[i];
    if (owner != nullptr && !owner->Residual(SlabId(owned[i])).empty()) {
      owner->RestoreResidual(SlabId(owned[i]), tensor.values);
    } else {
      state_.feedback.Add(numbers.at(tensor.name), tensor.offset, tensor.values);
    }
  }
  state_.scales.Forget();
  for (std::size_t i = 0; i < scales.size(); ++i) state_.scales.Restore(scales[i], saved.scales[i].values);
  last_rate_ = saved.learning_rate;
  shared_state_ = StateDigest(std::as_bytes(std::span(&saved.residuals.origin.epoch, 1)), 1);
  return Status::Ok();
}

// Where the values of each saved tensor go.
Result<std::vector<std::span<float>>> GroupRuntime::MatchCarried(std::span<const SavedTensor> saved) const {
  std::vector<std::span<float>> places;
  for (const Linear& linear : linear_) {
    const std::span<float> carried = linear.tensor->carried();
    if (carried.empty()) continue;
    const std::string& name = tables_->dense.tensors[linear.part.tensor].name;
    if (places.size() == saved.size()) return Mismatch("saved state: what is carried of " + name + " is missing");
    const SavedTensor& tensor = saved[places.size()];
    if (tensor.name != name) return Misfit("what is carried", "that of " + name, "that of " + tensor.name);
    if (tensor.values.size() != carried.size()) {
      return Misfit("numbers carried of " + name, std::to_string(carried.size()), std::to_string(tensor.values.size()));
    }
    places.push_back(carried);
  }
  if (places.size() == saved.size()) return places;
  return Misfit("tensors of which something is carried", std::to_string(places.size()), std::to_string(saved.size()));
}

// The slab of each saved part. Another member may own it now: then its residual goes to this worker's own.
Result<std::vector<std::uint32_t>> GroupRuntime::MatchOwned(std::span<const SavedTensor> saved,
                                                           const Numbers& numbers) const {
  const Layout& wire = StageOf(step_)->tables->layout;
  std::vector<std::uint32_t> slabs;
  std::vector<bool> seen(wire.slabs.size());
  for (const SavedTensor& tensor : saved) {
    const std::uint32_t t = numbers.at(tensor.name);
    std::uint32_t u = wire.first_slab[t];
    const std::uint32_t end = wire.first_slab[t + 1];
    while (u < end && wire.slabs[u].offset != tensor.offset) ++u;
    const std::string where = tensor.name + " from element " + std::to_string(tensor.offset) + " on";
    if (u == end || !state_.feedback.Has(t)) return Mismatch("saved state: no slab here is kept of " + where);
    if (tensor.values.size() != wire.slabs[u].elements) {
      return Misfit("elements of " + where, std::to_string(wire.slabs[u].elements),
                    std::to_string(tensor.values.size()));
    }
    if (seen[u]) return Corrupt("saved state: " + where + " stands twice");
    seen[u] = true;
    slabs.push_back(u);
  }
  return slabs;
}

// The slab of each saved part: all that have scales, in order, or none if no step had committed.
Result<std::vector<std::uint32_t>> GroupRuntime::MatchScales(std::span<const SavedTensor> saved) const {
  std::vector<std::uint32_t> slabs;
  const Layout& dense = tables_->dense;
  for (std::uint32_t u = 0; !saved.empty() && u < dense.slabs.size(); ++u) {
    const std::size_t blocks = state_.scales.Values(u).size();
    if (blocks == 0) continue;
    const std::string where =
        dense.tensors[dense.slabs[u].tensor].name + " from element " + std::to_string(dense.slabs[u].offset) + " on";
    if (slabs.size() == saved.size()) return Mismatch("saved state: the scales of " + where + " are missing");
    const SavedTensor& tensor = saved[slabs.size()];
    if (tensor.name != dense.tensors[dense.slabs[u].tensor].name || tensor.offset != dense.slabs[u].offset) {
      return Misfit("scales", "those of " + where, "those of " + tensor.name + " from " + std::to_string(tensor.offset));
    }
    if (tensor.values.size() != blocks) {
      return Misfit("scales of " + where, std::to_string(blocks), std::to_string(tensor.values.size()));
    }
    if (!std::ranges::all_of(tensor.values, &SharedScales::IsScale)) {
      return Corrupt("saved state: a scale of " + where + " is none");
    }
    slabs.push_back(u);
  }
  if (slabs.size() == saved.size()) return slabs;
  return Misfit("slabs with scales", std::to_string(slabs.size()), std::to_string(saved.size()));
}

std::uint64_t GroupRuntime::SharedState() const {
  std::uint64_t digest = shared_state_;
  for (const Linear& linear : linear_) {
    const std::span<const float> carried = linear.tensor->carried();
    if (!carried.empty()) digest = StateDigest(std::as_bytes(carried), digest);
  }
  // With node stages a position knows the scales of what it carries only.
  const bool knows_scales = state_.scales.known() && options_.nodes == nullptr;
  for (std::uint32_t u = 0; knows_scales && u < tables_->dense.slabs.size(); ++u) {
    const std::span<const float> scales = state_.scales.Values(u);
    if (!scales.empty()) digest = StateDigest(std::as_bytes(scales), digest);
  }
  return digest;
}

}  // namespace tally
