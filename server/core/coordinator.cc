// One job at a time over seats: a seat per rank, a registered server per index. Every connection is in exactly one of
// peers (has joined), departed (left or failed, still open; heard only to see it go) and closing (told to close).
#include "server/core/coordinator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/utf8.h"
#include "server/core/group_plan.h"

namespace tally {
namespace {

constexpr std::uint32_t kMaxMembers = 4096;
constexpr std::size_t kMaxGroups = 1024;
constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kMaxTextBytes = 4096;   // of a failure that a member reports
constexpr std::size_t kMaxListed = 8;         // members named in a text
constexpr std::size_t kMaxClosing = 4096;
constexpr Nanos kSpeakEvery = std::chrono::seconds(5);

// FNV-1a, 64 bits.
std::uint64_t Hash(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = 0xCBF29CE484222325u ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

std::string Seconds(Nanos time) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(time).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

Member MakeMember(const JoinMessage& join) {
  Member member;
  member.role = join.role;
  member.index = join.index;
  if (join.role == Role::kWorker) member.position = Position{join.index};
  member.incarnation = join.incarnation;
  member.host = join.host;
  member.node = join.node;
  member.pid = join.pid;
  member.endpoints = join.endpoints;
  return member;
}

std::string Who(const JoinMessage& join) { return Describe(MakeMember(join)); }

// "2, 3, 5", at most the first few.
std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < items.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > kMaxListed) text += " and " + std::to_string(items.size() - kMaxListed) + " more";
  return text;
}

struct Wait {
  GroupId group;             // 0: for the world to be complete
  bool declaring = false;    // for everybody's declaration
  TimePoint speak_at;
};

struct Peer {
  ConnectionId connection = 0;
  JoinMessage join;
  TimePoint last_heard;
  std::optional<Wait> wait;
};

struct Seat {
  std::optional<Peer> peer;
  bool left = false;
};

struct Group {
  GroupId id;
  std::string name;
  EpochId epoch;
  StepId step;  // that is open
  std::vector<std::optional<PreparedMessage>> prepared;
  std::size_t prepared_count = 0;
  std::optional<VerdictMessage> last;
};

struct Job {
  std::string name;
  JoinMessage first;  // the joiner whose world and configuration count
  Config config;
  std::uint32_t servers = 0;
  std::uint64_t hash = 0;
  bool complete = false;
  std::vector<Seat> seats;
  std::vector<std::optional<DeclareMessage>> declared;
  std::vector<Group> groups;

  std::uint32_t world() const { return first.world; }
};

}  // namespace

struct Coordinator::Impl {
  explicit Impl(const CoordinatorOptions& o) : options(o) {}

  // Sending.
  void Send(ConnectionId to, ControlMessage message, bool close_after = false);
  void SendToMembers(const ControlMessage& message);
  void Refuse(ConnectionId to, const Status& why);
  static FailureMessage Failure(const Status& why) { return {why.kind(), why.text(), false, Role::kWorker, 0}; }

  // Joining.
  void OnJoin(ConnectionId from, const JoinMessage& join, TimePoint now);
  Status CheckJoin(const JoinMessage& join, TimePoint now) const;
  Status CheckWorker(const JoinMessage& join, TimePoint now) const;
  Status StartJob(const JoinMessage& join, TimePoint now);
  void CompleteWorld();

  // Running.
  void OnDeclare(Peer& worker, const DeclareMessage& declare, TimePoint now);
  void PublishGroup(TimePoint now);
  void OnPrepared(Peer& worker, const PreparedMessage& prepared, TimePoint now);
  void Decide(Group& group);

  // Ending. Peers and seats passed in are gone afterwards.
  void Depart(Seat& seat, TimePoint now);
  std::optional<std::uint32_t> LeaverMissing(const Wait& wait) const;
  void DismissWaiters(TimePoint now);
  void OnLeave(const Peer& peer, const LeaveMessage& leave, TimePoint now);
  void OnFailure(const Peer& peer, FailureMessage failure, TimePoint now);
  void Violation(const Peer& peer, const std::string& what, TimePoint now);
  void LosePeer(ConnectionId connection, const Status& why, TimePoint now);
  void FailJob(const FailureMessage& failure, ConnectionId except, TimePoint now);
  void EndJob();
  void ClearJob(Phase next);
  void SettleFailed();

