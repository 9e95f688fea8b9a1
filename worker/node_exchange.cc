#include "worker/node_exchange.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/check.h"

namespace tally {
namespace {

constexpr std::uint32_t kNotHere = std::numeric_limits<std::uint32_t>::max();
// From this size of a bucket on its results are written past the cache: they do not fit in it anyway.
constexpr std::uint64_t kStreamBytes = std::uint64_t{8} << 20;

std::string Number(std::uint64_t n) { return std::to_string(n); }

}  // namespace

NodeExchange::NodeExchange(const ExchangeOptions& options, std::shared_ptr<const GroupTables> tables,
                           std::uint32_t first_bucket, std::uint32_t end_bucket, const NodePlaces* places,
                           BufferPool* pool, ExchangeEnvironment* environment)
    : options_(options),
      tables_(std::move(tables)),
      places_(places),
      pool_(pool),
      environment_(environment),
      first_bucket_(first_bucket),
      end_bucket_(end_bucket),
      zeros_(kMaxSlabElements, 0.0F) {
  const Nodes& nodes = *places->nodes;
  const auto local = nodes.positions(nodes.node_of(options.self));
  local_.assign(local.begin(), local.end());
  self_ = nodes.local_rank(options.self);
  const Layout& layout = tables_->layout;
  carried_of_slab_.assign(layout.slabs.size(), kNotHere);
  bucket_slabs_.resize(layout.buckets.size(), std::vector<std::vector<std::uint32_t>>(local_.size()));
  bucket_carried_.resize(layout.buckets.size());
  streams_.resize(layout.buckets.size());
  for (std::uint32_t b = first_bucket; b < end_bucket; ++b) {
    std::uint64_t bytes = 0;
    for (const std::uint32_t u : layout.bucket_slabs[b]) {
      bytes += SlabOf(u).elements * sizeof(float);
      const std::uint32_t carrier = CarrierOf(u);
      bucket_slabs_[b][carrier].push_back(u);
      if (carrier != self_) continue;
      carried_of_slab_[u] = static_cast<std::uint32_t>(carried_.size());
      bucket_carried_[b].push_back(carried_of_slab_[u]);
      carried_.push_back({u, 0, 0});
    }
    streams_[b] = bytes >= kStreamBytes;
  }
  parts_.resize(carried_.size() * local_.size());
  done_.resize(layout.slabs.size());
  started_.resize(layout.buckets.size());
  open_.resize(layout.buckets.size());
  weights_.resize(local_.size());
  terms_.resize(local_.size());
}

std::uint64_t NodeExchange::Offset(std::uint32_t u) const {
  const Slab& slab = SlabOf(u);
  return places_->tensor_offset[slab.tensor] + slab.offset * sizeof(float);
}

std::uint32_t NodeExchange::CarrierOf(std::uint32_t u) const {
  const Nodes& nodes = *places_->nodes;
  return nodes.local_rank(nodes.carrier(u, nodes.node_of(options_.self)));
}

// The node's other positions stand in the share, without this one.
const NodeShare::Peer& NodeExchange::PeerOf(std::uint32_t local) const {
  return places_->share->peers()[local < self_ ? local : local - 1];
}

void NodeExchange::BeginStep(StepId step, std::uint16_t verdict_flags, double declared_weight,
                             const CollectiveShape& collective) {
  header_ = options_.header;
  header_.role = Role::kWorker;
  header_.position = options_.self.value;
  header_.step = step_ = step;
  header_.collective = collective_ = collective;
  header_.weight = declared_weight;
  verdict_flags_ = verdict_flags;
  std::ranges::fill(weights_, std::nullopt);
  weights_[self_] = declared_weight;
  for (Carried& carried : carried_) carried.arrived = carried.kept = 0;
  for (Part& part : parts_) part = {};
  std::fill(started_.begin(), started_.end(), false);
  for (std::uint32_t b = first_bucket_; b < end_bucket_; ++b) {
    open_[b] = static_cast<std::uint32_t>(bucket_carried_[b].size());
  }
  next_sum_ = first_bucket_;
  between_begun_ = false;
  std::fill(done_.begin(), done_.end(), false);
  early_.Clear();
  early_bytes_ = 0;
  ready_.clear();
}

Status NodeExchange::StartBucket(std::uint32_t bucket) {
  for (std::uint32_t local = 0; local < size(); ++local) {
    if (local != self_) TALLY_RETURN_IF_ERROR(PushTo(local, bucket));
  }
  started_[bucket] = true;
  for (const std::uint32_t c : bucket_carried_[bucket]) TakeOwn(carried_[c].slab);
  return Advance();
}

void NodeExchange::PrepareFrame(FrameKind kind, std::uint32_t bucket) {
  header_.kind = kind;
  header_.bucket = BucketId(bucket);
  header_.codec = kCodecNone;
  header_.factor = 1;
}

Status NodeExchange::SendTo(std::uint32_t local, std::span<const std::byte> payload, BufferRef hold,
                            std::uint16_t flags) {
  header_.slabs = run_;
  header_.flags = flags;
  return environment_->Send({Role::kWorker, local_[local].value}, run_.front(), header_, payload, std::move(hold));
}

// What needs no payload goes in one frame for all that is alike. There is no credit inside a node: a carrier can answer
// only when every local rank has pushed, so that any limit could make each wait for another's. What a carrier holds is
// bounded by the step.
Status NodeExchange::PushTo(std::uint32_t local, std::uint32_t bucket) {
  PrepareFrame(FrameKind::kNodePush, bucket);
  header_.weight = *weights_[self_];
  const bool in_place = PeerOf(local).maps_inputs;
  std::uint16_t flags = 0;
  run_.clear();
  const auto flush = [&] {
    const Status status = run_.empty() ? Status::Ok() : SendTo(local, {}, {}, flags);
    run_.clear();
    return status;
  };
  std::vector<std::uint32_t> dense;  // those whose numbers travel
  for (const std::uint32_t u : bucket_slabs_[bucket][local]) {
    const bool kept = environment_->Kept(u), zeros = kept || environment_->Absent(u);
    if (!zeros && !in_place) {
      dense.push_back(u);
      continue;
    }
    const auto wanted = static_cast<std::uint16_t>(kept ? kFlagKeep : zeros ? kFlagZeros : kFlagInPlace);
    const float factor = zeros ? 1.0F : environment_->Factor(u);
    if (wanted != flags || factor != header_.factor || run_.size() == kMaxFrameSlabs) TALLY_RETURN_IF_ERROR(flush());
    flags = wanted;
    header_.factor = factor;
    if (!zeros) {
      // A caller's own memory is copied to where the others can read it.
      auto* place = reinterpret_cast<float*>(places_->inputs + Offset(u));
      const float* input = environment_->Input(u);
      if (input != place) Copy(place, input, SlabOf(u).elements, streams_[bucket]);
    }
    run_.push_back(u);
  }
  TALLY_RETURN_IF_ERROR(flush());
  return PushNumbers(local, dense);
}

Status NodeExchange::PushNumbers(std::uint32_t local, std::span<const std::uint32_t> slabs) {
  header_.factor = 1;
  while (!slabs.empty()) {
    run_.clear();
    std::uint64_t bytes = 0;
    do {
      run_.push_back(slabs.front());
      bytes += SlabOf(slabs.front()).elements * sizeof(float);
      slabs = slabs.subspan(1);
    } while (!slabs.empty() && bytes + SlabOf(slabs.front()).elements * sizeof(float) <= options_.limits.frame_bytes);
    const std::uint32_t first = run_.front();
    if (run_.size() == 1 && environment_->Factor(first) == 1.0F) {
      const auto own = AsBytes(environment_->Input(first), SlabOf(first).elements);
      TALLY_RETURN_IF_ERROR(SendTo(local, own, pool_->WrapConst(own, {}), 0));
      continue;
    }
    BufferRef buffer = pool_->Get(bytes);
    std::size_t offset = 0;
    for (const std::uint32_t u : run_) {
      const std::size_t n = SlabOf(u).elements;
      Scale(reinterpret_cast<float*>(buffer.data() + offset), environment_->Input(u), environment_->Factor(u), n);
      offset += n * sizeof(float);
    }
    const auto payload = buffer.bytes();
    TALLY_RETURN_IF_ERROR(SendTo(local, payload, std::move(buffer), 0));
  }
  return Status::Ok();
}

Status NodeExchange::Continue() {
  if (between_begun_) TALLY_RETURN_IF_ERROR(between_->Continue());
  return SendReplies();
}

void NodeExchange::TakeOwn(std::uint32_t u) {
  Part part;
  part.kept = environment_->Kept(u);
  const bool zeros = part.kept || environment_->Absent(u);
  part.term = zeros ? Term{zeros_.data(), 1} : Term{environment_->Input(u), environment_->Factor(u)};
  Take(carried_of_slab_[u], self_, std::move(part));
}

void NodeExchange::Take(std::uint32_t carried, std::uint32_t local, Part part) {
  Carried& slab = carried_[carried];
  slab.kept += part.kept ? 1 : 0;
  part.arrived = true;
  PartOf(carried, local) = std::move(part);
  if (++slab.arrived == size()) Sum(carried);
}

double NodeExchange::TotalWeight() const {
  double total = 0;
  for (const auto& weight : weights_) total += *weight;
  return total;
}

// All parts are here: nobody of the node reads the step before any more, so its result buffer may be written.
void NodeExchange::Sum(std::uint32_t carried) {
  const std::uint32_t u = carried_[carried].slab;
  const Slab& slab = SlabOf(u);
  for (std::uint32_t local = 0; local < size(); ++local) terms_[local] = PartOf(carried, local).term;
  const auto weight = static_cast<float>(TotalWeight());
  if (between_ != nullptr) {
    (void)SumTerms(Place(u), terms_, 1, slab.elements, false);
  } else if (weight == 0) {
    std::fill_n(Place(u), slab.elements, 0.0F);
    ready_.push_back({u, Delivered::kNothing});
  } else if (std::isfinite(weight) && SumTerms(Place(u), terms_, weight, slab.elements, streams_[slab.bucket])) {
    ready_.push_back({u, Delivered::kMean});
  } else {
    std::fill_n(Place(u), slab.elements, std::numeric_limits<float>::quiet_NaN());
    ready_.push_back({u, Delivered::kNonFinite});
  }
  for (std::uint32_t local = 0; local < size(); ++local) PartOf(carried, local).hold.Reset();
  --open_[slab.bucket];
}

Status NodeExchange::Advance() {
  if (between_ != nullptr) TALLY_RETURN_IF_ERROR(StartBetween());
  return SendReplies();
}

// In the order of the buckets. The node's weight is known with its first summed slab.
Status NodeExchange::StartBetween() {
  const auto summed = [this](std::uint32_t b) {
    // Nobody starts a bucket that holds nothing.
    return tables_->layout.bucket_slabs[b].empty() || (started_[b] && open_[b] == 0);
  };
  for (; next_sum_ < end_bucket_ && summed(next_sum_); ++next_sum_) {
    if (bucket_carried_[next_sum_].empty()) continue;
    if (!std::exchange(between_begun_, true)) {
      between_->BeginStep(step_, verdict_flags_, TotalWeight(), collective_);
      for (Frame& frame : early_) {
        TALLY_RETURN_IF_ERROR(between_->OnFrame(frame));
        frame.hold.Reset();
      }
      early_.Clear();
    }
    TALLY_RETURN_IF_ERROR(between_->StartBucket(next_sum_));
  }
  return Status::Ok();
}

bool NodeExchange::Kept(std::uint32_t slab) { return carried_[carried_of_slab_[slab]].kept == size(); }

// A schedule leaves what it got where a frame is flagged; on all ranks the slab is to be the same.
void NodeExchange::SlabDone(std::uint32_t slab, Delivered delivered) {
  if (delivered == Delivered::kNonFinite) {
    std::fill_n(Place(slab), SlabOf(slab).elements, std::numeric_limits<float>::quiet_NaN());
  }
  ready_.push_back({slab, delivered});
}

Status NodeExchange::Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                          BufferRef hold) {
  if (to.role == Role::kWorker) to.index = places_->nodes->carrier(key, to.index).value;
  return environment_->Send(to, key, header, payload, std::move(hold));
}

