// Coordinator: membership authority of one job: join, epochs, layouts with ownership, verdicts, liveness, loss.
// Pure: messages and times in, messages out; no I/O, no clock. Lives in the first tally-server or in rank 0.
// A connection id names one control connection; the shell makes them up and never reuses one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/config/config.h"
#include "common/control.h"
#include "common/status.h"
#include "common/topology/bandwidth_matrix.h"
#include "compress/advisor.h"
#include "server/core/group_plan.h"

namespace tally {

using ConnectionId = std::uint64_t;

struct CoordinatorOutput {
  ConnectionId to = 0;
  ControlMessage message;
  bool close_after = false;  // close the connection once the message is written
};

struct CoordinatorOptions {
  std::string listening_on;      // for "waiting for …; listening on …"
  std::string version;
  std::uint64_t incarnation = 1; // seeds the job hash, with the job's name
  Nanos speak_up = std::chrono::seconds(5);
  // Asked as a job with compression.codec = auto begins to gather; what it returns is asked for the codecs when the first
  // group is planned, once per job. Unset: none.
  using Advice = std::function<AutoCodecs()>;
  std::function<Advice(const Config& job, std::uint32_t workers)> advise_codec;
  // Told of each group that is planned, for the log.
  std::function<void(const PlanNotes&)> on_plan = nullptr;
  // Measured bandwidths between hosts, that positions follow if they name all of a job's (topology.matrix); none: nodes
  // and switches alone. What came of it is told, for the log.
  std::optional<BandwidthMatrix> matrix = std::nullopt;
  std::function<void(const Result<MatrixOrder>&)> on_matrix = nullptr;
};

class Coordinator {
 public:
  explicit Coordinator(const CoordinatorOptions& options);
  ~Coordinator();

  // Join. Refuses (RefusedMessage with close_after) at once: another protocol version (both named), another job name
  // than the one that is running, a rank or server index out of range, a rank already taken by a living member (names
  // it), a world size or a job key that differs from the first joiner's (DiffJobConfig lines). When all workers and all
  // servers of the job are there, every member gets an EpochMessage. Servers may join before any worker: they then wait
  // without a job, keep their place from job to job, and are not asked for a job name or configuration.
  // Declare: once all workers have, the layout goes to every member; a misfit fails the job for all (kMismatch).
  // Prepared: once all workers have, the verdict goes to every member; a repeat after it gets it again.
  // Measured: once those whom the epoch asks for it have, or a few seconds later, every member gets a LinksMessage.
  // Failure from a member is passed on to all others and ends the job; the first cause wins.
  // Leave: the other workers hear of it (LeaveMessage); whoever waits for the leaver, then or later, gets a
  // FailureMessage (kUnavailable) that names it. After the last one, servers get a LeaveMessage.
  // Anything else, or out of order: refused and closed; from a member that counts as its loss.
  void OnMessage(ConnectionId from, const ControlMessage& message, TimePoint now);
  // The control connection ended without a Leave. A member of a running job: the job fails (kPeerLost, naming it);
  // before the world was complete: its place is free again. Not called for connections closed by close_after.
  void OnDisconnect(ConnectionId from, const Status& why, TimePoint now);
  // Call at least four times per heartbeat interval. Heartbeats to all, members silent for `membership.dead` are lost
  // (time in which nobody called does not count), waiters hear what they wait for after `speak_up`, then every 5 s.
  void OnTick(TimePoint now);

  // What to send, in order, in place of what `outputs` held. Call after each of the above.
  void Take(std::vector<CoordinatorOutput>* outputs);

  enum class Phase : std::uint8_t { kIdle, kGathering, kRunning, kFailed };
  Phase phase() const;
  std::string job() const;
  // All workers have left (or the job failed and the last is gone): the coordinator is idle again; counts jobs so far.
  // A failed job does not hold up the next one: the first Join after it starts that.
  std::uint64_t jobs_ended() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What `mode` expands to for a group (DESIGN §2): exchange, schedule or owner set.
struct ModeExpansion {
  ExchangeKind exchange = ExchangeKind::kOwners;
  std::string schedule;  // exchange kSchedule: its name, or kScheduleAuto
  bool server_shares = false, worker_shares = false;
  // Mode auto: each group gets an exchange of its own among owners on those that have shares and, if it is named, the
  // schedule.
  bool open = false;
  bool node_stages = false;  // around the exchange, whose positions are then nodes (common/schedule/nodes.h)
  std::vector<std::string> warnings;  // of a configuration that will do worse than it could
};
// Errors: kInvalidArgument with the reason and what is valid (ps without servers; a codec that the mode refuses; modes
// of later versions are kUnsupported).
Result<ModeExpansion> ExpandMode(const Config& config);
// "owners on servers and workers", "schedule ring", "auto: …".
std::string DescribeExpansion(const ModeExpansion& expansion);

}  // namespace tally
