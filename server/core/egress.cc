#include "server/core/egress.h"

#include <utility>

namespace tally {

void Egress::Send(Link* link, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold) {
  if (queue_.empty() && !pumping_ && unreleased_bytes_ + payload.size() <= window_bytes_) {
    Issue(link, header, payload, std::move(hold));
    Pump();
    return;
  }
  queue_.push_back({link, header, payload, std::move(hold)});
  Pump();
}

void Egress::Drop(const Link* link) {
  std::erase_if(queue_, [link](const Entry& entry) { return entry.link == link; });
}

std::uint64_t Egress::queued_bytes() const {
  std::uint64_t bytes = 0;
  for (const Entry& entry : queue_) bytes += entry.payload.size();
  return bytes;
}

// A release may come from inside Send; then the loop that is already running goes on.
void Egress::Pump() {
  if (std::exchange(pumping_, true)) return;
  while (!queue_.empty() &&
         (unreleased_bytes_ == 0 || unreleased_bytes_ + queue_.front().payload.size() <= window_bytes_)) {
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    Issue(entry.link, entry.header, entry.payload, std::move(entry.hold));
  }
  pumping_ = false;
}

void Egress::Issue(Link* link, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold) {
  if (idle_.empty()) {
    flights_.push_back(std::make_unique<Flight>());
    idle_.push_back(flights_.back().get());
  }
  Flight* flight = idle_.back();
  idle_.pop_back();
  *flight = {this, payload.size(), std::move(hold)};
  unreleased_bytes_ += payload.size();
  // On an error the release has run already, and the link's own end is reported elsewhere.
  (void)link->Send(header, payload, {&Egress::Released, flight, 0});
}

void Egress::Released(void* context, std::uint64_t) {
  auto* flight = static_cast<Flight*>(context);
  Egress* egress = flight->egress;
  egress->unreleased_bytes_ -= flight->bytes;
  flight->hold.Reset();
  egress->idle_.push_back(flight);
  egress->Pump();
}

}  // namespace tally
