#include "common/schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <string>

#include "common/schedule/layout.h"
#include "common/schedule/simulation_state.h"

namespace tally {
namespace {

using namespace simulation;

class Simulator {
 public:
  Simulator(const Cluster& cluster, const SimulatedExchange& exchange, std::uint32_t period, std::uint32_t simulated,
            std::uint32_t chunks)
      : cluster_(cluster), exchange_(exchange), map_(cluster),
        n_(exchange.node_stages ? map_.worker_hosts() : cluster.workers),
        k_(exchange.server_shares.empty() ? 0 : cluster.servers),
        per_position_(exchange.node_stages ? cluster.workers_per_host : 1), chunks_(chunks), period_(period),
        positions_(simulated), servers_(Share(k_, simulated)),
        workers_(simulated == n_ ? cluster.workers : simulated * per_position_),
        worker_hosts_(simulated == n_ ? map_.worker_hosts()
                                      : exchange.node_stages ? simulated : simulated / cluster.workers_per_host),
        leaves_(simulated == n_ || !map_.uplinks_matter() ? map_.leaves() : worker_hosts_ / cluster.leaf_hosts) {
    OrderOwners();
    const std::size_t processes = workers_ + servers_, hosts = worker_hosts_ + servers_;
    first_link_ = {0, processes, 2 * processes, 2 * processes + hosts, 2 * (processes + hosts),
                   2 * (processes + hosts) + leaves_};
    free_.assign(first_link_[5] + leaves_, 0);
    load_.assign(free_.size(), 0);
    rate_.assign(free_.size(), 0);
    lanes_.resize(2 * processes);
    counts_.assign(std::size_t{servers_ + positions_} * chunks_, 0);
    if (exchange.schedule != nullptr) progress_.resize(std::size_t{positions_} * owners() * chunks_);
    if (per_position_ > 1) local_.assign(std::size_t{positions_} * owners() * chunks_, 0);
  }

  Result<SimulatedTime> Run() {
    for (std::uint32_t lane = 0; lane < 2 * workers_; ++lane) Wake(lane, 0);
    BeginAlone();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      switch (event.type) {
        case EventType::kDeliver: TALLY_RETURN_IF_ERROR(Deliver(event.what, event.at)); break;
        case EventType::kLane: NextOfLane(event.what, event.at); break;
        default: Hop(event.what, event.at); break;
      }
    }
    return Report();
  }

 private:
  std::uint32_t owners() const { return k_ + (servers_only_ ? 0 : n_); }
  // The i-th of `from`'s share of `all`, where i may count beyond: places that rotate together.
  std::uint32_t Share(std::uint32_t all, std::uint64_t i) const {
    return static_cast<std::uint32_t>(i * all / n_);
  }
  double ShareOf(std::uint32_t owner) const {
    if (exchange_.schedule != nullptr) return 1.0 / n_;
    return owner < k_ ? exchange_.server_shares[owner] : exchange_.position_shares[owner - k_];
  }
  bool IsServer(std::uint32_t process) const { return process >= cluster_.workers; }
  std::uint32_t PositionOf(std::uint32_t worker) const { return worker / per_position_; }
  std::uint32_t WorkersAt(std::uint32_t position) const {
    return per_position_ == 1 ? 1 : map_.WorkersOn(position);
  }
  // Which process speaks for a position about a chunk.
  std::uint32_t Carrier(std::uint32_t position, std::uint32_t chunk) const {
    return position * per_position_ + chunk % WorkersAt(position);
  }
  std::uint32_t OwnerProcess(std::uint32_t owner, std::uint32_t chunk) const {
    return owner < k_ ? cluster_.workers + owner : Carrier(owner - k_, chunk);
  }
  std::size_t SlabOf(std::uint32_t position, std::uint32_t owner, std::uint32_t chunk) const {
    return (std::size_t{position} * owners() + owner) * chunks_ + chunk;
  }

  // Position p's order of owners: p-1, p-2, … (DESIGN §2), servers evenly between them; relative, so one for all.
  void OrderOwners() {
    servers_only_ = exchange_.schedule == nullptr && exchange_.position_shares.empty();
    for (std::uint32_t j = 0; j < n_; ++j) {
      if (!servers_only_) order_.push_back(k_ + j);
      for (std::uint32_t s = Share(k_, j); s < Share(k_, j + 1); ++s) order_.push_back(s);
    }
  }
  std::uint32_t OwnerAt(std::uint32_t position, std::uint32_t place) const {
    const std::uint32_t entry = order_[place];
    if (entry >= k_) return k_ + (position + 2 * n_ - 1 - (entry - k_)) % n_;
    return (Share(k_, position) + 2 * k_ - 1 - entry) % k_;
  }

