// The side of the engine that knows whom this worker exchanges frames with: by the mode, and by standalone collectives.
#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>

#include "common/schedule/schedule.h"
#include "common/transport/interfaces.h"
#include "worker/engine.h"

namespace tally {
namespace {

constexpr double kUsualBytesPerS = 1.25e9;  // of a NIC that nobody says anything of: 10 Gbit/s

}  // namespace

// Where gradients go through servers alone, only standalone collectives need links between workers, from the first call
// on (Reach): a job that makes none is not kept from running.
Status Engine::ListenForPeers(const std::string& own_address, std::string* nic_host) {
  const Config& c = loaded_.config;
  const bool needed = exchange_ == ExchangeKind::kSchedule || worker_shares_ || node_stages_;
  LinkIdentity self;
  self.index = c.worker.rank;
  self.incarnation = incarnation_;
  const auto listen = [&]() -> Status {
    TALLY_ASSIGN_OR_RETURN(const std::string bind, DataAddress(c.worker.bind, c.network.interfaces, c.network.insecure,
                                                               own_address));
    TALLY_ASSIGN_OR_RETURN(const std::string endpoint,
                           links_->Listen(worker_transport_.get(), c.link.transport + "://" + bind + ":0", self));
    if (needed) *nic_host = bind;
    data_endpoints_.push_back(endpoint);
    return Status::Ok();
  };
  const Status status = listen();
  if (status.ok() || needed) return status;
  logger_->Warn("other workers cannot reach this one: standalone collectives will fail", {{"why", status.text()}});
  return Status::Ok();
}

std::uint32_t Engine::local_rank() const {
  const auto of_worker = [](const Member& m) { return m.role == Role::kWorker; };
  std::string_view node;
  for (const Member& m : epoch_.members) {
    if (of_worker(m) && m.index == rank().value) node = m.node;
  }
  return static_cast<std::uint32_t>(std::ranges::count_if(epoch_.members, [&](const Member& m) {
    return of_worker(m) && m.node == node && m.index < rank().value;
  }));
}

// Whom this worker exchanges frames with.
void Engine::FindPeers() {
  std::set<OwnerRef> peers;
  // With node stages a position of the exchange is a node: whoever carries slabs there that this worker carries here.
  const auto add = [&](std::uint32_t position) {
    if (!nodes_.shared()) {
      if (position != position_.value) peers.insert({Role::kWorker, position});
      return;
    }
    const std::uint32_t own = nodes_.node_of(position_);
    if (position == own) return;
    const std::uint64_t here = nodes_.positions(own).size(), there = nodes_.positions(position).size();
    for (std::uint32_t turn = 0; turn < std::lcm(here, there); ++turn) {
      const std::uint32_t slab = turn * nodes_.count();
      if (nodes_.carrier(slab, own) == position_) peers.insert({Role::kWorker, nodes_.carrier(slab, position).value});
    }
  };
  const std::uint32_t positions = nodes_.exchange_positions(workers_);
  for (const Member& m : epoch_.members) {
    if (m.role == Role::kServer && server_shares_) peers.insert({Role::kServer, m.index});
  }
  for (std::uint32_t p = 0; p < positions && worker_shares_; ++p) add(p);
  if (nodes_.shared()) {
    for (const Position p : nodes_.positions(nodes_.node_of(position_))) {
      if (p != position_) peers.insert({Role::kWorker, p.value});
    }
  }
  if (exchange_ == ExchangeKind::kSchedule) {
    std::vector<ScheduleStep> steps;
    for (const ScheduleEntry& schedule : Schedules()) {
      if (schedule_ != kScheduleAuto && schedule_ != schedule.name) continue;
      for (std::uint32_t owner = 0; owner < positions; ++owner) {
        schedule.generate(Position(owner), Position(nodes_.speaks_for(position_)), positions, &steps);
        for (const ScheduleStep& step : steps) {
          if (step.op != StepOp::kFinish) add(step.peer.value);
        }
      }
    }
  }
  peers_.assign(peers.begin(), peers.end());
}

void Engine::MakeStandalone() {
  CollectiveRuntime::Options options;
  options.header.job_hash = epoch_.job_hash;
  options.header.epoch = epoch_.epoch;
  options.header.incarnation = incarnation_;
  options.self = position_;
  for (std::uint32_t p = 0; p < workers_; ++p) options.ranks.push_back(positions_.rank(Position(p)));
  double slowest = 0;
  for (const Member& m : epoch_.members) {
    if (m.role != Role::kWorker) continue;
    if (m.nic_bytes_per_s > 0 && (slowest == 0 || m.nic_bytes_per_s < slowest)) slowest = m.nic_bytes_per_s;
  }
  options.credit_bytes = loaded_.config.link.credit_bytes;
  options.bytes_per_s = slowest > 0 ? slowest : kUsualBytesPerS;
  // A setting that leaves it open, or that is another mode's, gives sums the order of a ring: that of gradients.
  const Result<const ScheduleEntry*> named = FindSchedule(schedule_);
  options.sums = named.ok() ? *named : &Schedules().front();
  standalone_ = std::make_unique<CollectiveRuntime>(std::move(options), &pool_, this);
}

// Whoever wants the link dials: the other rank may be in another call and never want it. If both do, there are two links,
// which share the frames.
bool Engine::Reach(Position peer) {
  const OwnerRef worker{Role::kWorker, peer.value};
  if (links_->complete(worker, 1)) return true;
  if (dialled_.insert(peer.value).second) Dial(worker, 1);
  return false;
}

void Engine::Wake() {
  Post([this] {
    if (!failed_ && standalone_ != nullptr) standalone_->Continue();
  });
}

}  // namespace tally
