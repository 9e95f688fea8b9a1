#include "common/transport/path_finder.h"

#include <algorithm>
#include <utility>

#include "common/transport/handshake.h"

namespace tally {
namespace {

// A handshake takes a round trip or two; a way that needs longer than this is worth less than trying the next.
constexpr Nanos kStagger = std::chrono::milliseconds(100);
constexpr Nanos kRetry = std::chrono::milliseconds(20);

class Search : public std::enable_shared_from_this<Search> {
 public:
  Search(EventLoop* loop, Transport* transport, std::vector<std::string> ways, const LinkIdentity& self,
         const LinkIdentity& wanted, Nanos bound, std::shared_ptr<const bool> alive,
         std::function<void(Result<std::size_t>)> done)
      : loop_(loop),
        transport_(transport),
        ways_(std::move(ways)),
        self_(self),
        wanted_(wanted),
        alive_(std::move(alive)),
        done_(std::move(done)),
        faults_(ways_.size(), "no answer yet"),
        left_(ways_.size()),
        bound_(bound) {
    self_.probe = true;
  }

  void Begin() {
    timer_ = Later(bound_, [](Search& search) { search.End(search.NoWay()); });
    Next();
  }

 private:
  EventLoop::TimerId Later(Nanos delay, void (*what)(Search&)) {
    return loop_->After(delay, [self = shared_from_this(), what] {
      if (self->Wanted()) what(*self);
    });
  }
  bool Wanted() const { return *alive_ && !ended_; }

  void Next() {
    if (next_ == ways_.size()) return;
    Try(next_++);
    if (next_ < ways_.size()) (void)Later(kStagger, [](Search& search) { search.Next(); });
  }

  void Try(std::size_t way) {
    transport_->Connect(ways_[way], self_, [self = shared_from_this(), way](Result<std::unique_ptr<Link>> result) {
      if (self->Wanted()) self->OnAnswer(way, std::move(result));
    });
  }

  void OnAnswer(std::size_t way, Result<std::unique_ptr<Link>> result) {
    if (result.ok()) {
      const LinkIdentity& there = (*result)->peer();
      if (there.role == wanted_.role && there.index == wanted_.index && there.incarnation == wanted_.incarnation) {
        return End(way);
      }
      return GiveUp(way, "leads to " + Name(there) + " of another incarnation or job");
    }
    if (result.status().kind() != StatusKind::kUnavailable) return GiveUp(way, result.status().text());
    faults_[way] = result.status().text();
    loop_->After(kRetry, [self = shared_from_this(), way] {
      if (self->Wanted()) self->Try(way);
    });
  }

  void GiveUp(std::size_t way, std::string why) {
    faults_[way] = std::move(why);
    if (--left_ == 0) return End(NoWay());
    Next();
  }

  Status NoWay() const {
    std::string text = "no address of " + Name(wanted_) + " leads to it: ";
    for (std::size_t way = 0; way < ways_.size(); ++way) text += ways_[way] + ": " + faults_[way] + "; ";
    return Unavailable(text + "check routes and firewalls, or set worker.bind, server.data_bind or network.interfaces there");
  }

  void End(Result<std::size_t> result) {
    ended_ = true;
    loop_->Cancel(timer_);
    done_(std::move(result));
  }

  EventLoop* const loop_;
  Transport* const transport_;
  const std::vector<std::string> ways_;
  LinkIdentity self_;
  const LinkIdentity wanted_;
  const std::shared_ptr<const bool> alive_;
  const std::function<void(Result<std::size_t>)> done_;
  std::vector<std::string> faults_;  // of each way, the last one
  std::size_t next_ = 0;             // to be tried
  std::size_t left_;                 // that have not failed for good
  const Nanos bound_;
  EventLoop::TimerId timer_ = 0;
  bool ended_ = false;
};

}  // namespace

void FindPath(EventLoop* loop, Transport* transport, std::vector<std::string> ways, const LinkIdentity& self,
              const LinkIdentity& wanted, Nanos bound, std::shared_ptr<const bool> alive,
              std::function<void(Result<std::size_t>)> done) {
  std::make_shared<Search>(loop, transport, std::move(ways), self, wanted, bound, std::move(alive), std::move(done))
      ->Begin();
}

std::vector<std::vector<std::string>> WaysOf(const std::vector<std::string>& endpoints) {
  std::vector<std::vector<std::string>> ways;
  std::vector<std::string> hosts;
  for (const std::string& endpoint : endpoints) {
    const Result<EndpointParts> parts = ParseEndpoint(endpoint);
    const std::string host = parts.ok() ? parts->host : endpoint;
    const auto known = std::ranges::find(hosts, host);
    if (known == hosts.end()) {
      hosts.push_back(host);
      ways.push_back({endpoint});
    } else {
      ways[static_cast<std::size_t>(known - hosts.begin())].push_back(endpoint);
    }
  }
  return ways;
}

}  // namespace tally