// Finished slabs go to the node's other positions: as a note to whoever sees the result buffer, one for all that is alike.
Status NodeExchange::SendReplies() {
  if (ready_.empty()) return Status::Ok();
  std::ranges::stable_sort(ready_, {}, &Ready::slab);
  for (std::uint32_t local = 0; local < size(); ++local) {
    if (local == self_) continue;
    const bool in_place = places_->share->shares_result() && PeerOf(local).shares_result;
    for (std::size_t i = 0; i < ready_.size();) {
      const Delivered delivered = ready_[i].delivered;
      const std::uint32_t bucket = SlabOf(ready_[i].slab).bucket;
      const bool empty = in_place || delivered != Delivered::kMean;
      run_.clear();
      do {
        run_.push_back(ready_[i++].slab);
      } while (empty && i < ready_.size() && ready_[i].delivered == delivered &&
               SlabOf(ready_[i].slab).bucket == bucket && run_.size() < kMaxFrameSlabs);
      PrepareFrame(FrameKind::kNodeReply, bucket);
      const std::uint32_t u = run_.front();
      const auto bytes = empty ? std::span<const std::byte>() : AsBytes(Place(u), SlabOf(u).elements);
      const auto flags = static_cast<std::uint16_t>((delivered == Delivered::kNonFinite ? kFlagNonFinite
                                                     : delivered == Delivered::kNothing ? kFlagZeros
                                                                                        : 0) |
                                                    (in_place ? kFlagInPlace : 0));
      TALLY_RETURN_IF_ERROR(SendTo(local, bytes, empty ? BufferRef() : pool_->WrapConst(bytes, {}), flags));
    }
  }
  for (const Ready& slab : ready_) Deliver(slab.slab, slab.delivered);
  ready_.clear();
  return Status::Ok();
}

