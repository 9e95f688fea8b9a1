// CoordinatorHost: gives the pure Coordinator its ears and mouth: a control listener, a tick, links by connection id.
// Used by the first tally-server and by rank 0 of a job without servers. Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/log.h"
#include "common/loop.h"
#include "common/transport/link.h"
#include "server/core/control_sender.h"
#include "server/core/coordinator.h"
#include "server/core/rejections.h"

namespace tally {

class CoordinatorHost final : public Acceptor, public LinkHandler {
 public:
  // `logger` outlives this. `rate_bits`: link.rate of this process.
  CoordinatorHost(EventLoop* loop, Logger* logger, double rate_bits, CoordinatorOptions options);
  ~CoordinatorHost() override;

  // Binds and starts to serve; returns the real endpoint. Peers know it by the role that it lives in, rank or server 0.
  // Errors as Transport::Listen.
  Result<std::string> Listen(Transport* control, std::string_view endpoint, Role lives_in);

  const Coordinator& coordinator() const { return *coordinator_; }
  std::uint64_t rejected() const { return rejections_.count(); }  // connections refused for bad bytes

  Status OnHello(const LinkIdentity& peer) override;
  void OnAccepted(std::unique_ptr<Link> link) override;
  void OnRejected(const Status& why) override;
  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;

 private:
  void Tick();
  void Flush();
  void CloseSoon(ConnectionId id);
  CoordinatorOptions::Advice AdviseCodec(const Config& job, std::uint32_t workers);
  static ConnectionId IdOf(const Link& link);

  EventLoop* loop_;
  Logger* logger_;
  const double rate_bits_;
  CoordinatorOptions options_;
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<CoordinatorOutput> outputs_;  // being sent
  ControlSender sender_;
  std::map<ConnectionId, std::unique_ptr<Link>> links_;
  ConnectionId next_id_ = 1;
  EventLoop::TimerId tick_timer_ = 0;
  std::map<ConnectionId, TimePoint> silent_;  // accepted, no message yet
  Rejections rejections_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace tally