  // Time.
  void DropSilent(Nanos dead, TimePoint now);
  void SpeakUp(TimePoint now);
  std::string WaitText(const Wait& wait) const;

  // Looking.
  Peer* FindPeer(ConnectionId connection);
  bool InJob(const Peer& peer) const {
    return job.has_value() && (peer.join.role == Role::kWorker || peer.join.index < job->servers);
  }
  template <typename Visit>
  void ForEachMember(const Visit& visit);

  const CoordinatorOptions options;
  Phase phase = Phase::kIdle;
  std::string job_name;  // of the job that runs, or the last one
  std::optional<Job> job;
  std::map<std::uint32_t, Peer> servers;  // by index, with or without a job
  std::map<ConnectionId, OwnerRef> peers;
  std::map<ConnectionId, TimePoint> departed;  // and when last heard
  std::set<ConnectionId> closing;
  std::vector<CoordinatorOutput> outbox;
  std::uint64_t epoch = 0;
  std::uint64_t jobs_started = 0, jobs_ended = 0;
  std::uint64_t beats = 0;
  std::optional<TimePoint> last_tick, last_beat;
};

// ---- sending

void Coordinator::Impl::Send(ConnectionId to, ControlMessage message, bool close_after) {
  outbox.push_back({to, std::move(message), close_after});
  if (!close_after) return;
  closing.insert(to);
  if (closing.size() > kMaxClosing) closing.erase(closing.begin());
}

template <typename Visit>
void Coordinator::Impl::ForEachMember(const Visit& visit) {
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value()) visit(*seat.peer);
  }
  for (auto& [index, server] : servers) {
    if (index < job->servers) visit(server);
  }
}

void Coordinator::Impl::SendToMembers(const ControlMessage& message) {
  ForEachMember([&](Peer& peer) { Send(peer.connection, message); });
}

void Coordinator::Impl::Refuse(ConnectionId to, const Status& why) { Send(to, RefusedMessage{Failure(why)}, true); }

// ---- joining

Status Coordinator::Impl::CheckJoin(const JoinMessage& join, TimePoint now) const {
  const std::string who = Who(join);
  if (join.protocol != kProtocolVersion) {
    return Mismatch(who + " speaks protocol " + std::to_string(join.protocol) + " (tally " + join.version +
                    "), the coordinator " + std::to_string(kProtocolVersion) + " (tally " + options.version +
                    "); run the same version everywhere");
  }
  if (join.host.size() > kMaxNameBytes || join.node.size() > kMaxNameBytes || join.job.size() > kMaxNameBytes) {
    return InvalidArgument(who + ": host, node and job name are at most " + std::to_string(kMaxNameBytes) + " bytes");
  }
  if (join.index >= kMaxMembers || join.world > kMaxMembers) {
    return InvalidArgument(who + " of " + std::to_string(join.world) + ": a job has at most " +
                           std::to_string(kMaxMembers) + " members");
  }
  if (join.role == Role::kWorker) return CheckWorker(join, now);

  if (const auto found = servers.find(join.index); found != servers.end()) {
    return Unavailable("server " + std::to_string(join.index) + " is " + Who(found->second.join) +
                       " already, heard " + Seconds(now - found->second.last_heard) +
                       " ago; give each server its own server.index");
  }
  if (job.has_value() && join.index >= job->servers) {
    return InvalidArgument(who + " is out of range: job " + job->name + " lists " + std::to_string(job->servers) +
                           " servers.addresses");
  }
  return Status::Ok();
}