  // ---- links and lanes

  std::uint32_t Reduce(const ClusterLink& link) const {
    std::size_t index = link.index;
    switch (link.kind) {
      case LinkKind::kInsideOut:
      case LinkKind::kInsideIn: index = Represent(link.index); break;
      case LinkKind::kNicOut:
      case LinkKind::kNicIn:
        index = link.index < map_.worker_hosts() ? link.index % worker_hosts_
                                                 : worker_hosts_ + (link.index - map_.worker_hosts()) % servers_;
        break;
      case LinkKind::kLeafUp:
      case LinkKind::kLeafDown: index %= leaves_; break;
    }
    return static_cast<std::uint32_t>(first_link_[static_cast<std::size_t>(link.kind)] + index);
  }
  std::uint32_t Represent(std::uint32_t process) const {
    return IsServer(process) ? workers_ + (process - cluster_.workers) % servers_ : process % workers_;
  }
  std::uint32_t LaneOf(std::uint32_t from, std::uint32_t to) const {
    return 2 * Represent(from) + (map_.HostOf(from) == map_.HostOf(to) ? 0 : 1);
  }

  // Equal for messages that a rotation by `period_` maps onto each other, whichever of them are simulated.
  std::uint64_t KeyOf(const Message& m) const {
    const auto around = [](std::uint64_t a, std::uint64_t b, std::uint64_t n) { return (a + n - b % n) % n; };
    std::uint64_t owner = 0, distance = 0, sender = 0;
    if (IsServer(m.from)) {
      const std::uint32_t server = m.from - cluster_.workers;
      distance = around(PositionOf(m.to), std::uint64_t{server} * n_ / k_, n_);
      sender = server % std::max(1u, Share(k_, period_));
    } else {
      const std::uint32_t position = PositionOf(m.from);
      owner = m.owner >= k_ ? around(m.owner - k_, position, n_) : n_ + around(m.owner, Share(k_, position), k_);
      distance = IsServer(m.to) ? 0 : around(m.to, m.from, cluster_.workers);
      sender = m.from % (std::uint64_t{period_} * per_position_);
    }
    return owner << 46 | distance << 29 | sender << 12 | (m.chunk & 0xFFF);
  }

  std::uint32_t NewMessage(Kind kind, std::uint32_t owner, std::uint32_t chunk, std::uint32_t from, std::uint32_t to) {
    std::uint32_t id = unused_;
    if (id == kNone) {
      id = static_cast<std::uint32_t>(messages_.size());
      messages_.emplace_back();
    } else {
      unused_ = messages_[id].next;
    }
    Message m;
    m.kind = kind;
    m.owner = owner;
    m.chunk = chunk;
    m.from = from;
    m.to = to;
    const bool inside = kind == Kind::kLocalPart || kind == Kind::kLocalTotal;
    const bool up = kind == Kind::kPush || kind == Kind::kPartial;
    m.bytes = (inside ? exchange_.bytes : up ? exchange_.up_bytes : exchange_.down_bytes) * ShareOf(owner) / chunks_;
    const ClusterPath path = map_.Path(from, to);
    m.hops = static_cast<std::uint8_t>(path.count);
    for (std::uint32_t i = 0; i < path.count; ++i) {
      m.links[i] = Reduce(path.links[i]);
      load_[m.links[i]] += m.bytes;
      rate_[m.links[i]] = map_.BytesPerS(path.links[i]);
    }
    m.key = KeyOf(m);
    messages_[id] = m;
    ++report_.messages;
    return id;
  }

  void Send(Kind kind, std::uint32_t owner, std::uint32_t chunk, std::uint32_t from, std::uint32_t to, double now) {
    const std::uint32_t id = NewMessage(kind, owner, chunk, from, to);
    Lane& lane = lanes_[LaneOf(from, to)];
    (lane.head == kNone ? lane.head : messages_[lane.tail].next) = id;
    lane.tail = id;
    Wake(LaneOf(from, to), now);
  }
  void Wake(std::uint32_t lane, double now) {
    if (std::exchange(lanes_[lane].busy, true)) return;
    events_.push({now, lane, EventType::kLane, lane});
  }

