#include "server/core/data_links.h"

#include <algorithm>
#include <utility>

#include "common/transport/interfaces.h"
#include "common/transport/path_finder.h"

namespace tally {
namespace {

constexpr Nanos kRetry = std::chrono::milliseconds(20);

void AddStats(LinkStats* total, const LinkStats& s) {
  total->bytes_sent += s.bytes_sent;
  total->bytes_received += s.bytes_received;
  total->frames_sent += s.frames_sent;
  total->frames_received += s.frames_received;
}

}  // namespace

struct DataLinks::Attempt {
  Transport* transport;
  OwnerRef peer;
  std::string endpoint;
  TimePoint deadline;
  Nanos patience;
  Otherwise otherwise;
};

DataLinks::DataLinks(EventLoop* loop, LinkHandler* handler, Logger* logger, std::uint64_t egress_bytes)
    : loop_(loop), handler_(handler), egress_(egress_bytes), guests_(loop), rejections_(logger) {}

DataLinks::~DataLinks() {
  *alive_ = false;
  egress_.DropAll();
}

Result<std::string> DataLinks::Listen(Transport* transport, std::string_view endpoint, const LinkIdentity& self) {
  return transport->Listen(endpoint, self, this);
}

void DataLinks::Admit(const EpochMessage& epoch, const LinkIdentity& self) {
  epoch_ = epoch;
  self_ = self;
  admitting_ = true;
}

void DataLinks::CloseAll() {
  admitting_ = false;
  *alive_ = false;  // what is being dialled, found or measured is of no use any more
  alive_ = std::make_shared<bool>(true);
  probe_.reset();
  guests_.Clear();
  ways_.clear();
  faults_.clear();
  parked_.clear();
  egress_.DropAll();
  for (auto& [peer, links] : links_) {
    for (auto& link : links) AddStats(&dead_stats_, link->stats());
  }
  links_.clear();
}

void DataLinks::Dial(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints,
                     std::uint32_t count, Nanos deadline, Otherwise otherwise, Nanos patience, std::uint32_t first) {
  if (endpoints.empty()) return NotReached(peer, otherwise, Mismatch("it published no data address"));
  const TimePoint until = loop_->Now() + deadline;
  FindWay(transport, peer, endpoints, deadline, [=, this, otherwise = std::move(otherwise)](auto way) {
    if (!way.ok()) return NotReached(peer, otherwise, way.status());
    for (std::uint32_t i = 0; i < count; ++i) {
      Try(std::make_shared<Attempt>(Attempt{transport, peer, (*way)[(first + i) % way->size()], until, patience, otherwise}));
    }
  });
}

void DataLinks::NotReached(OwnerRef peer, const Otherwise& otherwise, const Status& why) {
  if (otherwise) return otherwise(why);
  if (on_error) on_error(why.WithContext("data link to " + DescribeOwner(peer, epoch_.members)));
}

// The endpoints at one of the peer's addresses, at once if it has only one.
void DataLinks::FindWay(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints, Nanos bound,
                        OnWay done) {
  std::vector<std::vector<std::string>> ways = WaysOf(endpoints);
  if (ways.size() == 1) return done(std::move(ways.front()));
  if (const auto known = ways_.find(peer); known != ways_.end()) return done(known->second);
  const Result<std::vector<HostAddress>> own = HostAddresses();
  if (own.ok()) {
    std::ranges::stable_partition(ways, [&](const std::vector<std::string>& way) {
      const Result<EndpointParts> parts = ParseEndpoint(way.front());
      return parts.ok() && OnOwnNetwork(parts->host, *own);
    });
  }
  LinkIdentity wanted;
  for (const Member& m : epoch_.members) {
    if (m.role != peer.role || (m.role == Role::kServer ? m.index : m.position.value) != peer.index) continue;
    wanted.role = m.role;
    wanted.index = m.index;
    wanted.incarnation = m.incarnation;
  }
  std::vector<std::string> firsts;
  for (const auto& way : ways) firsts.push_back(way.front());
  FindPath(loop_, transport, firsts, self_, wanted, bound, alive_,
           [this, peer, ways = std::move(ways), done = std::move(done)](Result<std::size_t> found) {
             if (!found.ok()) return done(found.status());
             ways_[peer] = ways[*found];
             done(ways[*found]);
           });
}

void DataLinks::Measure(Transport* transport, OwnerRef peer, const std::vector<std::string>& endpoints, Nanos bound,
                        ConnectionProbe::Done done) {
  FindWay(transport, peer, endpoints, bound, [this, transport, done = std::move(done)](auto way) {
    if (!way.ok()) return done({});
    const auto measured = [this, done](const MeasuredMessage& m) {
      probe_.reset();
      done(m);
    };
    probe_ = std::make_unique<ConnectionProbe>(loop_, transport, way->front(), self_, measured);
  });
}

void DataLinks::Try(std::shared_ptr<Attempt> attempt) {
  const TimePoint tried = loop_->Now();
  attempt->transport->Connect(
      attempt->endpoint, self_, [this, alive = alive_, attempt, tried](Result<std::unique_ptr<Link>> result) {
        if (!*alive || !admitting_) return;
        const Status status = result.ok() ? CheckAnswer(attempt->peer, (*result)->peer()) : result.status();
        if (status.ok()) {
          Add(attempt->peer, std::move(result).value());
          return;
        }
        if (result.ok()) rejections_.Note(status, loop_->Now());
        faults_[attempt->peer] = status.text();
        // A peer that is not ready says so at once.
        const bool reached = loop_->Now() - tried < attempt->patience;
        if (status.kind() == StatusKind::kUnavailable && reached && loop_->Now() < attempt->deadline) {
          loop_->After(kRetry, [this, alive, attempt] {
            if (*alive && admitting_) Try(attempt);
          });
          return;
        }
        NotReached(attempt->peer, attempt->otherwise, status);
      });
}

// An address may be another process's by now, which must not be taken for the member; that one may still come up.
Status DataLinks::CheckAnswer(OwnerRef dialled, const LinkIdentity& answer) const {
  const auto of_member = [&](const Member& m) {
    return m.role == dialled.role && (m.role == Role::kServer ? m.index : m.position.value) == dialled.index &&
           m.role == answer.role && m.index == answer.index && m.incarnation == answer.incarnation;
  };
  if (std::ranges::any_of(epoch_.members, of_member)) return Status::Ok();
  const auto answered = std::ranges::find(epoch_.members, answer.incarnation, &Member::incarnation);
  const std::string who = (answer.role == Role::kServer ? "server " : "rank ") + std::to_string(answer.index);
  return Unavailable("dialled " + DescribeOwner(dialled, epoch_.members) + ", but " +
                     (answered != epoch_.members.end() && answered->role == answer.role && answered->index == answer.index
                          ? Describe(*answered)
                          : who + " of another job or of a process that is gone") +
                     " answered");
}

void DataLinks::Add(OwnerRef peer, std::unique_ptr<Link> link) {
  link->handler = handler_;
  links_[peer].push_back(std::move(link));
  if (on_change) on_change();
}

std::string DataLinks::fault(OwnerRef peer) const {
  const auto found = faults_.find(peer);
  return found == faults_.end() ? std::string() : found->second;
}

bool DataLinks::complete(OwnerRef peer, std::uint32_t connections) const {
  const auto found = links_.find(peer);
  return found != links_.end() && (found->second.size() >= connections || in_memory(peer));
}

bool DataLinks::in_memory(OwnerRef peer) const {
  const auto found = links_.find(peer);
  return found != links_.end() && std::ranges::any_of(found->second, [](const auto& link) { return link->in_memory(); });
}

void DataLinks::Send(OwnerRef peer, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold) {
  const auto found = links_.find(peer);
  if (found == links_.end() || found->second.empty()) return;
  const auto& links = found->second;
  Link* least = nullptr;
  std::uint64_t least_bytes = 0;
  for (std::size_t i = 0; i < links.size(); ++i) {
    Link* const next = links[(turn_ + i) % links.size()].get();
    const std::uint64_t bytes = links.size() == 1 ? 0 : next->queued_bytes() + egress_.queued_bytes(next);
    if (least != nullptr && bytes >= least_bytes) continue;
    least = next;
    least_bytes = bytes;
  }
  ++turn_;
  egress_.Send(least, header, payload, std::move(hold));
}

void DataLinks::Remove(Link& link) {
  egress_.Drop(&link);
  std::erase_if(parked_, [&](const Parked& p) { return p.link == &link; });
  for (auto& [peer, links] : links_) {
    const auto found = std::find_if(links.begin(), links.end(), [&](const auto& l) { return l.get() == &link; });
    if (found == links.end()) continue;
    AddStats(&dead_stats_, link.stats());
    links.erase(found);
    return;
  }
}

void DataLinks::Park(Link& link, Frame& frame) {
  link.PauseReceive(true);
  parked_.push_back({&link, std::move(frame)});
}

void DataLinks::Unpark() {
  // One at a time: the handler may park a frame again or close links, parked ones included.
  for (std::size_t left = parked_.size(); left > 0 && !parked_.empty(); --left) {
    Parked p = std::move(parked_.front());
    parked_.erase(parked_.begin());
    p.link->PauseReceive(false);
    handler_->OnFrame(*p.link, p.frame);
  }
}

LinkStats DataLinks::stats() const {
  LinkStats total = dead_stats_;
  for (const auto& [peer, links] : links_) {
    for (const auto& link : links) AddStats(&total, link->stats());
  }
  return total;
}

std::uint64_t DataLinks::queued_bytes() const {
  std::uint64_t bytes = egress_.queued_bytes();
  for (const auto& [peer, links] : links_) {
    for (const auto& link : links) bytes += link->queued_bytes();
  }
  return bytes;
}

Status DataLinks::OnHello(const LinkIdentity& peer) {
  if (peer.control) return InvalidArgument("this is a data address; control links go to the coordinator's");
  if (!admitting_ || peer.epoch > epoch_.epoch) return Unavailable("not ready: the job's members are not known here yet");
  if (peer.job_hash != epoch_.job_hash) return Unavailable("not ready: another job runs here");
  const auto member = std::find_if(epoch_.members.begin(), epoch_.members.end(), [&](const Member& m) {
    return m.role == peer.role && m.index == peer.index;
  });
  if (member == epoch_.members.end() || member->incarnation != peer.incarnation) {
    return Mismatch("not a member of epoch " + std::to_string(epoch_.epoch.value) + ": " +
                    (peer.role == Role::kServer ? "server " : "rank ") + std::to_string(peer.index));
  }
  if (peer.probe && guests_.full()) return Unavailable("not ready: too many probes at once");
  return Status::Ok();
}

void DataLinks::OnAccepted(std::unique_ptr<Link> link) {
  const LinkIdentity& peer = link->peer();
  if (peer.probe) return guests_.Add(std::move(link));
  const auto member = std::ranges::find_if(epoch_.members, [&peer](const Member& m) {
    return m.role == peer.role && m.index == peer.index;
  });
  if (member == epoch_.members.end()) return;  // the hello was of a member
  Add({peer.role, peer.role == Role::kServer ? peer.index : member->position.value}, std::move(link));
}

void DataLinks::OnRejected(const Status& why) { rejections_.Note(why, loop_->Now()); }

std::string DescribeOwner(OwnerRef owner, const std::vector<Member>& members) {
  for (const Member& m : members) {
    if (m.role == owner.role && (m.role == Role::kServer ? m.index : m.position.value) == owner.index) {
      return Describe(m);
    }
  }
  return (owner.role == Role::kServer ? "server " : "position ") + std::to_string(owner.index);
}

std::string DescribeMember(Role role, std::uint32_t index, const std::vector<Member>& members) {
  for (const Member& m : members) {
    if (m.role == role && m.index == index) return Describe(m);
  }
  return (role == Role::kServer ? "server " : "rank ") + std::to_string(index);
}

}  // namespace tally
