// Engine: the thread inside a Client. Owns the event loop, links, groups, this process's owners and, in rank 0 of a job
// without servers, the coordinator. Caller threads post to it and wait on completions.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/buffer.h"
#include "common/config/config.h"
#include "common/log.h"
#include "common/loop.h"
#include "common/recycled_list.h"
#include "common/schedule/nodes.h"
#include "common/transport/link.h"
#include "common/transport/node_memory.h"
#include "server/core/collective_calls.h"
#include "server/core/coordinator_host.h"
#include "server/core/data_links.h"
#include "server/core/membership.h"
#include "server/core/owner_host.h"
#include "server/core/positions.h"
#include "worker/client.h"
#include "worker/collective_runtime.h"
#include "worker/group_runtime.h"
#include "worker/node_collective.h"

namespace tally {

class Engine final : public TicketHost,
                     public LinkHandler,
                     public MembershipEvents,
                     public GroupEnvironment,
                     public CollectiveEnvironment {
 public:
  // Joins and waits until every link is up.
  static Result<std::unique_ptr<Engine>> Start(const LoadedConfig& config);
  ~Engine() override;

  // Caller side; any thread but the loop's. A declaration counts as a standalone call, as a rank that makes another one
  // at the same time waits for what never comes.
  Result<GroupRuntime*> Declare(std::span<const TensorSpec> tensors, const GroupOptions& options);
  Result<std::shared_ptr<TicketState>> Submit(GroupRuntime* group, std::uint32_t bucket, StepWeight weight);
  Status WaitTicket(TicketState* ticket) override;
  // Its holder has waited for step.timeout already: as WaitTicket at its end.
  Status GiveUp(TicketState* ticket);
  Result<StepResult> EndStep(GroupRuntime* group, Vote vote, StepWeight weight, float loss_scale);
  // Between the group's steps.
  Result<SavedState> Save(GroupRuntime* group);
  Status Restore(GroupRuntime* group, SavedState state);
  Status AllReduce(std::span<float> data, ReduceOp op);
  Result<GroupRuntime*> MakeBuffer(std::size_t elements);
  Status AllReduce(GroupRuntime* buffer, ReduceOp op);
  // Of any kind (collective_runtime.h); `shape` without a number.
  Status Collective(CollectiveShape shape, const std::byte* in, std::byte* out);
  // A standalone call was refused for its arguments, and counts as one: another rank that makes it fails and names this
  // one; if all ranks are refused, nothing else happens.
  void NoteRefusal(const Status& why);
  Status Leave();
  // Ends the job everywhere, for a reason that only the caller knows.
  void Abort(const Status& why);
  ClientStats Stats();
  Status failure() const;
  Status SetLogLevel(std::string_view level) { return logger_->SetLevel(level); }

  const Config& config() const { return loaded_.config; }
  Rank rank() const { return Rank(loaded_.config.worker.rank); }
  std::uint32_t workers() const { return workers_; }
  std::uint32_t local_rank() const;  // among the workers on this node
  std::uint32_t servers() const { return servers_; }
  EpochId epoch() const { return epoch_.epoch; }
  std::string description() const;

  // Loop side.
  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;
  void OnEpoch(EpochMessage message) override;
  void OnLayout(LayoutMessage message) override;
  void OnVerdict(const VerdictMessage& verdict) override;
  void OnLinks(const LinksMessage& links) override;
  void OnJobFailed(const Status& why) override;
  void OnPeerLeft(const std::string& who) override;
  Status Send(OwnerRef to, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
              BufferRef hold) override;
  void Prepared(const PreparedMessage& message) override;
  void Verdict(const VerdictMessage& verdict) override;
  void PostContinue(GroupRuntime* group) override;
  void Fail(const Status& why) override;
  bool Reach(Position peer) override;
  void Wake() override;

 private:
  // A caller that waits for its group's layout.
  struct Declaration {
    std::string name;
    std::vector<TensorSpec> own;
    Completion completion;
    GroupRuntime* group = nullptr;
  };

  struct WatchedStep {
    std::uint64_t progress = 0;
    int still = 0;  // checks in a row that found no progress
  };

  explicit Engine(const LoadedConfig& config);
  Status Begin();                         // before the loop runs: transports, listeners, the coordinator
  Status StartTransports(LinkOptions options);
  void ListenInMemory();
  std::string OwnNode() const;
  Status ListenForPeers(const std::string& own_address, std::string* nic_host);
  void FindPeers();
  const Member* FindMember(OwnerRef peer) const;
  std::vector<std::string> WaysTo(const Member& member) const;
  std::uint32_t ConnectionsTo(OwnerRef peer) const;
  void CountConnections();
  void MeasureLinks();
  void MakeOwnerHost();
  void MakeStandalone();
  bool Dials(OwnerRef peer) const;
  void DialPeers();
  void DialMember(OwnerRef peer, const Member& member, std::uint32_t connections, std::uint32_t first);
  bool StepsNeed(OwnerRef peer) const;
  void NotReached(OwnerRef peer, const Status& why);
  std::string Over(Role peers) const;
  void Dial(OwnerRef peer, std::uint32_t connections, std::uint32_t first = 0);
  Nanos DialBound();
  std::string Missing() const;
  void CheckStep(std::uint32_t id, bool in_flight, std::uint64_t progress, const Status& suspicion, Nanos interval);
  void TellGroup(const GroupRuntime& group);
  std::unique_ptr<NodeShare> MakeNodeShare(GroupId group);
  Nanos ShareBound() const;
  std::uint32_t Arrangement() const { return nodes_.shared() ? nodes_.digest() : 0; }  // of ResidualOrigin
  void ShareWithNode(GroupRuntime* group, std::function<void(Status)> done);
  void CheckJoined();
  Status JoinError();
  Status CheckSender(const FrameHeader& header, const LinkIdentity& sender) const;
  bool Deliver(Frame& frame, Rank sender);  // false: the group is not known yet
  void DrainLocal();
  void SetFailure(const Status& why);
  void WatchSteps(Status* suspicion, const Status& why);
  void CheckSteps();
  void CompleteAll(const Status& status);
  // `what`: for the log and errors, asked for only when the wait is long. `waited` of step.timeout is over.
  Status Wait(Completion& completion, const std::function<std::string()>& what, GroupRuntime* group, Nanos waited = {});
  Result<GroupRuntime*> CollectiveGroup(const CollectiveShape& shape);
  Result<GroupRuntime*> DeclareCollective(const char* kind, std::uint64_t elements);
  Status MeetNode();
  Result<bool> Unanimous(bool mine);
  Status EndOnNode(Status status);
  std::vector<std::span<std::byte>> OnNode(NodeShare& share, std::span<std::byte> own) const;
  std::uint32_t rank_on_node() const { return nodes_.local_rank(position_); }
  Status RunCollective(GroupRuntime* group, const CollectiveShape& shape, std::span<float> data);
  void NoteCall(Rank rank, const CollectiveShape& shape);
  void NoteOtherCall(std::string what);
  Result<GroupRuntime*> DeclareGroup(std::span<const TensorSpec> tensors, const GroupOptions& options);
  std::string Ask(std::function<std::string()> question);
  void Post(std::function<void()> task);
  // Runs `task` on the loop and waits for what it returns.
  Status OnLoop(std::function<Status()> task, const char* what);
  std::string RankName() const;
  std::string Expanded(const ModeExpansion& expansion) const;
  void NoteChoice(const LayoutMessage& message);

  LoadedConfig loaded_;
  std::unique_ptr<Logger> logger_;
  EventLoop loop_;
  BufferPool pool_;
  std::uint64_t incarnation_ = 0;
  std::string nic_;  // interface of its data links; empty: none, or not known
  std::uint32_t workers_ = 1, servers_ = 0;
  ExchangeKind exchange_ = ExchangeKind::kOwners;
  std::string schedule_;
  bool server_shares_ = false, worker_shares_ = false;
  bool open_ = false;  // each group gets the exchange that the coordinator takes for it
  mutable std::mutex description_mutex_;
  bool node_stages_ = false;              // wanted; there are none if every worker is alone
  std::string description_;
  bool coordinator_is_local_ = true;      // reached over loopback: this is a job on one host

  // Groups die after the transports: a link may hold a group's memory until it closes.
  std::map<std::uint32_t, std::unique_ptr<GroupRuntime>> groups_;
  std::map<std::uint32_t, std::unique_ptr<GroupRuntime>> sharing_;  // not in groups_ before they see their node's memory
  Nodes nodes_;  // none without node stages
  std::set<std::uint32_t> unshared_;         // positions of the node with which sharing failed
  std::unique_ptr<NodeMemory> node_memory_;  // null: this process shares none
  std::unique_ptr<CollectiveRuntime> standalone_;  // of group 0; dies after the transports, too
  std::unique_ptr<OwnerHost> owner_host_;
  std::unique_ptr<Transport> control_transport_, worker_transport_, server_transport_;
  std::unique_ptr<Transport> shm_transport_;  // to members on this node; null: link.shm is off, or the NIC is emulated
  std::unique_ptr<CoordinatorHost> coordinator_host_;
  std::unique_ptr<DataLinks> links_;
  std::unique_ptr<Membership> membership_;
  std::vector<std::string> data_endpoints_;
  std::vector<OwnerRef> peers_;           // that need links,
  std::vector<std::uint32_t> wanted_;     // so many each, as ConnectionsTo
  std::uint32_t connections_ = 0;         // to each on another host, if the configuration leaves it open; 0: not known yet
  double measured_bytes_per_s_ = 0;       // to one of them; 0: not measured by this worker
  std::set<std::uint32_t> dialled_;       // positions, when a collective first wanted them
  EpochMessage epoch_;
  Positions positions_;                   // of the epoch
  Position position_;                     // this worker's
  std::vector<std::shared_ptr<Declaration>> declarations_;
  // Replies of our own owner, delivered in a turn of their own. The frames keep their headers' memory.
  RecycledList<Frame> local_frames_, draining_frames_;
  Frame own_push_;                        // to our own owner
  bool draining_local_ = false;
  Status suspicion_;                      // why a step or call may never end, if there is a reason
  std::map<std::uint32_t, StepId> suspected_at_;  // per group, the first step that had not begun here by then
  Status call_suspicion_;                 // why the open standalone call may not, besides
  bool watching_ = false;
  std::map<std::uint32_t, WatchedStep> watched_steps_;  // per group
  TimePoint join_by_{};                   // membership.join_timeout
  bool joined_ = false, leaving_ = false;
  Completion join_completion_;

  std::atomic<bool> failed_{false};
  std::atomic<bool> someone_left_{false};
  mutable std::mutex failure_mutex_;
  Status failure_;
  std::string who_left_;                  // the last one that did
  std::thread thread_;
  bool left_ = false;                     // caller side

  CollectiveCalls calls_;
  std::map<std::pair<std::uint64_t, int>, GroupRuntime*> collectives_;  // by element count and op; caller side
  // One node: standalone collectives are the caller's own work, if all ranks see each other's memory. Caller side.
  bool met_node_ = false;
  Arena staging_, meeting_;
  std::unique_ptr<NodeShare> node_share_;
  std::unique_ptr<NodeCollective> on_node_;
  std::uint64_t last_call_ = 0, collective_groups_ = 0;                 // caller side
  CollectiveShape on_node_call_;          // what on_node_ does: caller side
  std::uint64_t committed_ = 0, skipped_ = 0;
  bool told_saturated_ = false, told_loss_scale_ = false, told_unshared_ = false;
};

}  // namespace tally
