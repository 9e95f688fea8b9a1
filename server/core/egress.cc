#include "server/core/egress.h"

#include <utility>

namespace tally {

void Egress::Send(Link* link, const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold) {
  if (link->in_memory()) {
    // On an error the release has run already, and the link's own end is reported elsewhere.
    (void)link->Send(header, payload, std::move(hold).IntoRelease());
    return;
  }
  if (idle_ == nullptr) {
    entries_.push_back(std::make_unique<Entry>());
    idle_ = entries_.back().get();
  }
  Entry* entry = std::exchange(idle_, idle_->next);
  entry->egress = this;
  entry->link = link;
  entry->header = header;
  entry->payload = payload;
  entry->hold = std::move(hold);
  entry->next = nullptr;
  entry->queued = &queued_[link];
  *entry->queued += payload.size();
  (last_ == nullptr ? first_ : last_->next) = entry;
  last_ = entry;
  Pump();
}

void Egress::Drop(const Link* link) {
  for (Entry* entry = first_; entry != nullptr; entry = entry->next) {
    if (entry->link != link) continue;
    entry->link = nullptr;
    entry->hold.Reset();
  }
  queued_.erase(link);
}

void Egress::DropAll() {
  queued_.clear();
  while (first_ != nullptr) Recycle(PopFront());
}

std::uint64_t Egress::queued_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [link, queued] : queued_) bytes += queued;
  return bytes;
}

std::uint64_t Egress::queued_bytes(const Link* link) const {
  const auto found = queued_.find(link);
  return found == queued_.end() ? 0 : found->second;
}

Egress::Entry* Egress::PopFront() {
  Entry* entry = std::exchange(first_, first_->next);
  if (first_ == nullptr) last_ = nullptr;
  return entry;
}

void Egress::Recycle(Entry* entry) {
  entry->hold.Reset();
  entry->next = std::exchange(idle_, entry);
}

// A release may come from inside Send; then the loop that is already running goes on.
void Egress::Pump() {
  if (std::exchange(pumping_, true)) return;
  while (first_ != nullptr) {
    if (first_->link == nullptr) {
      Recycle(PopFront());
      continue;
    }
    // A frame may always go when nothing is under way, however large it is.
    if (unreleased_bytes_ != 0 && unreleased_bytes_ + first_->payload.size() > window_bytes_) break;
    Issue(PopFront());
  }
  pumping_ = false;
}

void Egress::Issue(Entry* entry) {
  *entry->queued -= entry->payload.size();
  unreleased_bytes_ += entry->payload.size();
  // On an error the release has run already, and the link's own end is reported elsewhere.
  (void)entry->link->Send(entry->header, entry->payload, {&Egress::Released, entry, 0});
}

void Egress::Released(void* context, std::uint64_t) {
  auto* entry = static_cast<Entry*>(context);
  Egress* egress = entry->egress;
  egress->unreleased_bytes_ -= entry->payload.size();
  egress->Recycle(entry);
  egress->Pump();
}

}  // namespace tally
