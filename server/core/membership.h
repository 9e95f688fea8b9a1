// Membership: the control-plane side of any process of a job, worker or server: joins at the coordinator, keeps the
// heartbeat, hands on what the coordinator says. Thread: the loop's. Calls back from the loop, never from inside Start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/config/config.h"
#include "common/control.h"
#include "common/log.h"
#include "common/loop.h"
#include "common/transport/link.h"
#include "server/core/control_sender.h"

namespace tally {

class MembershipEvents {
 public:
  virtual ~MembershipEvents() = default;
  virtual void OnEpoch(EpochMessage message) = 0;
  virtual void OnLayout(LayoutMessage message) = 0;
  virtual void OnVerdict(const VerdictMessage& verdict) = 0;
  // Workers: how many connections each neighbour gets, if the configuration leaves it open.
  virtual void OnLinks(const LinksMessage& links) { (void)links; }
  // The job can't go on for this member: refused, a peer lost, the coordinator gone or silent.
  virtual void OnJobFailed(const Status& why) = 0;
  // Servers: the job ended, in good order or for the reason given; they wait for the next one.
  virtual void OnJobEnded(const Status& how) { (void)how; }
  // Workers: another worker has left in good order; what still needs it will not come.
  virtual void OnPeerLeft(const std::string& who) { (void)who; }
};

class Membership final : public LinkHandler {
 public:
  struct Options {
    std::string coordinator;  // "tcp://host:port"
    JoinMessage join;
    Nanos heartbeat = std::chrono::seconds(1);
    Nanos dead = std::chrono::seconds(10);  // silence after which the coordinator counts as lost
  };

  Membership(EventLoop* loop, Transport* control, Logger* logger, Options options, MembershipEvents* events);
  ~Membership() override;

  void Start();
  void Send(const ControlMessage& message);
  // Says farewell; `done` runs when it is written (or can't be).
  void Leave(const std::string& reason, std::function<void()> done);
  // Closes the connection; nothing is called back any more.
  void Close();
  void SetTimes(Nanos heartbeat, Nanos dead);
  bool connected() const { return link_ != nullptr; }
  // Before the epoch, what the coordinator last said it waits for: "waiting for rank 2 of 4; …". Empty if nothing yet.
  const std::string& waited_for() const { return waited_for_; }

  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;

 private:
  void Beat();
  void Fail(const Status& why);
  std::string Coordinator() const;  // as errors name it

  EventLoop* loop_;
  Transport* control_;
  Logger* logger_;
  Options options_;
  MembershipEvents* events_;
  ControlSender sender_;
  std::unique_ptr<Link> link_;
  EventLoop::TimerId beat_timer_ = 0;
  TimePoint last_heard_{}, last_beat_{};
  std::uint64_t beats_ = 0;
  std::string coordinating_member_;  // once an epoch has told
  std::string waited_for_;
  bool failed_ = false, left_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // outlives us in callbacks
};

// Says in `join` which NIC the data links of an address use and how fast it is (topology.nic_rate, link.rate, else what
// the system says; nothing where that would be a guess). An emulated NIC is one that link.nic names, or the process's own.
void SayNic(const Config& config, std::string_view host, JoinMessage* join);

}  // namespace tally