void NodeExchange::Deliver(std::uint32_t u, Delivered delivered) {
  done_[u] = true;
  float* out = environment_->Output(u);
  if (out != Place(u)) Copy(out, Place(u), SlabOf(u).elements, streams_[SlabOf(u).bucket]);
  environment_->SlabDone(u, delivered);
}

Status NodeExchange::OnFrame(Frame& frame) {
  if (frame.header.kind == FrameKind::kNodePush) {
    TALLY_RETURN_IF_ERROR(OnPush(frame));
    return Advance();
  }
  if (frame.header.kind == FrameKind::kNodeReply) {
    TALLY_RETURN_IF_ERROR(OnReply(frame));
    return Continue();
  }
  if (between_ == nullptr) return Corrupt("a frame between nodes, where there is one node only");
  if (between_begun_) {
    TALLY_RETURN_IF_ERROR(between_->OnFrame(frame));
    return Advance();
  }
  early_bytes_ += frame.payload.size() + frame.header.slabs.size() * sizeof(std::uint32_t);
  if (early_bytes_ > 2 * options_.limits.credit_bytes * options_.senders) {
    return Corrupt("early frames exceed the credit of all nodes: a peer ignores its credit");
  }
  std::swap(early_.Add(), frame);
  return Status::Ok();
}

