// Server: one tally-server without its process around it: data listeners, owners, membership, and the coordinator if it
// is the first. Several may run in one process (tests). Start and Stop on any thread; everything else on its loop.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/buffer.h"
#include "common/config/config.h"
#include "common/log.h"
#include "common/loop.h"
#include "common/schedule/nodes.h"
#include "common/transport/link.h"
#include "server/core/collective_calls.h"
#include "server/core/coordinator_host.h"
#include "server/core/data_links.h"
#include "server/core/membership.h"
#include "server/core/owner_host.h"

namespace tally {

// Counters since the start, over all jobs.
struct ServerStats {
  std::uint64_t bytes_received = 0, bytes_sent = 0, frames_received = 0, frames_sent = 0;
  std::uint64_t rejected_connections = 0, bad_frames = 0;
  std::uint64_t pushes = 0, slabs_done = 0, duplicates = 0, stale = 0, saturated = 0, held_bytes_max = 0;
  std::uint64_t jobs = 0, pool_allocations = 0;
};

class Server final : public LinkHandler, public MembershipEvents {
 public:
  // Binds everything and starts its thread; ready for workers when it returns. `logger` must outlive it.
  // Errors: as Transport::Listen; kInvalidArgument.
  static Result<std::unique_ptr<Server>> Start(const Config& config, Logger* logger);
  ~Server() override;  // Stop, without draining

  const std::string& control_address() const { return control_address_; }

  // Lets the step in progress end (at most `bound`), flushes replies, tells the job, stops. Idempotent.
  void Stop(Nanos bound);
  // Runs on the loop when a job has ended: ok, or why it failed.
  std::function<void(const Status& how)> on_job_ended;
  void Post(std::function<void()> task) { loop_.Post(std::move(task)); }
  EventLoop& loop() { return loop_; }
  ServerStats Stats();
  // Runs `look` on the loop and waits for it; null between jobs. For tests and status.
  void Inspect(const std::function<void(const OwnerHost*)>& look);

  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;
  void OnEpoch(EpochMessage message) override;
  void OnLayout(LayoutMessage message) override;
  void OnVerdict(const VerdictMessage& verdict) override;
  void OnJobFailed(const Status& why) override;
  void OnJobEnded(const Status& how) override;

 private:
  class Signpost;  // answers on the control address of a server that does not coordinate
  Server(const Config& config, Logger* logger);
  Status Begin();
  Status ListenForData(const EndpointParts& where, const LinkOptions& options);
  void Join();
  void EndJob();
  void Fail(const Status& why);
  void Report(const Status& why);
  void Collect();

  Config config_;
  Logger* logger_;
  EventLoop loop_;
  BufferPool pool_;
  std::uint64_t incarnation_ = 0;
  std::string control_address_, coordinator_;
  std::string nic_host_;  // where data links bind
  std::vector<std::string> data_endpoints_;
  std::unique_ptr<OwnerHost> owner_host_;
  std::unique_ptr<Transport> control_transport_, data_transport_;
  std::unique_ptr<Transport> shm_transport_;  // for workers on this node; null: link.shm is off, or the NIC is emulated
  std::unique_ptr<CoordinatorHost> coordinator_host_;
  std::unique_ptr<Signpost> signpost_;
  std::unique_ptr<DataLinks> links_;
  std::unique_ptr<Membership> membership_;
  Config job_;
  Positions positions_;
  std::string job_name_;
  std::uint64_t job_hash_ = 0;
  std::vector<std::pair<std::uint32_t, EpochId>> groups_;
  CollectiveCalls calls_;
  std::uint32_t workers_ = 0;
  Nodes nodes_;  // empty without node stages
  bool running_ = false, stopping_ = false;
  ServerStats stats_;
  std::thread thread_;
};

}  // namespace tally
