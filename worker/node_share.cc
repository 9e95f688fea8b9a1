#include "worker/node_share.h"

#include <algorithm>
#include <utility>

namespace tally {

NodeShare::NodeShare(EventLoop* loop, NodeMemory* memory, const ArenaRequest& self, std::vector<Peer> peers)
    : loop_(loop), memory_(memory), self_(self), peers_(std::move(peers)) {}

NodeShare::~NodeShare() {
  *alive_ = false;
  loop_->Cancel(timer_);
}

void NodeShare::Begin(const Arena* inputs, const Arena* results, Nanos deadline, std::function<void()> done) {
  bytes_ = inputs->bytes().size();
  deadline_ = deadline;
  done_ = std::move(done);
  ++open_;  // until everything is asked for
  if (memory_ != nullptr && bytes_ > 0) {
    const auto taken = [this, alive = alive_](const ArenaRequest& by, bool mapped) {
      Peer* peer = *alive ? Find(by.position) : nullptr;
      if (peer == nullptr || std::exchange(peer->answered, true)) return;
      peer->maps_inputs = mapped;
      peer->shares_result = mapped && by.shares_result;
      if (!mapped) peer->fault = "it cannot map this process's memory";
      Settle();
    };
    self_.kind = ArenaKind::kInputs;
    for (const Peer& peer : peers_) open_ += peer.endpoint.empty() ? 0U : 1U;
    memory_->Offer(self_, inputs, taken);
    if (results != nullptr) {
      shares_result_ = true;
      self_.kind = ArenaKind::kResults;
      memory_->Offer(self_, results, [](const ArenaRequest&, bool) {});
      FetchInputs();
    } else if (peers_.front().endpoint.empty()) {
      FetchInputs();
    } else {
      ++open_;
      self_.kind = ArenaKind::kResults;
      memory_->Fetch(peers_.front().endpoint, self_, bytes_, true, deadline, [this, alive = alive_](Result<Mapping> got) {
        if (!*alive || done_ == nullptr) return;  // too late: results lie elsewhere by now
        if (got.ok()) {
          results_ = std::move(got).value();
          shares_result_ = true;
        } else {
          peers_.front().fault = got.status().text();
        }
        FetchInputs();
        Settle();
      });
    }
  }
  timer_ = loop_->After(deadline, [this] {
    for (Peer& peer : peers_) {
      if (!peer.maps_inputs && peer.fault.empty()) peer.fault = "no answer in time";
    }
    End();
  });
  loop_->Post([this, alive = alive_] {
    if (*alive) Settle();
  });
}

void NodeShare::FetchInputs() {
  self_.kind = ArenaKind::kInputs;
  self_.shares_result = shares_result_;
  for (Peer& peer : peers_) {
    if (peer.endpoint.empty()) continue;
    ++open_;
    memory_->Fetch(peer.endpoint, self_, bytes_, false, deadline_,
                   [this, alive = alive_, position = peer.position](Result<Mapping> got) {
                     if (!*alive) return;
                     Peer* from = Find(position);
                     if (got.ok()) {
                       from->inputs = std::move(got).value();
                     } else {
                       from->fault = got.status().text();
                     }
                     Settle();
                   });
  }
}

void NodeShare::Settle() {
  if (open_ == 0 || --open_ != 0 || done_ == nullptr) return;
  loop_->Cancel(timer_);
  End();
}

// What comes later counts for frames only, which are the loop's.
void NodeShare::End() {
  if (done_ == nullptr) return;
  complete_ = shares_result_ && std::ranges::none_of(peers_, [](const Peer& peer) { return peer.inputs.empty(); });
  std::exchange(done_, nullptr)();
}

NodeShare::Peer* NodeShare::Find(Position position) {
  const auto found = std::ranges::find(peers_, position, &Peer::position);
  return found == peers_.end() ? nullptr : &*found;
}

std::string NodeShare::Faults() const {
  std::string text;
  for (const Peer& peer : peers_) {
    if (peer.fault.empty()) continue;
    text += (text.empty() ? "" : "; ") + ("rank " + std::to_string(peer.rank.value)) + ": " + peer.fault;
  }
  return text;
}

}  // namespace tally
