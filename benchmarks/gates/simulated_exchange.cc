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
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::uint8_t> ids, ChooseCodecs(tensors, compression, workers));
  std::vector<std::vector<std::uint32_t>> buckets(1);
  for (std::uint32_t t = 0; t < tensors.size(); ++t) buckets[0].push_back(t);
  TALLY_ASSIGN_OR_RETURN(WireLayout wire, MakeWireLayout(tensors, buckets, ids, compression, workers));
  std::vector<std::unique_ptr<Codec>> codecs;
  for (std::uint32_t t = 0; t < wire.layout.tensors.size(); ++t) {
    const bool linear = std::ranges::any_of(wire.linear, [&](const LinearPart& part) { return part.tensor == t; });
    const std::uint8_t id = linear || wire.is_vector(t) ? kCodecNone : ids[t];
    TALLY_ASSIGN_OR_RETURN(auto codec, MakeCodec(id, compression));
    codecs.push_back(std::move(codec));
  }
  return std::unique_ptr<SimulatedExchange>(
      new SimulatedExchange(std::move(wire), workers, compression, std::move(codecs)));
}

SimulatedExchange::SimulatedExchange(WireLayout wire, std::uint32_t workers, const Config::Compression& compression,
                                     std::vector<std::unique_ptr<Codec>> codecs)
    : wire_(std::move(wire)),
      workers_(workers),
      stochastic_(StochasticRounding(compression)),
      seed_(compression.seed),
      codecs_(std::move(codecs)) {
  std::vector<bool> with_feedback, with_velocity;
  std::vector<const Codec*> tensor_codec;
  for (const auto& codec : codecs_) {
    with_feedback.push_back(compression.error_feedback && codec->traits().lossy);
    with_velocity.push_back(codec->traits().momentum);
    tensor_codec.push_back(codec.get());
  }
  for (const LinearPart& part : wire_.linear) {
    with_feedback[part.tensor] = compression.error_feedback;
    Linear& linear = linear_.emplace_back();
    linear.part = part;
    for (std::uint32_t w = 0; w < workers; ++w) {
      const TensorSpec& spec = wire_.dense.tensors[part.tensor];
      linear.of_worker.push_back(part.codec->Make({.seed = seed_,
                                                   .tensor = part.tensor,
                                                   .spec = spec,
                                                   .slab_elements = CutTensor(spec.elements.value, workers).elements}));
    }
  }
  feedback_.assign(workers, ErrorFeedback(wire_.dense, with_feedback));
  velocity_.assign(workers, ErrorFeedback(wire_.dense, with_velocity));
  for (std::uint32_t u = 0; u < wire_.layout.slabs.size(); ++u) {
    if (!wire_.is_vector(wire_.layout.slabs[u].tensor)) owned_.push_back(u);
  }
  OwnerOptions options;
  options.job_hash = kJob;
  options.epoch = kEpoch;
  options.group = kGroup;
  options.workers = workers;
  options.error_feedback = compression.error_feedback;
  options.seed = seed_;
  options.stochastic = stochastic_;
  owner_ = std::make_unique<Owner>(options, wire_.layout, owned_, tensor_codec, &pool_);
  for (std::uint32_t t = 0; t < wire_.declared_tensors; ++t) {
    inputs_.emplace_back(wire_.dense.tensors[t].elements.value);
    outputs_.emplace_back(wire_.dense.tensors[t].elements.value);
  }
}

Status SimulatedExchange::NotFinite(std::uint32_t worker) const {
  return InvalidArgument("worker " + std::to_string(worker) + ", step " + std::to_string(step_) +
                         ": a gradient that is not finite");
}

Status SimulatedExchange::Push(std::uint32_t worker) {
  if (worker == 0) push_bytes_ = reply_bytes_ = 0;
  for (std::uint32_t tensor = 0; tensor < wire_.declared_tensors; ++tensor) {
    if (wire_.layout.first_slab[tensor] == wire_.layout.first_slab[tensor + 1]) continue;
    TALLY_RETURN_IF_ERROR(PushTensor(worker, tensor));
  }
  for (Linear& linear : linear_) TALLY_RETURN_IF_ERROR(PushLinear(worker, &linear));
  return Status::Ok();
}

