#include "server/core/group_plan.h"

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/schedule/layout.h"
#include "common/schedule/ownership.h"
#include "common/schedule/ways.h"
#include "compress/codec.h"
#include "compress/owner_sum.h"
#include "server/core/coordinator.h"
#include "server/core/group_tables.h"
#include "server/core/wire_layout.h"

namespace tally {
namespace {

constexpr std::size_t kMaxMisfits = 10;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxSharesShown = 16;
// 2 bytes of owner table per slab must leave room in one control message; 17e9 elements at full slabs.
constexpr std::uint64_t kMaxGroupSlabs = 262144;
constexpr std::uint64_t kMaxFirstStep = std::uint64_t{1} << 48;

using Places = std::map<std::string_view, std::uint32_t>;

std::string Show(const TensorSpec& tensor) {
  std::string shape;
  for (const std::uint64_t dimension : tensor.shape) shape += (shape.empty() ? "" : "x") + std::to_string(dimension);
  return (shape.empty() ? std::to_string(tensor.elements.value) : shape) + " " + DTypeName(tensor.dtype) + " elements";
}

std::string Show(const std::vector<std::string>& bucket) {
  std::string text;
  for (std::size_t i = 0; i < bucket.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + bucket[i];
  return "[" + text + (bucket.size() > 8 ? ", …]" : "]");
}

// Faults that are found, of which the first few are told.
class Misfits {
 public:
  void Add(std::string text) {
    if (++count_ <= kMaxMisfits) text_ += "\n  " + std::move(text);
  }
  bool none() const { return count_ == 0; }
  std::string text() const {
    return count_ <= kMaxMisfits ? text_ : text_ + "\n  and " + std::to_string(count_ - kMaxMisfits) + " more";
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

Result<Places> IndexNames(const DeclareMessage& declared, std::size_t rank) {
  const std::string who = "group " + declared.group + ", rank " + std::to_string(rank);
  Places places;
  for (std::uint32_t t = 0; t < declared.tensors.size(); ++t) {
    const std::string& name = declared.tensors[t].name;
    if (name.empty() || name.size() > kMaxNameBytes) {
      return InvalidArgument(who + ": tensor " + std::to_string(t) + " has a name of " + std::to_string(name.size()) +
                             " bytes; 1 to " + std::to_string(kMaxNameBytes) + " are valid");
    }
    if (!places.emplace(name, t).second) {
      return InvalidArgument(who + ": tensor " + name + " is declared twice; names are unique in a group");
    }
  }
  return places;
}

void CompareTensors(const DeclareMessage& first, const Places& first_places, const DeclareMessage& other,
                    const Places& other_places, std::size_t rank, Misfits* misfits) {
  const std::string who = "rank " + std::to_string(rank);
  for (const TensorSpec& tensor : first.tensors) {
    const auto found = other_places.find(tensor.name);
    if (found == other_places.end()) {
      misfits->Add("tensor " + tensor.name + ": rank 0 has " + Show(tensor) + ", " + who + " does not declare it");
    } else if (other.tensors[found->second] != tensor) {
      misfits->Add("tensor " + tensor.name + ": rank 0 has " + Show(tensor) + ", " + who + " has " +
                   Show(other.tensors[found->second]));
    }
  }
  for (const TensorSpec& tensor : other.tensors) {
    if (!first_places.contains(tensor.name)) {
      misfits->Add("tensor " + tensor.name + ": " + who + " has " + Show(tensor) + ", rank 0 does not declare it");
    }
  }
}

void CompareBuckets(const DeclareMessage& first, const DeclareMessage& other, std::size_t rank, Misfits* misfits) {
  const std::string who = "rank " + std::to_string(rank);
  if (first.buckets.size() != other.buckets.size()) {
    misfits->Add("rank 0 gives " + std::to_string(first.buckets.size()) + " buckets, " + who + " gives " +
                 std::to_string(other.buckets.size()));
    return;
  }
  for (std::size_t b = 0; b < first.buckets.size(); ++b) {
    if (first.buckets[b] != other.buckets[b]) {
      misfits->Add("bucket " + std::to_string(b) + ": rank 0 has " + Show(first.buckets[b]) + ", " + who + " has " +
                   Show(other.buckets[b]));
    }
  }
}

Result<std::vector<std::vector<std::uint32_t>>> Buckets(const DeclareMessage& declared, const Places& places,
                                                        std::uint64_t cap_bytes) {
  if (declared.buckets.empty()) return BucketsByCap(declared.tensors, cap_bytes);
  std::vector<std::vector<std::uint32_t>> buckets;
  for (const std::vector<std::string>& names : declared.buckets) {
    std::vector<std::uint32_t>& bucket = buckets.emplace_back();
    for (const std::string& name : names) {
      const auto found = places.find(name);
      if (found == places.end()) {
        return InvalidArgument("group " + declared.group + ": bucket " + std::to_string(buckets.size() - 1) +
                               " names tensor " + name + ", which is not declared");
      }
      bucket.push_back(found->second);
    }
  }
  return buckets;
}

// What a group's tensors travel as under one kind of exchange.
struct Travel {
  std::vector<std::uint8_t> codecs;
  std::vector<WireLayout> stages;
  std::vector<ExchangeBytes> bytes;  // per stage, of one worker's whole gradient
};

Result<ExchangeBytes> BytesOf(const WireLayout& stage, std::uint32_t workers) {
  struct Sizes {
    std::unique_ptr<Codec> codec;
    std::unique_ptr<OwnerSum> sum;
  };
  std::map<std::uint8_t, Sizes> sizes;
  ExchangeBytes bytes;
  for (const Slab& slab : stage.layout.slabs) {
    Sizes& of = sizes[stage.codec_ids[slab.tensor]];
    if (of.codec == nullptr) {
      TALLY_ASSIGN_OR_RETURN(of.codec, MakeCodec(stage.codec_ids[slab.tensor], stage.options));
      of.sum = of.codec->MakeOwnerSum(workers);
    }
    const std::size_t push = of.codec->EncodedBytes(slab.elements);
    bytes.up += static_cast<double>(push);
    bytes.down += static_cast<double>(of.sum == nullptr ? push : of.sum->UsualReplyBytes(slab.elements));
  }
  return bytes;
}

Result<Travel> PlanTravel(const LayoutMessage& message, ExchangeKind exchange, const Config& job,
                          const PlanBasis& basis, std::uint32_t workers) {
  Travel travel;
  travel.codecs.assign(message.tensors.size(), kCodecNone);
  if (!message.name.starts_with(kCollectivePrefix)) {
    TALLY_ASSIGN_OR_RETURN(travel.codecs,
                           ChooseCodecs(message.tensors, exchange, job.compression, basis.auto_codecs, workers));
  }
  TALLY_ASSIGN_OR_RETURN(travel.stages, MakeWireStages(message.tensors, message.buckets, travel.codecs, exchange,
                                                       job.compression, workers));
  for (const WireLayout& stage : travel.stages) {
    TALLY_ASSIGN_OR_RETURN(const ExchangeBytes bytes, BytesOf(stage, workers));
    travel.bytes.push_back(bytes);
  }
  return travel;
}

OwnerSet OwnersOf(const ModeExpansion& mode) {
  return !mode.worker_shares ? OwnerSet::kServers : mode.server_shares ? OwnerSet::kBoth : OwnerSet::kWorkers;
}

// Decides what the configuration leaves open: the way of mode auto, the schedule of aggregation.schedule = auto.
Status Choose(const LayoutMessage& message, const Config& job, const PlanBasis& basis, std::uint32_t workers,
              ModeExpansion* mode, std::string* reason) {
  if (!mode->open && mode->schedule != kScheduleAuto) return Status::Ok();
  if (mode->open && basis.nodes >= workers) mode->node_stages = false;  // nobody shares one
  const auto servers = static_cast<std::uint32_t>(job.servers.addresses.size());
  WayQuestion question = OnOneMachine(mode->node_stages ? basis.nodes : workers, servers);
  if (basis.placement.has_value()) {
    question.one_machine = false;
    question.placement = *basis.placement;
  }
  std::vector<Way> ways;
  if (!mode->schedule.empty()) {
    TALLY_ASSIGN_OR_RETURN(const Travel travel, PlanTravel(message, ExchangeKind::kSchedule, job, basis, workers));
    question.scheduled_bytes = travel.bytes.back().up;
    for (const ScheduleEntry& schedule : Schedules()) {
      if (mode->schedule == kScheduleAuto || mode->schedule == schedule.name) {
        ways.push_back(PriceSchedule(schedule, question));
      }
    }
  }
  if (mode->open) {
    TALLY_ASSIGN_OR_RETURN(const Travel travel, PlanTravel(message, ExchangeKind::kOwners, job, basis, workers));
    question.owned = travel.bytes.back();
    const std::vector<Way> owners = PriceOwnerWays(question);
    ways.insert(ways.begin(), owners.begin(), owners.end());
  }
  Choice choice = ChooseWay(ways);
  const Way& way = ways[choice.way];
  *reason = std::move(choice.reason);
  if (mode->open && mode->node_stages) {
    *reason = std::to_string(workers) + " workers share " + std::to_string(basis.nodes) +
              " nodes, inside which bytes cross no NIC; between them " + *reason;
  }
  mode->exchange = way.kind == WayKind::kSchedule ? ExchangeKind::kSchedule : ExchangeKind::kOwners;
  mode->schedule = way.kind == WayKind::kSchedule ? std::string(way.name) : "";
  mode->server_shares = way.kind == WayKind::kPs || way.kind == WayKind::kHybrid;
  mode->worker_shares = way.kind == WayKind::kDirect || way.kind == WayKind::kHybrid;
  mode->open = false;
  return Status::Ok();
}

// "server 0 40 %, rank 0 30 %, …", the first few; with node stages "node 0 30 %".
std::string Show(std::span<const Share> shares, const Positions& positions, bool nodes) {
  double sum = 0;
  for (const Share& share : shares) sum += share.share;
  std::string text;
  for (std::size_t i = 0; i < shares.size() && i < kMaxSharesShown; ++i) {
    char percent[32];
    std::snprintf(percent, sizeof percent, " %.4g %%", 100 * shares[i].share / sum);
    const OwnerRef owner = shares[i].owner;
    const bool worker = owner.role == Role::kWorker && !nodes;
    const std::uint32_t number = worker ? positions.rank(Position(owner.index)).value : owner.index;
    text += (i == 0 ? "" : ", ") + std::string(owner.role == Role::kServer ? "server " : nodes ? "node " : "rank ") +
            std::to_string(number) + percent;
  }
  return shares.size() > kMaxSharesShown ? text + " and " + std::to_string(shares.size() - kMaxSharesShown) + " more"
                                         : text;
}

// Sets owner_list, alike for all stages, and appends each one's slabs' owners.
void AssignStages(const Travel& travel, const ModeExpansion& mode, std::uint32_t servers, std::uint32_t positions,
                  const PlanBasis& basis, LayoutMessage* message, PlanNotes* notes) {
  const bool schedule = mode.exchange == ExchangeKind::kSchedule;
  std::vector<Share> shares = EqualShares(schedule ? OwnerSet::kWorkers : OwnersOf(mode), servers, positions);
  const std::optional<Placement>& placement = basis.measured.has_value() ? basis.measured : basis.placement;
  if (!schedule && placement.has_value()) {
    ShareTable table = SolveShares(*placement, OwnersOf(mode), travel.bytes.back());
    shares = std::move(table.shares);
    notes->bytes_s = table.seconds;
  }
  if (!schedule) notes->shares = Show(shares, basis.positions, mode.node_stages);
  for (const Share& share : shares) message->owner_list.push_back(share.owner);
  for (const WireLayout& stage : travel.stages) {
    if (!stage.renumbered) continue;
    const std::vector<std::uint16_t> owners =
        schedule ? AssignRoundRobin(stage.layout, positions) : AssignOwners(stage.layout, shares);
    message->owners.insert(message->owners.end(), owners.begin(), owners.end());
  }
}

}  // namespace

Result<LayoutMessage> PlanGroup(std::span<const DeclareMessage> declarations, const Config& job,
                                const PlanBasis& basis, PlanNotes* notes) {
  const DeclareMessage& first = declarations.front();
  const auto workers = static_cast<std::uint32_t>(declarations.size());
  TALLY_ASSIGN_OR_RETURN(const Places places, IndexNames(first, 0));
  Misfits misfits;
  for (std::size_t rank = 1; rank < declarations.size(); ++rank) {
    const DeclareMessage& other = declarations[rank];
    if (other.group != first.group) {
      misfits.Add("rank 0 declares group " + first.group + ", rank " + std::to_string(rank) + " declares group " +
                  other.group);
      continue;
    }
    TALLY_ASSIGN_OR_RETURN(const Places other_places, IndexNames(other, rank));
    CompareTensors(first, places, other, other_places, rank, &misfits);
    CompareBuckets(first, other, rank, &misfits);
    if (other.first_step != first.first_step) {
      misfits.Add("rank 0 begins with step " + std::to_string(first.first_step.value) + ", rank " +
                  std::to_string(rank) + " with step " + std::to_string(other.first_step.value));
    }
  }
  if (!misfits.none()) return Mismatch("group " + first.group + " is declared differently:" + misfits.text());

  if (first.first_step.value > kMaxFirstStep) {
    return InvalidArgument("group " + first.group + " begins with step " + std::to_string(first.first_step.value) +
                           "; at most " + std::to_string(kMaxFirstStep));
  }
  std::uint64_t slabs = 0;
  for (const TensorSpec& tensor : first.tensors) {
    slabs += CutTensor(tensor.elements.value, workers).count;
    if (slabs > kMaxGroupSlabs) {
      return InvalidArgument("group " + first.group + " needs more than " + std::to_string(kMaxGroupSlabs) +
                             " slabs (at tensor " + tensor.name + "); declare it as several groups");
    }
  }
  LayoutMessage message;
  message.name = first.group;
  message.tensors = first.tensors;
  message.first_step = first.first_step;
  TALLY_ASSIGN_OR_RETURN(message.buckets, Buckets(first, places, job.bucket.cap_bytes));
  TALLY_ASSIGN_OR_RETURN(ModeExpansion mode, ExpandMode(job));
  PlanNotes unread;
  PlanNotes& told = notes == nullptr ? unread : *notes;
  TALLY_RETURN_IF_ERROR(Choose(message, job, basis, workers, &mode, &told.reason));
  TALLY_ASSIGN_OR_RETURN(const Travel travel, PlanTravel(message, mode.exchange, job, basis, workers));
  message.codecs = travel.codecs;
  message.exchange = mode.exchange;
  message.schedule = mode.schedule;
  told.group = message.name;
  told.exchange = DescribeExpansion(mode);
  AssignStages(travel, mode, static_cast<std::uint32_t>(job.servers.addresses.size()),
               mode.node_stages ? basis.nodes : workers, basis, &message, &told);
  if (EncodeControl(message).size() > kMaxControlBytes) {
    return InvalidArgument("group " + first.group + " has " + std::to_string(message.tensors.size()) +
                           " tensors, too many for one layout message of 1 MiB; declare it as several groups");
  }
  return message;
}

}  // namespace tally
