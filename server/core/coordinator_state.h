// What a coordinator knows: one job at a time over seats (a seat per rank, a registered server per index). Every
// connection is in exactly one of peers (has joined), departed (left or failed, still open; heard only to see it go) and
// closing (told to close). Included by coordinator*.cc only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/core/coordinator.h"
#include "server/core/group_plan.h"
#include "server/core/measurements.h"
#include "server/core/positions.h"

namespace tally {
namespace coordination {

inline constexpr std::size_t kMaxNameBytes = 128;
inline constexpr std::size_t kMaxListed = 8;  // members named in a text

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
  std::uint32_t nodes = 1;  // once complete
  Positions positions;      // once complete
  std::vector<std::optional<DeclareMessage>> declared;
  std::vector<Group> groups;
  std::vector<Measurement> measurements;
  std::set<std::uint32_t> measuring;                 // ranks whose MeasuredMessage is still waited for,
  TimePoint measured_by;                             // until then
  std::map<std::uint32_t, MeasuredMessage> measured;
  std::map<OwnerRef, double> nic_rates;              // that follow; by role and rank or server index
  CoordinatorOptions::Advice advice;  // on auto_codecs, if that is wanted and not there yet
  AutoCodecs auto_codecs;             // what codec auto stands for, once a group was planned

  std::uint32_t world() const { return first.world; }
};

// "rank 2 (hostA, pid 17)".
std::string Who(const JoinMessage& join);
Member MakeMember(const JoinMessage& join);  // without a position
std::string Seconds(Nanos time);  // "1.5 s"

}  // namespace coordination

struct Coordinator::Impl {
  using Peer = coordination::Peer;
  using Seat = coordination::Seat;
  using Group = coordination::Group;
  using Wait = coordination::Wait;
  using Job = coordination::Job;

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
  void CompleteWorld(TimePoint now);
  void OnMeasured(const Peer& worker, const MeasuredMessage& measured);
  void PublishLinks();

  // Running.
  void OnDeclare(Peer& worker, const DeclareMessage& declare, TimePoint now);
  void PublishGroup(TimePoint now);
  PlanBasis Basis();
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

template <typename Visit>
void Coordinator::Impl::ForEachMember(const Visit& visit) {
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value()) visit(*seat.peer);
  }
  for (auto& [index, server] : servers) {
    if (index < job->servers) visit(server);
  }
}

}  // namespace tally
