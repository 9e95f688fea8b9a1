#include "server/core/coordinator.h"

#include <algorithm>
#include <utility>

#include "common/utf8.h"
#include "server/core/coordinator_state.h"

namespace tally {

using namespace coordination;

namespace {

constexpr std::size_t kMaxTextBytes = 4096;   // of a failure that a member reports
constexpr std::size_t kMaxClosing = 4096;
constexpr Nanos kSpeakEvery = std::chrono::seconds(5);

// "2, 3, 5", at most the first few.
std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kMaxListed) text += " and " + std::to_string(items.size() - kMaxListed) + " more";
  return text;
}

}  // namespace

namespace coordination {

Member MakeMember(const JoinMessage& join) {
  Member member;
  member.role = join.role;
  member.index = join.index;
  member.incarnation = join.incarnation;
  member.host = join.host;
  member.node = join.node;
  member.nic_bytes_per_s = join.nic_bytes_per_s;
  member.switch_path = join.switch_path;
  member.pid = join.pid;
  member.endpoints = join.endpoints;
  return member;
}

std::string Who(const JoinMessage& join) { return Describe(MakeMember(join)); }


std::string Seconds(Nanos time) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace coordination

// ---- sending

void Coordinator::Impl::Send(ConnectionId to, ControlMessage message, bool close_after) {
  outbox.push_back({to, std::move(message), close_after});
  if (!close_after) return;
  closing.insert(to);
  if (closing.size() > kMaxClosing) closing.erase(closing.begin());
}

void Coordinator::Impl::SendToMembers(const ControlMessage& message) {
  ForEachMember([&](Peer& peer) { Send(peer.connection, message); });
}

void Coordinator::Impl::Refuse(ConnectionId to, const Status& why) { Send(to, RefusedMessage{Failure(why)}, true); }

// ---- ending

// The seat stays empty for the rest of the job; its connection is only watched until it closes.
void Coordinator::Impl::Depart(Seat& seat, TimePoint now) {
  peers.erase(seat.peer->connection);
  departed[seat.peer->connection] = now;
  seat.peer.reset();
  seat.left = true;
}

// A rank that has left and whose part of what `wait` is for is missing.
std::optional<std::uint32_t> Coordinator::Impl::LeaverMissing(const Wait& wait) const {
  for (std::uint32_t rank = 0; rank < job->seats.size(); ++rank) {
    const bool given = wait.declaring ? job->declared[rank].has_value()
                                      : job->groups[wait.group.value - 1].prepared[rank].has_value();
    if (job->seats[rank].left && !given) return rank;
  }
  return std::nullopt;
}

// Whoever waits for somebody who has left hears so and counts as having left, which may strand others in turn.
void Coordinator::Impl::DismissWaiters(TimePoint now) {
  for (bool changed = true; changed;) {
    changed = false;
    for (Seat& seat : job->seats) {
      if (!seat.peer.has_value() || !seat.peer->wait.has_value()) continue;
      const Wait wait = *seat.peer->wait;
      const std::optional<std::uint32_t> leaver = LeaverMissing(wait);
      if (!leaver.has_value()) continue;
      std::string text = "rank " + std::to_string(*leaver) + " left the job";
      if (wait.declaring) {
        text += "; a group can't be declared without it";
      } else {
        const Group& group = job->groups[wait.group.value - 1];
        text += group.step.value == 0 ? " before step 0" : " after step " + std::to_string(group.step.value - 1);
        text += " of group " + group.name + "; step " + std::to_string(group.step.value) + " can't end without it";
      }
      Send(seat.peer->connection,
           FailureMessage{StatusKind::kUnavailable, std::move(text), true, Role::kWorker, *leaver});
      Depart(seat, now);
      changed = true;
    }
  }
  if (std::all_of(job->seats.begin(), job->seats.end(), [](const Seat& s) { return s.left; })) EndJob();
}

void Coordinator::Impl::OnLeave(const Peer& peer, const LeaveMessage& leave, TimePoint now) {
  const ConnectionId connection = peer.connection;
  const std::uint32_t rank = peer.join.index;
  if (peer.join.role == Role::kServer || !job->complete) {
    departed[connection] = now;
    return LosePeer(connection, Unavailable("it left: " + std::string(Utf8Prefix(leave.reason, kMaxTextBytes))), now);
  }
  const LeaveMessage notice{Who(peer.join) + " left the job: " + std::string(Utf8Prefix(leave.reason, kMaxTextBytes))};
  Depart(job->seats[rank], now);
  for (const Seat& seat : job->seats) {
    if (seat.peer.has_value()) Send(seat.peer->connection, notice);
  }
  DismissWaiters(now);
}

void Coordinator::Impl::OnFailure(const Peer& peer, FailureMessage failure, TimePoint now) {
  const ConnectionId connection = peer.connection;
  failure.text = Who(peer.join) + ": " + std::string(Utf8Prefix(failure.text, kMaxTextBytes));
  if (!InJob(peer) || !job->complete) {
    departed[connection] = now;
    return LosePeer(connection, Unavailable(failure.text), now);
  }
  if (peer.join.role == Role::kWorker) Depart(job->seats[peer.join.index], now);
  FailJob(failure, connection, now);
}

void Coordinator::Impl::Violation(const Peer& peer, const std::string& what, TimePoint now) {
  const ConnectionId connection = peer.connection;
  Refuse(connection, Corrupt(Who(peer.join) + " " + what));
  LosePeer(connection, Corrupt("it " + what), now);
}

// The connection is gone or given up.
void Coordinator::Impl::LosePeer(ConnectionId connection, const Status& why, TimePoint now) {
  const Peer lost = std::move(*FindPeer(connection));
  const bool in_job = InJob(lost);
  peers.erase(connection);
  if (lost.join.role == Role::kServer) {
    servers.erase(lost.join.index);
  } else {
    job->seats[lost.join.index].peer.reset();
  }
  if (!in_job) return;
  if (job->complete) {
    const std::string text = "lost " + Who(lost.join) + ": " + why.text();
    FailJob({StatusKind::kPeerLost, text, true, lost.join.role, lost.join.index}, connection, now);
  } else if (std::none_of(job->seats.begin(), job->seats.end(), [](const Seat& s) { return s.peer.has_value(); })) {
    ClearJob(Phase::kIdle);  // it never began
  }
}

void Coordinator::Impl::FailJob(const FailureMessage& failure, ConnectionId except, TimePoint now) {
  ForEachMember([&](Peer& peer) {
    if (peer.connection != except) Send(peer.connection, failure);
  });
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value()) Depart(seat, now);
  }
  ClearJob(Phase::kFailed);
  SettleFailed();
}

