#include "common/transport/connection_probe.h"

#include <algorithm>
#include <utility>

namespace tally {
namespace {

// Each number several times, in turns: what a busy machine does to one round it does not do to all.
constexpr std::array<std::size_t, 9> kRounds = {1, 2, 4, 1, 2, 4, 1, 2, 4};
constexpr Nanos kRound = std::chrono::milliseconds(15);
constexpr Nanos kUpToSpeed = std::chrono::milliseconds(5);    // slow start, a shaper's burst
constexpr Nanos kMeasuring = std::chrono::milliseconds(200);  // all rounds and what is on its way at their ends
constexpr Nanos kConnecting = ConnectionProbe::kBound - kMeasuring;
constexpr std::uint64_t kRoundBytes = 128 << 20;  // ends a round on a fast network early
constexpr std::uint32_t kFirstWindow = 2, kLastWindow = 32;  // frames
constexpr Nanos kRetry = std::chrono::milliseconds(20);
constexpr std::size_t kMaxGuests = 1024;
constexpr std::uint64_t kMaxReceiptBytes = 64 << 10;  // that a guest has not taken; full windows need a tenth
// Shaped to 1 Gbit/s on a busy machine, equals differ by up to a sixth even so; what a limit of flows gives is far more.
constexpr double kWorthIt = 1.25;

std::vector<std::byte> Noise(std::size_t bytes) {
  std::vector<std::byte> noise(bytes);
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  for (std::size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    noise[i] = static_cast<std::byte>(state >> 56);
  }
  return noise;
}

double Seconds(Nanos time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::uint32_t WorthwhileConnections(std::span<const RateRange> rates) {
  std::size_t chosen = 1;
  for (std::size_t k = 2; k < rates.size(); ++k) {
    if (rates[k].rounds > 1 && rates[chosen].rounds > 1 && rates[k].worst > kWorthIt * rates[chosen].best) chosen = k;
  }
  return static_cast<std::uint32_t>(chosen);
}

// ---- the end that measures -------------------------------------------------------------------------------------------

ConnectionProbe::ConnectionProbe(EventLoop* loop, Transport* transport, std::string endpoint, const LinkIdentity& self,
                                 Done done)
    : loop_(loop),
      transport_(transport),
      endpoint_(std::move(endpoint)),
      self_(self),
      done_(std::move(done)),
      started_(loop->Now()),
      payload_(Noise(kPayloadBytes)) {
  self_.probe = true;
  header_.kind = FrameKind::kProbe;
  header_.job_hash = self.job_hash;
  header_.epoch = self.epoch;
  header_.incarnation = self.incarnation;
  header_.role = self.role;
  header_.position = self.index;
  lanes_.reserve(kLinks);
  timer_ = loop_->After(kConnecting, [this] { Finish(); });
  for (std::size_t i = 0; i < kLinks; ++i) Connect();
}

ConnectionProbe::~ConnectionProbe() {
  *alive_ = false;
  loop_->Cancel(timer_);
}

void ConnectionProbe::Connect() {
  transport_->Connect(endpoint_, self_, [this, alive = alive_](Result<std::unique_ptr<Link>> result) {
    if (!*alive || finished_) return;
    if (result.ok()) return OnConnected(std::move(result).value());
    if (result.status().kind() != StatusKind::kUnavailable) return Finish();
    loop_->After(kRetry, [this, alive] {
      if (*alive && !finished_) Connect();
    });
  });
}

void ConnectionProbe::OnConnected(std::unique_ptr<Link> link) {
  link->handler = this;
  link->context = reinterpret_cast<void*>(lanes_.size());
  lanes_.push_back({std::move(link)});
  if (lanes_.size() < kLinks) return;
  loop_->Cancel(timer_);
  timer_ = loop_->After(kMeasuring, [this] { Finish(); });
  BeginRound();
}

void ConnectionProbe::BeginRound() {
  sending_ = true;
  round_began_ = loop_->Now();
  marked_at_ = TimePoint{};
  answered_bytes_ = marked_bytes_ = 0;
  for (std::size_t i = 0; i < kRounds[round_]; ++i) {
    lanes_[i].window = kFirstWindow;
    Fill(lanes_[i]);
  }
}

void ConnectionProbe::Fill(Lane& lane) {
  while (sending_ && lane.unanswered() < lane.window) {
    header_.step = StepId(lane.sent++);
    if (!lane.link->Send(header_, payload_, {}).ok()) return;  // OnClosed follows
  }
}

void ConnectionProbe::OnFrame(Link& link, Frame& frame) {
  if (finished_) return;
  Lane& lane = lanes_[reinterpret_cast<std::size_t>(link.context)];
  // A receipt for nothing would pass for speed.
  const bool next = lane.unanswered() > 0 && frame.header.step.value == lane.answered;
  if (frame.header.kind != FrameKind::kProbe || !frame.payload.empty() || !next) return Finish();
  ++lane.answered;
  if (sending_) {
    const TimePoint now = loop_->Now();
    const Nanos elapsed = now - round_began_;
    answered_bytes_ += kPayloadBytes;
    if (marked_bytes_ == 0 && (elapsed >= kUpToSpeed || answered_bytes_ >= kRoundBytes / 4)) {
      marked_at_ = now;
      marked_bytes_ = answered_bytes_;
    } else if (elapsed >= kRound || answered_bytes_ >= kRoundBytes) {
      sending_ = false;
      const double seconds = std::max(Seconds(now - marked_at_), 1e-9);
      rates_[kRounds[round_]].Add(static_cast<double>(answered_bytes_ - marked_bytes_) / seconds);
    }
    lane.window = std::min(lane.window + 1, kLastWindow);
    Fill(lane);
  }
  const bool idle = std::ranges::all_of(lanes_, [](const Lane& l) { return l.unanswered() == 0; });
  if (!sending_ && idle) EndRound();
}

// All that was sent has arrived.
void ConnectionProbe::EndRound() {
  if (++round_ == kRounds.size()) return Finish();
  BeginRound();
}

void ConnectionProbe::OnClosed(Link&, const Status&) { Finish(); }

// Posted: this may be a link's own callback.
void ConnectionProbe::Finish() {
  if (std::exchange(finished_, true)) return;
  sending_ = false;
  loop_->Cancel(timer_);
  loop_->Post([this, alive = alive_] {
    if (!*alive) return;
    lanes_.clear();
    const std::uint32_t connections = WorthwhileConnections(rates_);
    const Done done = done_;  // may end this object
    done({rates_[connections].best, connections});
  });
}

// ---- the other end ---------------------------------------------------------------------------------------------------

bool ProbeSink::full() const { return guests_.size() >= kMaxGuests; }

void ProbeSink::Add(std::unique_ptr<Link> link) {
  link->handler = this;
  Link* const key = link.get();
  const EventLoop::TimerId timer = loop_->After(kLife, [this, key] { guests_.erase(key); });
  guests_.emplace(key, Guest{std::move(link), timer});
}

void ProbeSink::Clear() {
  for (const auto& [link, guest] : guests_) loop_->Cancel(guest.timer);
  guests_.clear();
}

void ProbeSink::OnFrame(Link& link, Frame& frame) {
  const bool probes = frame.header.kind == FrameKind::kProbe && !frame.payload.empty();
  if (!probes || link.queued_bytes() > kMaxReceiptBytes) return link.Close();
  FrameHeader receipt;
  receipt.kind = FrameKind::kProbe;
  receipt.job_hash = frame.header.job_hash;
  receipt.epoch = frame.header.epoch;
  receipt.step = frame.header.step;
  (void)link.Send(receipt, {}, {});
}

void ProbeSink::OnClosed(Link& link, const Status&) {
  const auto found = guests_.find(&link);
  if (found == guests_.end()) return;
  loop_->Cancel(found->second.timer);
  guests_.erase(found);
}

}  // namespace tally
