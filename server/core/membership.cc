#include "server/core/membership.h"

#include <utility>

#include "common/transport/wire_speed.h"

namespace tally {
namespace {

// The first server, or rank 0 of a job without servers.
std::string CoordinatingMember(const std::vector<Member>& members) {
  const Member* found = nullptr;
  for (const Member& member : members) {
    if (member.index == 0 && (found == nullptr || member.role == Role::kServer)) found = &member;
  }
  return found == nullptr ? "" : Describe(*found);
}

}  // namespace
Membership::Membership(EventLoop* loop, Transport* control, Logger* logger, Options options, MembershipEvents* events)
    : loop_(loop), control_(control), logger_(logger), options_(std::move(options)), events_(events) {}

Membership::~Membership() {
  *alive_ = false;
  if (beat_timer_ != 0) loop_->Cancel(beat_timer_);
}

void Membership::Start() {
  LinkIdentity self;
  self.role = options_.join.role;
  self.index = options_.join.index;
  self.incarnation = options_.join.incarnation;
  self.control = true;
  control_->Connect(options_.coordinator, self, [this, alive = alive_](Result<std::unique_ptr<Link>> result) {
    if (!*alive) return;
    if (!result.ok()) {
      Fail(result.status().WithContext("joining job " + options_.join.job + " at coordinator " +
                                       options_.coordinator));
      return;
    }
    link_ = std::move(result).value();
    link_->handler = this;
    last_heard_ = loop_->Now();
    Send(options_.join);
    Beat();
  });
}

void Membership::Send(const ControlMessage& message) {
  if (link_ == nullptr) return;
  (void)sender_.Send(*link_, message);
}

void Membership::Leave(const std::string& reason, std::function<void()> done) {
  if (link_ == nullptr || left_) {
    left_ = true;
    loop_->Post(std::move(done));
    return;
  }
  left_ = true;
  (void)sender_.Send(*link_, LeaveMessage{reason}, std::move(done));
}

void Membership::Close() {
  left_ = true;
  link_.reset();
}

void Membership::SetTimes(Nanos heartbeat, Nanos dead) {
  options_.heartbeat = heartbeat;
  options_.dead = dead;
}

void Membership::Beat() {
  beat_timer_ = 0;
  if (failed_ || link_ == nullptr) return;
  // Time in which this process itself did not run says nothing about the coordinator.
  const TimePoint now = loop_->Now();
  if (last_beat_ != TimePoint{} && now - last_beat_ > 2 * options_.heartbeat) {
    last_heard_ += now - last_beat_ - options_.heartbeat;
  }
  last_beat_ = now;
  if (!left_) {
    if (now - last_heard_ > options_.dead) {
      const auto silent = std::chrono::duration_cast<std::chrono::milliseconds>(now - last_heard_).count();
      Fail(PeerLost(Coordinator() + " was silent for " + std::to_string(silent) +
                    " ms (membership.dead)"));
      return;
    }
    Send(HeartbeatMessage{++beats_});
  }
  beat_timer_ = loop_->After(options_.heartbeat, [this] { Beat(); });
}

void Membership::Fail(const Status& why) {
  if (failed_ || left_) return;
  failed_ = true;
  events_->OnJobFailed(why);
}

void Membership::OnFrame(Link&, Frame& frame) {
  last_heard_ = loop_->Now();
  Result<ControlMessage> decoded = DecodeControl(frame.payload);
  if (!decoded.ok()) {
    // A newer coordinator may say things that we do not know; bytes that are no message at all end the connection.
    if (decoded.status().kind() == StatusKind::kUnsupported) return;
    Fail(decoded.status().WithContext("from " + Coordinator()));
    return;
  }
  ControlMessage message = std::move(decoded).value();
  if (auto* epoch = std::get_if<EpochMessage>(&message)) {
    coordinating_member_ = CoordinatingMember(epoch->members);
    waited_for_.clear();
    events_->OnEpoch(std::move(*epoch));
  } else if (auto* layout = std::get_if<LayoutMessage>(&message)) {
    events_->OnLayout(std::move(*layout));
  } else if (auto* verdict = std::get_if<VerdictMessage>(&message)) {
    events_->OnVerdict(*verdict);
  } else if (const auto* links = std::get_if<LinksMessage>(&message)) {
    events_->OnLinks(*links);
  } else if (auto* waiting = std::get_if<WaitingMessage>(&message)) {
    logger_->Info(waiting->text);
    waited_for_ = std::move(waiting->text);
  } else if (auto* refused = std::get_if<RefusedMessage>(&message)) {
    Fail({refused->failure.kind, "refused by " + Coordinator() + ": " + refused->failure.text});
  } else if (auto* failure = std::get_if<FailureMessage>(&message)) {
    if (options_.join.role == Role::kServer) {
      logger_->Warn("job failed", {{"why", failure->text}});
      events_->OnJobEnded({failure->kind, failure->text});
      return;
    }
    Fail({failure->kind, failure->text});
  } else if (auto* leave = std::get_if<LeaveMessage>(&message)) {
    if (options_.join.role == Role::kServer) {
      events_->OnJobEnded(Status::Ok());
    } else {
      events_->OnPeerLeft(leave->reason);
    }
  }
}

void Membership::OnClosed(Link&, const Status& why) {
  link_.reset();
  Fail(PeerLost(Coordinator() + " is gone: " + why.text()));
}

std::string Membership::Coordinator() const {
  const std::string place = "the coordinator at " + options_.coordinator;
  return coordinating_member_.empty() ? place : coordinating_member_ + ", " + place + ",";
}

void SayNic(const Config& config, std::string_view host, JoinMessage* join) {
  const WireSpeed wire = SpeedOfWire(NicRateBits(config), host);
  join->nic_bytes_per_s = wire.assumed ? 0 : wire.bytes_per_s;
  if (config.link.rate_bits == 0) {
    join->nic = SpeedOfWire(0, host).nic;
  } else {
    join->nic = config.link.nic.empty() ? "own " + std::to_string(join->incarnation) : "link.nic " + config.link.nic;
  }
}

}  // namespace tally