  void NextOfLane(std::uint32_t id, double now) {
    Lane& lane = lanes_[id];
    lane.busy = false;
    std::uint32_t next = lane.head;
    if (next != kNone) {
      lane.head = messages_[next].next;
      messages_[next].next = kNone;
    } else {
      next = Fresh(id);
    }
    if (next == kNone) return;
    lane.busy = true;
    Hop(next, now);
    events_.push({messages_[next].left, id, EventType::kLane, id});
  }

  // The message's head is at its next link.
  void Hop(std::uint32_t id, double now) {
    Message& m = messages_[id];
    const std::uint32_t link = m.links[m.hop++];
    const double start = std::max(now, free_[link]);
    free_[link] = start + (rate_[link] > 0 ? m.bytes / rate_[link] : 0);
    m.left = std::max(m.left, free_[link]);
    if (m.hop < m.hops) {
      const auto next = static_cast<std::uint8_t>(static_cast<std::uint8_t>(EventType::kHop) + m.hop);
      events_.push({start, m.key, static_cast<EventType>(next), id});
    } else {
      const bool inside = m.hops == 2 && map_.HostOf(m.from) == map_.HostOf(m.to);
      events_.push({m.left + (inside ? cluster_.inside_alpha_s : cluster_.alpha_s), m.key, EventType::kDeliver, id});
    }
  }

  // ---- what a process starts by itself

  std::uint32_t Fresh(std::uint32_t lane_id) {
    Lane& lane = lanes_[lane_id];
    const std::uint32_t process = lane_id / 2;
    if (process >= workers_) return kNone;
    const bool nic = lane_id % 2 == 1;
    const std::uint32_t position = PositionOf(process), local = WorkersAt(position);
    if (local > 1 && nic) return kNone;
    for (const std::uint64_t end = std::uint64_t{chunks_} * order_.size(); lane.fresh < end;) {
      const auto chunk = static_cast<std::uint32_t>(lane.fresh / order_.size());
      const std::uint32_t owner = OwnerAt(position, static_cast<std::uint32_t>(lane.fresh++ % order_.size()));
      if (ShareOf(owner) == 0) continue;
      if (local > 1) {
        const std::uint32_t carrier = Carrier(position, chunk);
        if (carrier != process) return NewMessage(Kind::kLocalPart, owner, chunk, process, carrier);
        continue;
      }
      std::uint32_t to = OwnerProcess(owner, chunk);
      if (exchange_.schedule != nullptr) {
        Generate(owner, position);
        if (steps_.front().op != StepOp::kSendPartial) continue;
        to = Carrier(steps_.front().peer.value, chunk);
      }
      if (to == process || (map_.HostOf(to) != map_.HostOf(process)) != nic) continue;
      if (exchange_.schedule == nullptr) return NewMessage(Kind::kPush, owner, chunk, process, to);
      progress_[SlabOf(position, owner, chunk)].Step();
      return NewMessage(Kind::kPartial, owner, chunk, process, to);
    }
    return kNone;
  }

  // A position that waits for nobody: alone, with its own slabs.
  void BeginAlone() {
    for (std::uint32_t position = 0; n_ == 1 && position < n_; ++position) {
      if (WorkersAt(position) > 1 || servers_only_) continue;
      for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) Total(position, k_ + position, chunk, 0);
    }
  }

  // ---- what arrives

  Status Deliver(std::uint32_t id, double now) {
    Message m = messages_[id];
    messages_[id].next = std::exchange(unused_, id);
    // To the process that stands for the receiver's class.
    if (positions_ < n_) {
      const std::uint32_t turns =
          IsServer(m.to) ? (m.to - cluster_.workers) / servers_ : PositionOf(m.to) / positions_;
      m.to = IsServer(m.to) ? m.to - turns * servers_ : m.to - turns * positions_ * per_position_;
      m.from = IsServer(m.from)
                   ? cluster_.workers + (m.from - cluster_.workers + k_ - turns * servers_ % k_) % k_
                   : (m.from + cluster_.workers - turns * positions_ * per_position_) % cluster_.workers;
      m.owner = m.owner < k_ ? (m.owner + k_ - turns * servers_ % k_) % k_
                             : k_ + (m.owner - k_ + n_ - turns * positions_) % n_;
    }
    const std::uint32_t position = IsServer(m.to) ? 0 : PositionOf(m.to);
    switch (m.kind) {
      case Kind::kLocalPart:
        if (++local_[SlabOf(position, m.owner, m.chunk)] + 1u == WorkersAt(position)) {
          return Contribute(position, m.owner, m.chunk, now);
        }
        return Status::Ok();
      case Kind::kPush: CountIn(m.owner, m.chunk, now); return Status::Ok();
      case Kind::kReply: Total(position, m.owner, m.chunk, now); return Status::Ok();
      case Kind::kPartial:
      case Kind::kTotal: return Arrive(position, m, now);
      case Kind::kLocalTotal: report_.seconds = std::max(report_.seconds, now); return Status::Ok();
    }
    return Status::Ok();
  }