void Coordinator::Impl::EndJob() {
  for (const auto& [index, server] : servers) {
    if (index < job->servers) Send(server.connection, LeaveMessage{"job " + job->name + " ended: all workers left"});
  }
  ClearJob(Phase::kIdle);
  ++jobs_ended;
}

void Coordinator::Impl::ClearJob(Phase next) {
  job.reset();
  phase = next;
  for (auto& [index, server] : servers) server.wait.reset();
}

void Coordinator::Impl::SettleFailed() {
  if (phase != Phase::kFailed || !departed.empty()) return;
  phase = Phase::kIdle;
  ++jobs_ended;
}

// ---- time

void Coordinator::Impl::DropSilent(Nanos dead, TimePoint now) {
  std::vector<std::pair<ConnectionId, TimePoint>> silent;
  const auto check = [&](ConnectionId connection, TimePoint heard) {
    if (now - heard > dead) silent.emplace_back(connection, heard);
  };
  for (const auto& [connection, heard] : departed) check(connection, heard);
  for (const auto& [connection, who] : peers) check(connection, FindPeer(connection)->last_heard);
  for (const auto& [connection, heard] : silent) {
    const Status why = PeerLost("nothing was heard from it for " + Seconds(now - heard) + " (membership.dead is " +
                                Seconds(dead) + ")");
    const Peer* peer = FindPeer(connection);
    const std::string who = peer != nullptr ? Who(peer->join) : "this process";
    Send(connection, Failure(PeerLost(who + " is out of the job: " + why.text())), true);
    // The first loss may have moved the others to departed.
    if (peer != nullptr) LosePeer(connection, why, now);
    departed.erase(connection);
  }
  SettleFailed();
}

void Coordinator::Impl::SpeakUp(TimePoint now) {
  for (const auto& [connection, who] : peers) {
    Peer& peer = *FindPeer(connection);
    if (!peer.wait.has_value() || now < peer.wait->speak_at) continue;
    peer.wait->speak_at = now + kSpeakEvery;
    Send(connection, WaitingMessage{WaitText(*peer.wait)});
  }
}

std::string Coordinator::Impl::WaitText(const Wait& wait) const {
  std::vector<std::string> missing, here;
  for (std::uint32_t rank = 0; rank < job->seats.size(); ++rank) {
    const Seat& seat = job->seats[rank];
    const bool given = !job->complete   ? seat.peer.has_value()
                       : wait.declaring ? job->declared[rank].has_value()
                                        : job->groups[wait.group.value - 1].prepared[rank].has_value();
    std::string text = std::to_string(rank);
    if (seat.peer.has_value()) text += " (" + seat.peer->join.host + ")";
    (given ? here : missing).push_back(std::move(text));
  }
  std::string text = "waiting for ";
  if (!missing.empty()) {
    text += (missing.size() == 1 ? "rank " : "ranks ") + Join(missing) + " of " + std::to_string(job->world());
  }
  if (!job->complete) {
    std::vector<std::string> servers_missing;
    for (std::uint32_t s = 0; s < job->servers; ++s) {
      if (!servers.contains(s)) servers_missing.push_back(std::to_string(s));
    }
    if (!servers_missing.empty()) {
      text += (missing.empty() ? "server " : " and server ") + Join(servers_missing) + " of " +
              std::to_string(job->servers);
    }
  } else if (wait.declaring) {
    text += " to declare a group";
  } else {
    const Group& group = job->groups[wait.group.value - 1];
    text += " to end step " + std::to_string(group.step.value) + " of group " + group.name;
  }
  text += "; have " + (here.empty() ? std::string("no rank") : Join(here));
  if (!job->complete && !options.listening_on.empty()) text += "; listening on " + options.listening_on;
  return text;
}