Status NodeExchange::NoteWeight(std::uint32_t local, double weight) {
  std::optional<double>& known = weights_[local];
  if (!known.has_value()) known = weight;
  if (*known == weight) return Status::Ok();
  return Corrupt(Name(local_[local]) + " changed its weight within a step");
}

Status NodeExchange::OnPush(Frame& frame) {
  const FrameHeader& header = frame.header;
  const Nodes& nodes = *places_->nodes;
  const Position from(header.position);
  if (from.value >= options_.positions || nodes.node_of(from) != nodes.node_of(options_.self) || from == options_.self) {
    return Corrupt("push inside the node from " + Name(from) + ", which is not of it");
  }
  const std::uint32_t local = nodes.local_rank(from);
  const std::uint16_t how = header.flags & (kFlagKeep | kFlagZeros | kFlagInPlace);
  const bool zeros = how == kFlagKeep || how == kFlagZeros, in_place = how == kFlagInPlace;
  if (how != header.flags || (how != 0 && !zeros && !in_place)) {
    return Corrupt("push inside the node: flags " + Number(header.flags));
  }
  if (in_place && PeerOf(local).inputs.empty()) {
    return Corrupt("push inside the node of memory that is not mapped here, from " + Name(from));
  }
  TALLY_RETURN_IF_ERROR(NoteWeight(local, header.weight));
  std::size_t expected = 0;
  for (const std::uint32_t u : header.slabs) {
    if (u >= carried_of_slab_.size() || carried_of_slab_[u] == kNotHere) {
      return Corrupt("push inside the node of slab " + Number(u) + ", which another rank carries");
    }
    if (PartOf(carried_of_slab_[u], local).arrived) return Corrupt("second push inside the node of slab " + Number(u));
    if (how == 0) expected += SlabOf(u).elements * sizeof(float);
  }
  if (frame.payload.size() != expected) {
    return Corrupt("push inside the node with " + Number(frame.payload.size()) + " payload bytes, expected " +
                   Number(expected));
  }
  BufferRef hold = std::move(frame.hold);
  const std::byte* payload = frame.payload.data();
  if (reinterpret_cast<std::uintptr_t>(payload) % alignof(float) != 0 && expected > 0) {
    BufferRef aligned = pool_->Get(expected);
    std::memcpy(aligned.data(), payload, expected);
    payload = aligned.data();
    hold = std::move(aligned);
  }
  for (const std::uint32_t u : header.slabs) {
    Part part;
    part.kept = how == kFlagKeep;
    if (zeros) {
      part.term = {zeros_.data(), 1};
    } else if (in_place) {
      part.term = {reinterpret_cast<const float*>(PeerOf(local).inputs.bytes().data() + Offset(u)), header.factor};
    } else {
      part.term = {reinterpret_cast<const float*>(payload), 1};
      part.hold = hold;
      payload += SlabOf(u).elements * sizeof(float);
    }
    Take(carried_of_slab_[u], local, std::move(part));
  }
  return Status::Ok();
}