  // A position's own sum is complete; only after node stages, others' is there from the start.
  Status Contribute(std::uint32_t position, std::uint32_t owner, std::uint32_t chunk, double now) {
    if (exchange_.schedule != nullptr) {
      progress_[SlabOf(position, owner, chunk)].Begin();
      return Advance(position, owner, chunk, now);
    }
    if (owner == k_ + position) {
      CountIn(owner, chunk, now);
    } else {
      Send(Kind::kPush, owner, chunk, Carrier(position, chunk), OwnerProcess(owner, chunk), now);
    }
    return Status::Ok();
  }

  void CountIn(std::uint32_t owner, std::uint32_t chunk, double now) {
    const bool server = owner < k_;
    const std::size_t row = server ? owner : servers_ + (owner - k_);
    const std::uint32_t own = server || WorkersAt(owner - k_) > 1 ? 0 : 1;
    if (++counts_[row * chunks_ + chunk] + own < n_) return;
    const std::uint32_t from = OwnerProcess(owner, chunk);
    const std::uint32_t first =
        server ? static_cast<std::uint32_t>(std::uint64_t{owner} * n_ / k_) : owner - k_ + 1;
    for (std::uint32_t i = 0; i < n_; ++i) {
      const std::uint32_t position = (first + i) % n_;
      if (owner == k_ + position) {
        Total(position, owner, chunk, now);
      } else {
        Send(Kind::kReply, owner, chunk, from, Carrier(position, chunk), now);
      }
    }
  }

  void Generate(std::uint32_t owner, std::uint32_t position) {
    exchange_.schedule->generate(Position{owner}, Position{position}, n_, &steps_);
  }

  Status Arrive(std::uint32_t position, const Message& m, double now) {
    Generate(m.owner, position);
    const ScheduleStep awaited{m.kind == Kind::kPartial ? StepOp::kReceiveAdd : StepOp::kReceiveTotal,
                               Position{PositionOf(m.from)}};
    const auto step = std::find(steps_.begin(), steps_.end(), awaited);
    if (step == steps_.end() || steps_.size() > Progress::kMaxSteps) return Stuck("a message that nobody waits for");
    progress_[SlabOf(position, m.owner, m.chunk)].Arrive(static_cast<std::size_t>(step - steps_.begin()));
    return Advance(position, m.owner, m.chunk, now);
  }

  Status Advance(std::uint32_t position, std::uint32_t owner, std::uint32_t chunk, double now) {
    Progress& progress = progress_[SlabOf(position, owner, chunk)];
    if (WorkersAt(position) > 1 && !progress.begun()) return Status::Ok();
    Generate(owner, position);
    if (steps_.size() > Progress::kMaxSteps) {
      return Stuck("a program of more than " + std::to_string(Progress::kMaxSteps) + " steps");
    }
    const std::uint32_t self = Carrier(position, chunk);
    while (progress.next() < steps_.size()) {
      const ScheduleStep step = steps_[progress.next()];
      const bool receives = step.op == StepOp::kReceiveAdd || step.op == StepOp::kReceiveTotal;
      if (receives && !progress.arrived(progress.next())) break;
      progress.Step();
      if (step.op == StepOp::kSendPartial || step.op == StepOp::kSendTotal) {
        const Kind kind = step.op == StepOp::kSendPartial ? Kind::kPartial : Kind::kTotal;
        Send(kind, owner, chunk, self, Carrier(step.peer.value, chunk), now);
      } else if (step.op != StepOp::kReceiveAdd) {
        Total(position, owner, chunk, now);
      }
    }
    return Status::Ok();
  }

  void Total(std::uint32_t position, std::uint32_t owner, std::uint32_t chunk, double now) {
    report_.seconds = std::max(report_.seconds, now);
    ++totals_;
    const std::uint32_t self = Carrier(position, chunk), local = WorkersAt(position);
    for (std::uint32_t i = 1; i < local; ++i) {
      const std::uint32_t to = position * per_position_ + (chunk + i) % local;
      Send(Kind::kLocalTotal, owner, chunk, self, to, now);
    }
  }