// ---- looking

Peer* Coordinator::Impl::FindPeer(ConnectionId connection) {
  const auto found = peers.find(connection);
  if (found == peers.end()) return nullptr;
  const OwnerRef& who = found->second;
  return who.role == Role::kServer ? &servers.at(who.index) : &*job->seats[who.index].peer;
}

// ---- the interface

Coordinator::Coordinator(const CoordinatorOptions& options) : impl_(std::make_unique<Impl>(options)) {}
Coordinator::~Coordinator() = default;

void Coordinator::OnMessage(ConnectionId from, const ControlMessage& message, TimePoint now) {
  Impl& c = *impl_;
  if (c.closing.contains(from)) return;
  if (const auto found = c.departed.find(from); found != c.departed.end()) {
    found->second = now;
    return;
  }
  Peer* peer = c.FindPeer(from);
  if (peer == nullptr) {
    if (const auto* join = std::get_if<JoinMessage>(&message)) return c.OnJoin(from, *join, now);
    return c.Refuse(from, Corrupt("the first message of a connection is a join"));
  }
  peer->last_heard = now;
  const bool running_worker = peer->join.role == Role::kWorker && c.job->complete;
  if (std::holds_alternative<HeartbeatMessage>(message)) return;
  if (const auto* leave = std::get_if<LeaveMessage>(&message)) return c.OnLeave(*peer, *leave, now);
  if (const auto* failure = std::get_if<FailureMessage>(&message)) return c.OnFailure(*peer, *failure, now);
  if (const auto* declare = std::get_if<DeclareMessage>(&message); declare != nullptr && running_worker) {
    return c.OnDeclare(*peer, *declare, now);
  }
  if (const auto* prepared = std::get_if<PreparedMessage>(&message); prepared != nullptr && running_worker) {
    return c.OnPrepared(*peer, *prepared, now);
  }
  if (const auto* measured = std::get_if<MeasuredMessage>(&message); measured != nullptr && running_worker) {
    return c.OnMeasured(*peer, *measured);
  }
  c.Violation(*peer, "sent a message that does not belong here (kind " + std::to_string(message.index()) + ")", now);
}

void Coordinator::OnDisconnect(ConnectionId from, const Status& why, TimePoint now) {
  impl_->closing.erase(from);
  impl_->departed.erase(from);
  if (impl_->FindPeer(from) != nullptr) impl_->LosePeer(from, why, now);
  impl_->SettleFailed();
}

void Coordinator::OnTick(TimePoint now) {
  Impl& c = *impl_;
  const Config::Membership times = c.job.has_value() ? c.job->config.membership : Config::Membership{};
  const Nanos gap = c.last_tick.has_value() ? now - *c.last_tick : Nanos{0};
  c.last_tick = now;
  if (gap > times.heartbeat) {
    // This process itself was stopped or starved: what came in meanwhile is still unread, so nobody is blamed for it.
    for (auto& [connection, heard] : c.departed) heard = std::min(now, heard + gap);
    for (const auto& [connection, who] : c.peers) {
      TimePoint& heard = c.FindPeer(connection)->last_heard;
      heard = std::min(now, heard + gap);
    }
  }
  c.DropSilent(times.dead, now);
  if (!c.last_beat.has_value() || now - *c.last_beat >= times.heartbeat) {
    c.last_beat = now;
    ++c.beats;
    for (const auto& [connection, who] : c.peers) c.Send(connection, HeartbeatMessage{c.beats});
  }
  if (c.job.has_value() && !c.job->measuring.empty() && now >= c.job->measured_by) c.PublishLinks();
  c.SpeakUp(now);
}

void Coordinator::Take(std::vector<CoordinatorOutput>* outputs) {
  outputs->clear();
  outputs->swap(impl_->outbox);
}
Coordinator::Phase Coordinator::phase() const { return impl_->phase; }
std::string Coordinator::job() const { return impl_->job_name; }
std::uint64_t Coordinator::jobs_ended() const { return impl_->jobs_ended; }

}  // namespace tally
