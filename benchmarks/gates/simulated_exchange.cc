#include "benchmarks/gates/simulated_exchange.h"

#include <algorithm>

#include "common/reduce/reduce.h"

namespace tally::gates {
namespace {

constexpr std::uint64_t kJob = 1;
constexpr EpochId kEpoch{1};
constexpr GroupId kGroup{1};

// sum += values, or = for the first worker.
void AddTo(std::vector<float>* sum, std::span<const float> values, std::uint32_t worker) {
  if (worker == 0) {
    sum->assign(values.begin(), values.end());
  } else {
    AddInto(sum->data(), values.data(), values.size());
  }
}

}  // namespace

Result<std::unique_ptr<SimulatedExchange>> SimulatedExchange::Make(std::span<const TensorSpec> tensors,
                                                                   std::uint32_t workers,
                                                                   const Config::Compression& compression) {
  // Refused here if unknown: CodecForTensor would let its tensors travel uncompressed.
  TALLY_RETURN_IF_ERROR(TraitsOfCodec(compression.codec, compression).status());
  if (compression.codec == kCodecAuto) return InvalidArgument("codec auto measures a cluster: name a codec");
  constexpr ExchangeKind kOwners = ExchangeKind::kOwners;
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> ids, ChooseCodecs(tensors, kOwners, compression, {}, workers));
  std::vector<std::vector<std::uint32_t>> buckets(1);
  for (std::uint32_t t = 0; t < tensors.size(); ++t) buckets[0].push_back(t);
  TALLY_ASSIGN_OR_RETURN(std::vector<WireLayout> wires,
                         MakeWireStages(tensors, buckets, ids, kOwners, compression, workers));
  std::unique_ptr<SimulatedExchange> exchange(new SimulatedExchange(workers, compression));
  for (WireLayout& wire : wires) TALLY_RETURN_IF_ERROR(exchange->AddStage(std::move(wire)));
  exchange->MakeResiduals();
  exchange->MakeOwner();
  return exchange;
}

SimulatedExchange::SimulatedExchange(std::uint32_t workers, const Config::Compression& compression)
    : workers_(workers),
      error_feedback_(compression.error_feedback),
      stochastic_(StochasticRounding(compression)),
      seed_(compression.seed) {}

Status SimulatedExchange::AddStage(WireLayout wire) {
  Stage& stage = stages_.emplace_back();
  stage.wire = std::move(wire);
  for (const std::uint8_t id : stage.wire.codec_ids) {
    TALLY_ASSIGN_OR_RETURN(auto codec, MakeCodec(id, stage.wire.options));
    stage.tensor_codec.push_back(codec.get());
    stage.codecs.push_back(std::move(codec));
  }
  stage.sums = std::make_unique<OwnerSums>(stage.tensor_codec, workers_);
  for (std::uint32_t u = 0; u < stage.wire.layout.slabs.size(); ++u) {
    if (!stage.wire.is_vector(stage.wire.layout.slabs[u].tensor)) stage.owned.push_back(u);
  }
  return Status::Ok();
}

void SimulatedExchange::MakeOwner() {
  const Stage& stage = stages_[stage_];
  const std::unique_ptr<Owner> former = std::move(owner_);
  OwnerOptions options;
  options.job_hash = kJob;
  options.epoch = kEpoch;
  options.group = kGroup;
  options.first_step = StepId(stage.wire.first_step);
  options.workers = workers_;
  options.error_feedback = error_feedback_;
  options.seed = seed_;
  options.stochastic = stochastic_;
  owner_ = std::make_unique<Owner>(options, stage.wire.layout, stage.owned, stage.tensor_codec, &pool_,
                                   stage.wire.renumbered ? nullptr : former.get());
}