Status Coordinator::Impl::CheckWorker(const JoinMessage& join, TimePoint now) const {
  const std::string who = Who(join);
  if (join.job.empty()) return InvalidArgument(who + " gives no job name");
  if (join.world == 0) return InvalidArgument(who + " gives no number of workers");
  const bool first = !job.has_value();
  const std::string first_who = first ? who : Who(job->first);
  if (!first && join.job != job->name) {
    return Mismatch(who + " is of job " + join.job + ", the job here is " + job->name + " (since " + first_who + ")");
  }
  if (!first && join.world != job->world()) {
    return Mismatch(who + " expects " + std::to_string(join.world) + " workers, the job has " +
                    std::to_string(job->world()) + " (as " + first_who + " said)");
  }
  if (join.index >= join.world) {
    return InvalidArgument(who + " is out of range: the job has " + std::to_string(join.world) +
                           " workers, ranks 0 to " + std::to_string(join.world - 1));
  }
  if (first) return Status::Ok();
  if (const Seat& seat = job->seats[join.index]; seat.peer.has_value()) {
    return Unavailable("rank " + std::to_string(join.index) + " is " + Who(seat.peer->join) + " already, heard " +
                       Seconds(now - seat.peer->last_heard) + " ago; give each process its own rank");
  }
  if (join.config_digest != job->first.config_digest) {
    std::string lines;
    for (const std::string& line : DiffJobConfig(job->first.config_text, join.config_text)) lines += "\n  " + line;
    if (!lines.empty()) {
      return Mismatch(who + " has another job configuration than " + first_who + " (ours = the job's):" + lines);
    }
  }
  if (job->complete) {
    return Unavailable("job " + job->name + " is running and rank " + std::to_string(join.index) +
                       " has left it; joining a running job is not possible in this version");
  }
  return Status::Ok();
}

Status Coordinator::Impl::StartJob(const JoinMessage& join, TimePoint now) {
  TALLY_ASSIGN_OR_RETURN(Config config, ParseJobConfig(join.config_text));
  const std::size_t server_count = config.servers.addresses.size();
  if (join.world + server_count > kMaxMembers) {
    return InvalidArgument("job " + join.job + " has " + std::to_string(join.world) + " workers and " +
                           std::to_string(server_count) + " servers; at most " + std::to_string(kMaxMembers) +
                           " members");
  }
  TALLY_RETURN_IF_ERROR(ExpandMode(config).status());
  if (phase == Phase::kFailed) ++jobs_ended;
  phase = Phase::kGathering;
  job_name = join.job;
  job.emplace();
  job->name = join.job;
  job->first = join;
  job->config = std::move(config);
  job->servers = static_cast<std::uint32_t>(server_count);
  job->hash = Hash(join.job, options.incarnation + ++jobs_started);
  job->seats.resize(join.world);
  job->declared.resize(join.world);
  for (auto& [index, server] : servers) {
    if (index < job->servers) server.wait = Wait{{}, false, now + options.speak_up};
  }
  return Status::Ok();
}

void Coordinator::Impl::OnJoin(ConnectionId from, const JoinMessage& join, TimePoint now) {
  Status status = CheckJoin(join, now);
  if (status.ok() && join.role == Role::kWorker && !job.has_value()) status = StartJob(join, now);
  if (!status.ok()) return Refuse(from, status);

  Peer peer{from, join, now, std::nullopt};
  if (job.has_value()) peer.wait = Wait{{}, false, now + options.speak_up};
  peers[from] = {join.role, join.index};
  if (join.role == Role::kWorker) {
    job->seats[join.index].peer = std::move(peer);
  } else {
    servers[join.index] = std::move(peer);
  }
  if (phase == Phase::kGathering) CompleteWorld();
}

void Coordinator::Impl::CompleteWorld() {
  for (const Seat& seat : job->seats) {
    if (!seat.peer.has_value()) return;
  }
  for (std::uint32_t s = 0; s < job->servers; ++s) {
    if (!servers.contains(s)) return;
  }
  EpochMessage message;
  message.epoch = EpochId{++epoch};
  message.job_hash = job->hash;
  message.job = job->name;
  message.config_text = job->first.config_text;
  ForEachMember([&](Peer& peer) {  // workers by rank, then servers by index
    message.members.push_back(MakeMember(peer.join));
    peer.wait.reset();
  });
  job->complete = true;
  phase = Phase::kRunning;
  SendToMembers(message);
}

// ---- running

void Coordinator::Impl::OnDeclare(Peer& worker, const DeclareMessage& declare, TimePoint now) {
  std::optional<DeclareMessage>& declared = job->declared[worker.join.index];
  if (declared.has_value()) return Violation(worker, "declares a group while its declaration of another is open", now);
  if (declare.group.empty() || declare.group.size() > kMaxNameBytes) {
    return Violation(worker, "declares a group whose name is not 1 to 128 bytes long", now);
  }
  declared = declare;
  worker.wait = Wait{{}, true, now + options.speak_up};
  if (std::all_of(job->declared.begin(), job->declared.end(), [](const auto& d) { return d.has_value(); })) {
    PublishGroup(now);
  } else {
    DismissWaiters(now);
  }
}

