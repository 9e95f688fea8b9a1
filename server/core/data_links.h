// DataLinks: the data connections of one process to its peers in a job: accepted and dialled, several per peer, which
// share its frames, sent through one egress. Frames go to the handler; a frame that comes before its group's layout can
// be parked, its link paused.
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/control.h"
#include "common/loop.h"
#include "common/transport/link.h"
#include "common/transport/connection_probe.h"
#include "server/core/egress.h"
#include "server/core/rejections.h"

namespace tally {

class DataLinks final : public Acceptor {
 public:
  // `egress_bytes`: how much is in the transports' hands at a time (link.egress).
  DataLinks(EventLoop* loop, LinkHandler* handler, Logger* logger, std::uint64_t egress_bytes);
  ~DataLinks() override;

  // Binds for peers that dial us. Errors as Transport::Listen.
  Result<std::string> Listen(Transport* transport, std::string_view endpoint, const LinkIdentity& self);

  // From now on peers of this epoch are admitted; `self` is what we say when dialling. Peers that came too early were
  // told "not ready" and try again.
  void Admit(const EpochMessage& epoch, const LinkIdentity& self);
  // No peer is admitted any more and every link is closed.
  void CloseAll();

  // Dials `count` connections to a peer, endpoints in turn, from the one that connection number `first` would get on; if
  // they are of several addresses, those of the one at which the peer answers, own networks' before others
  // (path_finder.h). A peer that is not ready yet is retried until
  // `deadline` from now, and not once an attempt took `patience` (the transport's connect_timeout); then, or on a refusal of
  // another kind, `on_error` runs, or in its place `otherwise`, perhaps once for each connection.
  using Otherwise = std::function<void(const Status&)>;
  void Dial(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints, std::uint32_t count,
            Nanos deadline, Otherwise otherwise = nullptr, Nanos patience = Nanos::max(), std::uint32_t first = 0);
  // What the last attempt to reach the peer said that did not; empty: none has ended.
  std::string fault(OwnerRef peer) const;
  // What connections to the peer carry (connection_probe.h): `done` runs once, later, within `bound` to find it and
  // ConnectionProbe::kBound; never if all links are closed first.
  void Measure(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints, Nanos bound,
               ConnectionProbe::Done done);
  std::function<void(const Status&)> on_error;
  std::function<void()> on_change;  // a link came up

  // All links to `peer` are up: `connections`, or one in memory.
  bool complete(OwnerRef peer, std::uint32_t connections) const;
  bool in_memory(OwnerRef peer) const;  // frames to it use no NIC
  // Sends on that link to `peer` which has least to send, in the order of all sends (egress.h); over several links frames
  // may arrive in another order. Without a link the frame is dropped: the peer is gone, and the membership says so within
  // its bound.
  void Send(OwnerRef peer, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold);

  // Forgets a dead link (from OnClosed).
  void Remove(Link& link);

  // Keeps a frame whose group is not known yet and pauses its link. Unpark hands all to the handler and resumes.
  void Park(Link& link, Frame& frame);
  void Unpark();

  LinkStats stats() const;               // all links of this job, dead ones included
  std::uint64_t queued_bytes() const;
  std::uint64_t rejected() const { return rejections_.count(); }

  Status OnHello(const LinkIdentity& peer) override;
  void OnAccepted(std::unique_ptr<Link> link) override;
  void OnRejected(const Status& why) override;

 private:
  struct Parked {
    Link* link;
    Frame frame;
  };
  struct Attempt;
  void Try(std::shared_ptr<Attempt> attempt);
  void NotReached(OwnerRef peer, const Otherwise& otherwise, const Status& why);
  Status CheckAnswer(OwnerRef dialled, const LinkIdentity& answer) const;  // kUnavailable: somebody else answered
  using OnWay = std::function<void(Result<std::vector<std::string>>)>;
  void FindWay(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints, Nanos bound, OnWay done);
  void Add(OwnerRef peer, std::unique_ptr<Link> link);

  EventLoop* loop_;
  LinkHandler* handler_;
  Egress egress_;  // before the links: they release into it as they die
  bool admitting_ = false;
  EpochMessage epoch_;
  LinkIdentity self_;
  std::map<OwnerRef, std::vector<std::unique_ptr<Link>>> links_;
  std::uint32_t turn_ = 0;  // where the search for a link begins
  std::map<OwnerRef, std::vector<std::string>> ways_;  // that were found
  std::map<OwnerRef, std::string> faults_;
  ProbeSink guests_;
  std::unique_ptr<ConnectionProbe> probe_;
  std::vector<Parked> parked_;
  LinkStats dead_stats_;
  Rejections rejections_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// "rank 2 (hostA, pid 4711)" for the worker at a position, "server 1 (hostB, pid 12)".
std::string DescribeOwner(OwnerRef owner, const std::vector<Member>& members);
// The same of a rank or server index.
std::string DescribeMember(Role role, std::uint32_t index, const std::vector<Member>& members);

}  // namespace tally