void SimulatedExchange::MakeResiduals() {
  const WireLayout& wire = stages_.back().wire;
  std::vector<bool> with_feedback, with_velocity, with_scales;
  for (const auto& codec : stages_.back().codecs) {
    with_feedback.push_back(error_feedback_ && codec->traits().lossy);
    with_velocity.push_back(codec->traits().momentum);
    with_scales.push_back(codec->traits().integer_sum);
  }
  for (const LinearPart& part : wire.linear) {
    with_feedback[part.tensor] = error_feedback_;
    Linear& linear = linear_.emplace_back();
    linear.part = part;
    for (std::uint32_t w = 0; w < workers_; ++w) {
      const TensorSpec& spec = wire.dense.tensors[part.tensor];
      linear.of_worker.push_back(part.codec->Make({.seed = seed_,
                                                   .tensor = part.tensor,
                                                   .spec = spec,
                                                   .slab_elements = CutTensor(spec.elements.value, workers_).elements}));
    }
  }
  state_.assign(workers_, {.feedback = {wire.dense, with_feedback},
                           .velocity = {wire.dense, with_velocity},
                           .scales = {wire.dense, with_scales}});
  for (std::uint32_t t = 0; t < wire.declared_tensors; ++t) {
    inputs_.emplace_back(wire.dense.tensors[t].elements.value);
    outputs_.emplace_back(wire.dense.tensors[t].elements.value);
  }
}

Status SimulatedExchange::NotFinite(std::uint32_t worker) const {
  return InvalidArgument("worker " + std::to_string(worker) + ", step " + std::to_string(step_) +
                         ": a gradient that is not finite");
}

Status SimulatedExchange::Push(std::uint32_t worker) {
  if (worker == 0) push_bytes_ = reply_bytes_ = 0;
  const Layout& layout = stages_[stage_].wire.layout;
  for (std::uint32_t tensor = 0; tensor < inputs_.size(); ++tensor) {
    if (layout.first_slab[tensor] == layout.first_slab[tensor + 1]) continue;
    TALLY_RETURN_IF_ERROR(PushTensor(worker, tensor));
  }
  if (last_stage()) {
    for (Linear& linear : linear_) TALLY_RETURN_IF_ERROR(PushLinear(worker, &linear));
  }
  return Status::Ok();
}

Status SimulatedExchange::PushTensor(std::uint32_t worker, std::uint32_t tensor) {
  const Layout& layout = stages_[stage_].wire.layout;
  const Codec& codec = *stages_[stage_].codecs[tensor];
  Frame frame;
  frame.header.job_hash = kJob;
  frame.header.epoch = kEpoch;
  frame.header.group = kGroup;
  frame.header.step = StepId(step_);
  frame.header.position = worker;
  frame.header.codec = codec.id();
  frame.header.codec_version = state_[worker].Version(codec);
  if (step_ > 0) frame.header.flags = kFlagPreviousCommitted;
  std::size_t bytes = 0;
  for (std::uint32_t u = layout.first_slab[tensor]; u < layout.first_slab[tensor + 1]; ++u) {
    frame.header.slabs.push_back(u);
    bytes += codec.EncodedBytes(layout.slabs[u].elements);
  }
  frame.hold = pool_.Get(bytes);
  frame.payload = frame.hold.bytes();
  if (worker == 0) push_bytes_ += bytes;

  const float* gradient = inputs_[tensor].data();
  const float weight = codec.ClipFactor(gradient, inputs_[tensor].size(), 1.0, workers_);
  CodecState& state = state_[worker];
  std::byte* out = frame.payload.data();
  for (const std::uint32_t u : frame.header.slabs) {
    const Slab& slab = layout.slabs[u];
    EncodeKey key;
    key.seed = seed_;
    key.tensor = tensor;
    key.step = step_;
    key.position = worker;
    key.offset = slab.offset;
    key.stochastic = stochastic_;
    const bool finite = state.Encode(codec, key, slab, u, gradient + slab.offset, weight, out);
    if (!finite) return NotFinite(worker);
    out += codec.EncodedBytes(slab.elements);
  }
  return owner_->OnPush(frame, &replies_);
}

