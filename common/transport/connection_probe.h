// ConnectionProbe: how many connections to another host are worth having. It sends real bytes over 1, 2 and 4 of them for
// some milliseconds each, before the job's own frames flow; ProbeSink, the other end, answers each frame with its number.
// A network that limits each flow (clouds do) rewards several; any other gives one connection all there is.
// Thread: the loop's.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/control.h"
#include "common/loop.h"
#include "common/transport/link.h"

namespace tally {

// Rates of several rounds, bytes per second.
struct RateRange {
  double worst = 0, best = 0;
  std::uint32_t rounds = 0;

  void Add(double rate) {
    worst = rounds == 0 ? rate : std::min(worst, rate);
    best = std::max(best, rate);
    ++rounds;
  }
};

// `rates[k]` of k connections. More are worthwhile if they did better in their worst round than fewer in their best one:
// what is in doubt is one connection.
std::uint32_t WorthwhileConnections(std::span<const RateRange> rates);

class ConnectionProbe final : public LinkHandler {
 public:
  using Done = std::function<void(const MeasuredMessage&)>;

  static constexpr std::size_t kLinks = 4;           // the most that are tried
  static constexpr std::size_t kPayloadBytes = 32 << 10;  // of each frame

  // `done` runs once, later, on the loop, within kBound of the construction: with what was measured by then, in the worst
  // case one connection and no rate. `self`: as it dials data links. `transport` must outlive this.
  static constexpr Nanos kBound = std::chrono::milliseconds(1500);
  ConnectionProbe(EventLoop* loop, Transport* transport, std::string endpoint, const LinkIdentity& self, Done done);
  ~ConnectionProbe() override;

  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;

 private:
  struct Lane {
    std::unique_ptr<Link> link;
    std::uint32_t window = 0;  // frames that may be on their way
    std::uint64_t sent = 0, answered = 0;
    std::uint64_t unanswered() const { return sent - answered; }
  };

  void Connect();
  void OnConnected(std::unique_ptr<Link> link);
  void BeginRound();
  void Fill(Lane& lane);
  void EndRound();
  void Finish();

  EventLoop* const loop_;
  Transport* const transport_;
  const std::string endpoint_;
  LinkIdentity self_;
  const Done done_;
  const TimePoint started_;
  const std::vector<std::byte> payload_;  // before the links, which read it as long as they live
  FrameHeader header_;
  std::vector<Lane> lanes_;
  std::array<RateRange, kLinks + 1> rates_;  // by number of connections
  std::size_t round_ = 0;
  TimePoint round_began_{}, marked_at_{};
  std::uint64_t answered_bytes_ = 0, marked_bytes_ = 0;  // in this round; when it had come up to speed
  bool sending_ = false, finished_ = false;
  EventLoop::TimerId timer_ = 0;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

// Links that only probe, at the end that was dialled: each is kept for kLife at most.
class ProbeSink final : public LinkHandler {
 public:
  static constexpr Nanos kLife = std::chrono::seconds(5);

  explicit ProbeSink(EventLoop* loop) : loop_(loop) {}
  ~ProbeSink() override { Clear(); }

  bool full() const;
  void Add(std::unique_ptr<Link> link);
  void Clear();

  void OnFrame(Link& link, Frame& frame) override;
  void OnClosed(Link& link, const Status& why) override;

 private:
  struct Guest {
    std::unique_ptr<Link> link;
    EventLoop::TimerId timer = 0;
  };

  EventLoop* const loop_;
  std::map<Link*, Guest> guests_;
};

}  // namespace tally
