// The side of the engine that knows whom this worker exchanges frames with: by the mode, and by standalone collectives.
#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "common/schedule/schedule.h"
#include "common/transport/interfaces.h"
#include "common/transport/local_address.h"
#include "common/transport/unix_sockets.h"
#include "server/core/measurements.h"
#include "worker/engine.h"

namespace tally {
namespace {

constexpr Nanos kFindPeer = std::chrono::seconds(2);  // less than the coordinator waits for what is measured
constexpr Nanos kTellFault = std::chrono::milliseconds(500);
constexpr std::size_t kMaxMissing = 8;      // named in an error
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
    TALLY_ASSIGN_OR_RETURN(
        const std::vector<std::string> hosts,
        DataAddresses(c.worker.bind, c.network.interfaces, c.network.insecure, own_address));
    for (const std::string& host : hosts) {
      const Result<std::string> endpoint =
          links_->Listen(worker_transport_.get(), c.link.transport + "://" + host + ":0", self);
      if (endpoint.ok()) {
        data_endpoints_.push_back(*endpoint);
      } else if (host == hosts.front()) {
        return endpoint.status();
      } else {
        logger_->Debug("not listening at one of this machine's addresses", {{"why", endpoint.status().text()}});
      }
    }
    if (needed) *nic_host = hosts.front();
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

// How many connections a peer gets, 0: that is still being measured. One where nothing limits a flow but this machine.
std::uint32_t Engine::ConnectionsTo(OwnerRef peer) const {
  const Config& c = loaded_.config;
  if (c.link.connections != 0) return c.link.connections;
  const std::string& transport = peer.role == Role::kServer ? c.servers.transport : c.link.transport;
  const Member* member = FindMember(peer);
  if (transport != "tcp" || member == nullptr || member->node == OwnNode()) return 1;
  return connections_;
}

// Once for all: links come up one by one, and each is looked at with all others (CheckJoined).
void Engine::CountConnections() {
  wanted_.clear();
  for (const OwnerRef peer : peers_) wanted_.push_back(ConnectionsTo(peer));
}

// Before the join times out, so that the error says where nobody answers.
Nanos Engine::DialBound() {
  const Nanos all = loaded_.config.membership.join_timeout;
  return joined_ ? all : std::max<Nanos>(join_by_ - loop_.Now() - std::min<Nanos>(all / 10, kTellFault), Nanos{0});
}

// What the join still waits for, as the end of a sentence. On the loop.
std::string Engine::Missing() const {
  if (epoch_.epoch.value == 0) {
    const std::string& waited_for = membership_->waited_for();
    return (waited_for.empty() ? "" : " " + waited_for) + ": start the missing members, or check addresses and job.workers";
  }
  std::string text;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    const Member* const member = FindMember(peers_[i]);
    if (member == nullptr || links_->complete(peers_[i], std::max(wanted_[i], 1U))) continue;
    if (++missing > kMaxMissing) continue;
    text += "; no link to " + Describe(*member);
    if (!Dials(peers_[i])) {
      text += ", which has not dialled";
      continue;
    }
    const char* before = " at ";
    for (const std::string& way : WaysTo(*member)) text += std::exchange(before, ", ") + way;
    const std::string fault = links_->fault(peers_[i]);
    text += ": " + (fault.empty() ? "no answer" : fault);
  }
  if (missing == 0) return ": what connections between hosts carry was not settled in time";
  if (missing > kMaxMissing) text += "; and " + std::to_string(missing - kMaxMissing) + " more";
  return text + ": check routes and firewalls, or set worker.bind, server.data_bind or network.interfaces there";
}

// With the first connections on their way: what several would bring. The coordinator hears of it and answers all.
void Engine::MeasureLinks() {
  const Config& c = loaded_.config;
  const std::vector<Measurement> measurements = Measurements(epoch_.members, c);
  if (measurements.empty()) {
    connections_ = 1;
    return;
  }
  const auto own = std::ranges::find(measurements, rank(), &Measurement::by);
  if (own == measurements.end()) return;
  Transport* transport = own->to.role == Role::kServer ? server_transport_.get() : worker_transport_.get();
  links_->Measure(transport, own->to, WaysTo(*FindMember(own->to)), kFindPeer, [this](const MeasuredMessage& measured) {
    measured_bytes_per_s_ = measured.bytes_per_s;
    logger_->Debug("measured", {{"bytes_per_s", measured.bytes_per_s}, {"connections", measured.connections}});
    membership_->Send(measured);
  });
}

void Engine::OnLinks(const LinksMessage& links) {
  if (connections_ != 0 || epoch_.epoch.value == 0 || failed_) return;
  connections_ = links.connections;
  CountConnections();
  logger_->Info("connections to each neighbour on another host",
                {{"connections", connections_}, {"measured_bytes_per_s", measured_bytes_per_s_}});
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (Dials(peers_[i]) && wanted_[i] > 1) Dial(peers_[i], wanted_[i] - 1, 1);
  }
  CheckJoined();
}