Status SimulatedExchange::PushLinear(std::uint32_t worker, Linear* linear) {
  const std::uint32_t tensor = linear->part.tensor;
  ErrorFeedback& feedback = state_[worker].feedback;
  linear->vector.resize(stages_[stage_].wire.layout.tensors[linear->part.first].elements.value);
  if (!linear->of_worker[worker]->Encode(step_, inputs_[tensor].data(), 1.0f, feedback.OldTensor(tensor),
                                         feedback.NextTensor(tensor), linear->vector.data())) {
    return NotFinite(worker);
  }
  AddTo(&linear->first, linear->vector, worker);
  return Status::Ok();
}

Status SimulatedExchange::EndStep() {
  delivered_slabs_ = 0;
  for (std::size_t i = 0; i < replies_.size(); ++i) TALLY_RETURN_IF_ERROR(Deliver(replies_[i]));
  Stage& stage = stages_[stage_];
  if (delivered_slabs_ != stage.owned.size()) return Internal(owner_->Missing(4));
  replies_.Clear();
  if (last_stage()) {
    for (Linear& linear : linear_) DeliverLinear(&linear);
  }
  for (CodecState& state : state_) state.Commit();
  owner_->OnVerdict(StepId(step_), true);
  ++step_;
  if (!last_stage() && step_ == stages_[stage_ + 1].wire.first_step) {
    ++stage_;
    MakeOwner();
  }
  return Status::Ok();
}

Status SimulatedExchange::Deliver(const ReplyFrame& reply) {
  if ((reply.header.flags & kFlagNonFinite) != 0) return InvalidArgument("a sum that is not finite");
  std::span<const std::byte> rest = reply.payload;
  reply_bytes_ += rest.size();
  for (const std::uint32_t u : reply.header.slabs) {
    const Slab& slab = stages_[stage_].wire.layout.slabs[u];
    const Codec& codec = *stages_[stage_].codecs[slab.tensor];
    const OwnerSum* sum = (*stages_[stage_].sums)[slab.tensor];
    float* out = outputs_[slab.tensor].data() + slab.offset;
    const std::uint8_t version = state_[0].Version(codec);
    TALLY_ASSIGN_OR_RETURN(const std::size_t bytes, CheckReply(codec, sum, version, rest, slab.elements));
    // Everybody's is the same; only what they carry on is each worker's own.
    for (CodecState& state : state_) {
      if (!state.Decode(codec, sum, rest.first(bytes), u, slab.elements, out)) {
        return InvalidArgument("a sum that is not finite");
      }
      if (!codec.traits().integer_sum) break;
    }
    rest = rest.subspan(bytes);
    if (codec.traits().divided_by == DividedBy::kReceiver) {
      Divide(out, out, static_cast<float>(reply.header.weight), slab.elements);
    }
    ++delivered_slabs_;
  }
  return Status::Ok();
}

void SimulatedExchange::DeliverLinear(Linear* linear) {
  const LinearPart& part = linear->part;
  const auto workers = static_cast<float>(workers_);
  std::vector<float>& first = linear->first;
  Divide(first.data(), first.data(), workers, first.size());
  std::uint64_t elements = first.size();
  if (part.two_phases()) {
    linear->vector.resize(stages_[stage_].wire.layout.tensors[part.second].elements.value);
    for (std::uint32_t w = 0; w < workers_; ++w) {
      linear->of_worker[w]->EncodeSecond(first.data(), state_[w].feedback.NextTensor(part.tensor), linear->vector.data());
      AddTo(&linear->second, linear->vector, w);
    }
    Divide(linear->second.data(), linear->second.data(), workers, linear->second.size());
    elements += linear->second.size();
  }
  const std::vector<float>& mean = part.two_phases() ? linear->second : first;
  for (const auto& tensor : linear->of_worker) {
    tensor->Decode(mean.data(), outputs_[part.tensor].data());
    tensor->Commit();
  }
  push_bytes_ += elements * sizeof(float);
  reply_bytes_ += elements * sizeof(float);
}

}  // namespace tally::gates