void Coordinator::Impl::PublishGroup(TimePoint now) {
  std::vector<DeclareMessage> declarations;
  for (std::optional<DeclareMessage>& d : job->declared) declarations.push_back(*std::exchange(d, std::nullopt));
  const std::string& name = declarations.front().group;
  Status why;
  for (const Group& group : job->groups) {
    if (group.name == name) why = InvalidArgument("group " + name + " is declared a second time");
  }
  if (job->groups.size() >= kMaxGroups) {
    why = InvalidArgument("a job has at most " + std::to_string(kMaxGroups) + " groups");
  }
  if (!why.ok()) return FailJob(Failure(why), 0, now);

  Result<LayoutMessage> planned = PlanGroup(declarations, job->config);
  if (!planned.ok()) return FailJob(Failure(planned.status()), 0, now);

  LayoutMessage layout = std::move(planned).value();
  Group group;
  group.id = layout.group = GroupId{static_cast<std::uint32_t>(job->groups.size() + 1)};
  group.epoch = layout.epoch = EpochId{++epoch};
  group.name = layout.name;
  group.prepared.resize(job->world());
  job->groups.push_back(std::move(group));
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value()) seat.peer->wait.reset();
  }
  SendToMembers(layout);
}

void Coordinator::Impl::OnPrepared(Peer& worker, const PreparedMessage& prepared, TimePoint now) {
  const std::uint32_t rank = worker.join.index;
  if (prepared.group.value == 0 || prepared.group.value > job->groups.size()) {
    return Violation(worker, "ends a step of group " + std::to_string(prepared.group.value) + ", which does not exist",
                     now);
  }
  Group& group = job->groups[prepared.group.value - 1];
  const auto misfit = [&](const std::string& text) {
    const std::string whole = Who(worker.join) + ", group " + group.name + ": " + text;
    FailJob({StatusKind::kMismatch, whole, true, Role::kWorker, rank}, 0, now);
  };
  if (prepared.epoch != group.epoch) {
    return misfit("stale epoch " + std::to_string(prepared.epoch.value) + ", the group's is " +
                  std::to_string(group.epoch.value));
  }
  if (group.last.has_value() && prepared.step == group.last->step) return Send(worker.connection, *group.last);
  if (prepared.step != group.step) {
    return misfit("ends step " + std::to_string(prepared.step.value) + ", open is step " +
                  std::to_string(group.step.value));
  }
  if (group.prepared[rank].has_value()) return;
  group.prepared[rank] = prepared;
  worker.wait = Wait{group.id, false, now + options.speak_up};
  if (++group.prepared_count == group.prepared.size()) {
    Decide(group);
  } else {
    DismissWaiters(now);
  }
}

void Coordinator::Impl::Decide(Group& group) {
  VerdictMessage verdict{group.id, group.step, group.epoch, true, {}};
  std::size_t objections = 0;
  for (std::uint32_t rank = 0; rank < group.prepared.size(); ++rank) {
    const PreparedMessage& prepared = *group.prepared[rank];
    if (!prepared.non_finite && !prepared.skip_vote) continue;
    verdict.commit = false;
    if (++objections > kMaxListed) continue;
    verdict.reason += (verdict.reason.empty() ? "rank " : "; rank ") + std::to_string(rank);
    verdict.reason += !prepared.non_finite    ? std::string(" voted skip")
                      : prepared.note.empty() ? std::string(": non-finite value")
                                              : ": non-finite value in " + prepared.note;
  }
  if (objections > kMaxListed) verdict.reason += "; and " + std::to_string(objections - kMaxListed) + " more";
  group.prepared.assign(group.prepared.size(), std::nullopt);
  group.prepared_count = 0;
  group.last = verdict;
  ++group.step;
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value() && seat.peer->wait.has_value() && seat.peer->wait->group == group.id) {
      seat.peer->wait.reset();
    }
  }
  SendToMembers(verdict);
}

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