const Member* Engine::FindMember(OwnerRef peer) const {
  const auto member = std::ranges::find_if(epoch_.members, [&](const Member& m) {
    return m.role == peer.role && (m.role == Role::kServer ? m.index : m.position.value) == peer.index;
  });
  return member == epoch_.members.end() ? nullptr : &*member;
}

// The member's endpoints that a socket can reach from here: no loopback addresses if this is a job of several hosts.
std::vector<std::string> Engine::WaysTo(const Member& member) const {
  std::vector<std::string> endpoints = member.endpoints;
  std::erase_if(endpoints, [this](const std::string& e) {
    if (e.starts_with(kNodeMemoryScheme) || e.starts_with(kShmScheme)) return true;
    const Result<EndpointParts> parts = ParseEndpoint(e);
    return !coordinator_is_local_ && parts.ok() && IsLoopbackAddress(parts->host);
  });
  return endpoints;
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

bool Engine::StepsNeed(OwnerRef peer) const { return std::ranges::binary_search(peers_, peer); }

// Of a link that a standalone call wanted. The call may have ended without it, if the other rank dialled as well; the
// next one that wants it dials again.
void Engine::NotReached(OwnerRef peer, const Status& why) {
  dialled_.erase(peer.index);
  const Status told = why.WithContext("data link to " + DescribeOwner(peer, epoch_.members));
  if (standalone_->waits_for_link(Position(peer.index)) && !links_->complete(peer, 1)) return Fail(told);
  logger_->Info("a link that no call needs any more was not made", {{"why", told.text()}});
}

// Whoever wants the link dials: the other rank may be in another call and never want it. If both do, there are two links,
// which share the frames.
bool Engine::Reach(Position peer) {
  const OwnerRef worker{Role::kWorker, peer.value};
  if (links_->complete(worker, 1)) return true;
  if (dialled_.insert(peer.value).second) Dial(worker, 1);
  return false;
}

// Servers answer, and of a node that shares its slabs among workers each speaks for those that it carries.
Status Engine::CheckSender(const FrameHeader& header, const LinkIdentity& sender) const {
  if (sender.role == Role::kServer) {
    if (header.kind == FrameKind::kReply && header.group != kStandaloneGroup) return Status::Ok();
    return Corrupt("a frame of kind " + std::to_string(static_cast<int>(header.kind)) + " of group " +
                   std::to_string(header.group.value) + ": servers send replies of groups only");
  }
  if (header.group == kStandaloneGroup || header.kind == FrameKind::kNodePush || header.kind == FrameKind::kNodeReply) {
    return Status::Ok();
  }
  return CheckCarries(nodes_, positions_, Rank(sender.index), header.slabs);
}

void Engine::Wake() {
  Post([this] {
    if (!failed_ && standalone_ != nullptr) standalone_->Continue();
  });
}

}  // namespace tally