  static Status Stuck(const std::string& what) { return Internal("the simulated schedule has " + what); }

  Result<SimulatedTime> Report() {
    std::uint64_t owners_used = 0;
    for (std::uint32_t owner = 0; owner < owners(); ++owner) owners_used += ShareOf(owner) > 0 ? 1u : 0u;
    if (totals_ != owners_used * positions_ * chunks_) {
      return Stuck(std::to_string(totals_) + " totals at its end, expected " +
                   std::to_string(owners_used * positions_ * chunks_));
    }
    const double times = static_cast<double>(n_) / positions_;
    const auto sum = [&](LinkKind kind) {
      const auto k = static_cast<std::size_t>(kind);
      const auto end = k + 1 < first_link_.size() ? first_link_[k + 1] : load_.size();
      return times * std::accumulate(load_.begin() + static_cast<std::ptrdiff_t>(first_link_[k]),
                                     load_.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
    };
    report_.nic_sent_bytes = sum(LinkKind::kNicOut);
    report_.nic_received_bytes = sum(LinkKind::kNicIn);
    report_.leaf_bytes = sum(LinkKind::kLeafUp);
    report_.inside_bytes = sum(LinkKind::kInsideOut);
    for (std::size_t link = 0; link < load_.size(); ++link) {
      if (rate_[link] > 0) report_.busiest_link_s = std::max(report_.busiest_link_s, load_[link] / rate_[link]);
    }
    report_.by_classes = positions_ < n_;
    report_.chunks_per_owner = chunks_;
    return report_;
  }

  const Cluster& cluster_;
  const SimulatedExchange& exchange_;
  const ClusterMap map_;
  const std::uint32_t n_, k_, per_position_, chunks_, period_;
  const std::uint32_t positions_, servers_, workers_, worker_hosts_, leaves_;  // simulated
  bool servers_only_ = false;
  std::vector<std::uint32_t> order_;
  std::array<std::size_t, 6> first_link_{};  // by LinkKind
  std::vector<double> free_, load_, rate_;   // by link
  std::vector<Lane> lanes_;                  // inside and NIC of each process
  std::vector<Message> messages_;
  std::uint32_t unused_ = kNone;
  std::vector<std::uint32_t> counts_;  // contributions by owner and chunk
  std::vector<std::uint16_t> local_;   // parts of a host by position and slab
  std::vector<Progress> progress_;     // by position and slab
  std::vector<ScheduleStep> steps_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::uint64_t totals_ = 0;
  SimulatedTime report_;
};

}  // namespace

Result<SimulatedTime> Simulate(const Cluster& cluster, const SimulatedExchange& exchange,
                               const SimulationOptions& options) {
  TALLY_RETURN_IF_ERROR(CheckCluster(cluster));
  const ClusterMap map(cluster);
  const std::uint64_t n = exchange.node_stages ? map.worker_hosts() : cluster.workers;
  TALLY_RETURN_IF_ERROR(CheckExchange(cluster, exchange));
  const std::uint32_t period = SymmetryPeriod(cluster, exchange);
  const std::uint64_t owners =
      exchange.schedule != nullptr ? n : exchange.server_shares.size() + exchange.position_shares.size();
  const std::uint64_t local = exchange.node_stages ? cluster.workers_per_host : 1;
  // Of one position, with one chunk per owner.
  const std::uint64_t each = 2 * owners * local;
  const auto slabs = CutTensor(static_cast<std::uint64_t>(exchange.bytes / 4), cluster.workers).count;
  const std::uint64_t most = std::max({std::uint64_t{1}, (slabs + owners - 1) / owners, local});

  const std::uint64_t chunks = std::clamp(options.pipeline_messages / (n * each), local, most);
  using Detail = SimulationOptions::Detail;
  const bool classes = options.detail == Detail::kClasses || (options.detail == Detail::kAuto && period < n);
  const std::uint64_t positions = classes ? period : n;
  const std::uint64_t bound = classes && period < n ? options.max_class_messages : options.max_full_messages;
  if (positions * each * chunks > bound) {
    std::string text = "simulating " + std::to_string(cluster.workers) + " workers would take " +
                       std::to_string(positions * each * chunks) + " messages, more than the bound of " +
                       std::to_string(bound);
    if (period == n) text += "; nothing in this cluster or exchange repeats that could shorten it";
    return Unsupported(std::move(text));
  }
  return Simulator(cluster, exchange, period, static_cast<std::uint32_t>(positions), static_cast<std::uint32_t>(chunks))
      .Run();
}

}  // namespace tally