Status NodeExchange::OnReply(Frame& frame) {
  const FrameHeader& header = frame.header;
  const bool in_place = (header.flags & kFlagInPlace) != 0;
  const auto how = static_cast<std::uint16_t>(header.flags & ~kFlagInPlace);
  if (how != 0 && how != kFlagZeros && how != kFlagNonFinite) {
    return Corrupt("reply inside the node: flags " + Number(header.flags));
  }
  if (in_place && !places_->share->shares_result()) {
    return Corrupt("reply inside the node in memory that is not mapped here");
  }
  std::size_t expected = 0;
  for (const std::uint32_t u : header.slabs) {
    if (u >= done_.size() || SlabOf(u).bucket < first_bucket_ || SlabOf(u).bucket >= end_bucket_ ||
        local_[CarrierOf(u)].value != header.position || CarrierOf(u) == self_) {
      return Corrupt("reply inside the node for slab " + Number(u) + " from " + Name(Position(header.position)) +
                     ", which does not carry it");
    }
    if (done_[u] || !started_[SlabOf(u).bucket]) return Corrupt("reply inside the node for slab " + Number(u) + ", which is not awaited");
    if (how == 0 && !in_place) expected += SlabOf(u).elements * sizeof(float);
  }
  if (header.slabs.empty() || frame.payload.size() != expected) {
    return Corrupt("reply inside the node with " + Number(frame.payload.size()) + " payload bytes, expected " +
                   Number(expected));
  }
  const std::byte* payload = frame.payload.data();
  for (const std::uint32_t u : header.slabs) {
    const std::size_t n = SlabOf(u).elements;
    if (in_place) {
      // It is there.
    } else if (how == 0) {
      Copy(Place(u), payload, n);
      payload += n * sizeof(float);
    } else {
      std::fill_n(Place(u), n, how == kFlagZeros ? 0.0F : std::numeric_limits<float>::quiet_NaN());
    }
    Deliver(u, how == kFlagNonFinite ? Delivered::kNonFinite : how == kFlagZeros ? Delivered::kNothing : Delivered::kMean);
  }
  return Status::Ok();
}

std::string NodeExchange::Missing(std::size_t max_items) const {
  std::string text;
  std::size_t items = 0, count = 0;
  for (std::uint32_t b = first_bucket_; b < end_bucket_; ++b) {
    for (const std::uint32_t u : tables_->layout.bucket_slabs[b]) {
      if (done_[u]) continue;
      const std::uint32_t carried = carried_of_slab_[u];
      if (carried != kNotHere && carried_[carried].arrived == size()) continue;  // the exchange between says what lacks
      ++count;
      if (items == max_items) continue;
      ++items;
      text += (text.empty() ? "slab " : ", slab ") + Number(u) + " (" + tables_->layout.tensors[SlabOf(u).tensor].name + ")";
      if (carried == kNotHere) {
        text += " from " + Name(local_[CarrierOf(u)]) + " of the node";
        continue;
      }
      text += " misses";
      for (std::uint32_t local = 0; local < size(); ++local) {
        if (!parts_[carried * size() + local].arrived) text += " " + Name(local_[local]);
      }
    }
  }
  if (count != 0) return Number(count) + " slabs missing: " + text + (count > items ? ", …" : "");
  return between_begun_ ? between_->Missing(max_items) : std::string();
}

}  // namespace tally