Status SimulatedExchange::PushTensor(std::uint32_t worker, std::uint32_t tensor) {
  const Codec& codec = *codecs_[tensor];
  Frame frame;
  frame.header.job_hash = kJob;
  frame.header.epoch = kEpoch;
  frame.header.group = kGroup;
  frame.header.step = StepId(step_);
  frame.header.position = worker;
  frame.header.codec = codec.id();
  if (step_ > 0) frame.header.flags = kFlagPreviousCommitted;
  std::size_t bytes = 0;
  for (std::uint32_t u = wire_.layout.first_slab[tensor]; u < wire_.layout.first_slab[tensor + 1]; ++u) {
    frame.header.slabs.push_back(u);
    bytes += codec.EncodedBytes(wire_.layout.slabs[u].elements);
  }
  frame.hold = pool_.Get(bytes);
  frame.payload = frame.hold.bytes();
  if (worker == 0) push_bytes_ += bytes;

  const float* gradient = inputs_[tensor].data();
  const float weight = codec.ClipFactor(gradient, inputs_[tensor].size(), 1.0, workers_);
  ErrorFeedback &feedback = feedback_[worker], &velocity = velocity_[worker];
  std::byte* out = frame.payload.data();
  for (const std::uint32_t u : frame.header.slabs) {
    const Slab& slab = wire_.layout.slabs[u];
    EncodeKey key;
    key.seed = seed_;
    key.tensor = tensor;
    key.step = step_;
    key.position = worker;
    key.offset = slab.offset;
    key.stochastic = stochastic_;
    const float* g = gradient + slab.offset;
    const float* e = feedback.Old(slab);
    float* e_out = feedback.Next(slab);
    const bool finite = velocity.Has(tensor)
                            ? codec.EncodeWithMomentum(key, g, weight, velocity.Old(slab), velocity.Next(slab), e,
                                                       e_out, slab.elements, out)
                            : codec.EncodeWithFeedback(key, g, weight, e, e_out, slab.elements, out);
    if (!finite) return NotFinite(worker);
    out += codec.EncodedBytes(slab.elements);
  }
  return owner_->OnPush(frame, &replies_);
}

Status SimulatedExchange::PushLinear(std::uint32_t worker, Linear* linear) {
  const std::uint32_t tensor = linear->part.tensor;
  if (starting()) {
    AddTo(&linear->first, inputs_[tensor], worker);
    return Status::Ok();
  }
  ErrorFeedback& feedback = feedback_[worker];
  linear->vector.resize(wire_.layout.tensors[linear->part.first].elements.value);
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
  if (delivered_slabs_ != owned_.size()) return Internal(owner_->Missing(4));
  replies_.Clear();
  for (Linear& linear : linear_) DeliverLinear(&linear);
  for (ErrorFeedback& feedback : feedback_) feedback.Commit();
  for (ErrorFeedback& velocity : velocity_) velocity.Commit();
  owner_->OnVerdict(StepId(step_), true);
  ++step_;
  return Status::Ok();
}

Status SimulatedExchange::Deliver(const ReplyFrame& reply) {
  if ((reply.header.flags & kFlagNonFinite) != 0) return InvalidArgument("a sum that is not finite");
  std::span<const std::byte> rest = reply.payload;
  reply_bytes_ += rest.size();
  for (const std::uint32_t u : reply.header.slabs) {
    const Slab& slab = wire_.layout.slabs[u];
    const Codec& codec = *codecs_[slab.tensor];
    const auto payload = rest.first(codec.EncodedBytes(slab.elements));
    rest = rest.subspan(payload.size());
    float* out = outputs_[slab.tensor].data() + slab.offset;
    TALLY_RETURN_IF_ERROR(codec.Validate(payload, slab.elements));
    codec.Decode(payload, slab.elements, out);
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
  if (starting()) {
    outputs_[part.tensor] = first;
  } else {
    if (part.two_phases()) {
      linear->vector.resize(wire_.layout.tensors[part.second].elements.value);
      for (std::uint32_t w = 0; w < workers_; ++w) {
        linear->of_worker[w]->EncodeSecond(first.data(), feedback_[w].NextTensor(part.tensor), linear->vector.data());
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
  }
  push_bytes_ += elements * sizeof(float);
  reply_bytes_ += elements * sizeof(float);
}

}  // namespace tally::gates
