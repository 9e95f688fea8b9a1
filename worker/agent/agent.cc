#include "worker/agent/agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "common/transport/unix_sockets.h"
#include "common/version.h"

namespace tally::agent {
namespace {

constexpr std::size_t kMaxGuests = 256, kMaxSeats = 64;
constexpr int kMaxAccepts = 16;  // in a turn: those that are here are looked after, too
constexpr Nanos kHelloBound = std::chrono::seconds(5);
constexpr Nanos kTakenBound = std::chrono::seconds(1);  // for a process that was killed to be seen to be gone
constexpr Nanos kTick = std::chrono::seconds(1), kShortTick = std::chrono::milliseconds(20);

int Milliseconds(Nanos time) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
}

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

Result<std::unique_ptr<Agent>> Agent::Start(const Config& config, Logger* logger) {
  std::string name = SocketName(config.worker.agent);
  TALLY_ASSIGN_OR_RETURN(UniqueFd listener, ListenUnix(name, SOCK_SEQPACKET));
  return std::unique_ptr<Agent>(new Agent(config, logger, std::move(listener), std::move(name)));
}

Agent::Agent(const Config& config, Logger* logger, UniqueFd listener, std::string name)
    : config_(config),
      logger_(logger),
      name_(std::move(name)),
      listener_(std::move(listener)),
      log_level_(config.log.level),
      thread_([this] { Watch(); }) {}

Agent::~Agent() {
  (void)Stop(Nanos{0});
  if (thread_.joinable()) thread_.join();
}

void Agent::SetAlive(std::function<void()> alive) {
  const std::lock_guard lock(mutex_);
  alive_ = std::move(alive);
}

void Agent::SetLogLevel(const std::string& level) {
  const std::lock_guard lock(mutex_);
  log_level_ = level;
  for (const auto& [key, seat] : seats_) seat->SetLogLevel(level);
}

bool Agent::Stop(Nanos bound) {
  stopping_ = true;
  wake_.Wake();
  const TimePoint deadline = Now() + bound;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (seats_.empty()) return true;
    }
    if (Now() >= deadline) return false;
    std::this_thread::sleep_for(kShortTick);
  }
}

void Agent::Watch() {
  std::vector<pollfd> polled;
  TimePoint last_alive{};
  bool told = false;
  while (true) {
    const bool stopping = stopping_;
    if (stopping && !std::exchange(told, true)) {
      listener_ = UniqueFd();
      for (const auto& [name, seat] : seats_) seat->Stop(Unavailable("the node's tally-worker was asked to stop"));
    }
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(seats_, [](const auto& entry) { return entry.second->ended(); });
      if (stopping && seats_.empty()) return;
      if (alive_ && Now() - last_alive >= kTick) {
        last_alive = Now();
        alive_();
      }
    }
    bool waiting = false;
    const bool room = guests_.size() < kMaxGuests && Now() >= accept_after_;
    polled = {{wake_.fd(), POLLIN, 0}, {room ? listener_.get() : -1, POLLIN, 0}};
    for (const Guest& guest : guests_) {
      waiting |= guest.state != Guest::kSeated;
      const int events =
          (guest.state == Guest::kSilent ? POLLIN : POLLRDHUP) | (guest.session->channel().queued() ? POLLOUT : 0);
      polled.push_back({guest.session->channel().fd(), static_cast<short>(events), 0});
      polled.push_back({guest.session->process_end(), POLLIN, 0});
    }
    (void)poll(polled.data(), polled.size(), Milliseconds(waiting || stopping ? kShortTick : kTick));
    if (polled[0].revents != 0) wake_.Clear();
    auto guest = guests_.begin();
    for (std::size_t i = 2; i < polled.size(); i += 2) {
      const bool stays = Look(*guest, polled[i].revents, polled[i + 1].revents != 0);
      guest = stays ? std::next(guest) : guests_.erase(guest);
    }
    if (polled[1].revents != 0 && !stopping) Accept();
  }
}

void Agent::Accept() {
  for (int i = 0; i < kMaxAccepts && guests_.size() < kMaxGuests; ++i) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ECONNABORTED || errno == EINTR) return;
      logger_->Warn("connections have to wait", {{"why", ErrnoText(errno)}});  // no descriptor, no memory
      accept_after_ = Now() + kTick;
      return;
    }
    if (const Status same = CheckSameUser(fd.get()); !same.ok()) {
      TurnAway(same);
      continue;
    }
    auto session = std::make_shared<Session>(std::move(fd), [this] { wake_.Wake(); });
    guests_.push_back({std::move(session), Guest::kSilent, {}, Now()});
  }
}

// Who asks often does not fill the log.
void Agent::TurnAway(const Status& why) {
  ++strangers_;
  if (Now() - strangers_told_ < kTick) return;
  strangers_told_ = Now();
  logger_->Warn("connections turned away", {{"count", std::exchange(strangers_, 0)}, {"last", why.text()}});
}

bool Agent::Look(Guest& guest, short events, bool ended) {
  Session& session = *guest.session;
  const bool gone = ended || (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
  if ((events & POLLOUT) != 0) (void)session.channel().Flush();
  if (guest.state == Guest::kSeated) {
    if (gone) session.Gone();
    return !gone;  // the seat deals with it
  }
  Status status;
  if (gone) return false;
  if (guest.state == Guest::kSilent) {
    if ((events & POLLIN) != 0) {
      status = Hear(guest);
      if (status.ok()) guest.since = Now();
    } else if (Now() - guest.since > kHelloBound) {
      status = Timeout("nothing was heard within " + std::to_string(Milliseconds(kHelloBound)) + " ms");
    }
  }
  if (status.ok() && guest.state == Guest::kWaiting) status = Place(guest);
  if (status.ok()) return true;
  logger_->Warn("a process was turned away", {{"who", session.name()}, {"why", status.text()}});
  (void)session.channel().Send(Reply(status));
  return false;
}

Status Agent::Hear(Guest& guest) {
  TALLY_ASSIGN_OR_RETURN(const Channel::Received received, guest.session->channel().Receive());
  const auto* attach = std::get_if<Attach>(&received.message);
  if (attach == nullptr) return Corrupt("expected to be asked for a seat first");
  if (attach->protocol != kProtocol || attach->version != kVersion) {
    return Mismatch("tally-worker has version " + std::string(kVersion) + " (protocol " + std::to_string(kProtocol) +
                    "), the " + guest.session->name() + " version " + attach->version + " (protocol " +
                    std::to_string(attach->protocol) + "): install the same, and start tally-worker again");
  }
  ConfigSources sources;
  sources.text = attach->config;
  const std::uint64_t half =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  const std::uint64_t cap = config_.worker.memory_cap_bytes != 0 ? config_.worker.memory_cap_bytes : half;
  sources.overrides = {"worker.attach=embedded", "worker.memory_cap=" + std::to_string(cap),
                       "log.level=" + config_.log.level, "log.file=" + config_.log.file,
                       std::string("log.format=") + (config_.log.format == LogFormat::kJson ? "json" : "logfmt")};
  Result<LoadedConfig> loaded = LoadConfig(sources);
  if (!loaded.ok()) return loaded.status().WithContext("settings of the " + guest.session->name());
  guest.config = std::move(loaded).value();
  guest.state = Guest::kWaiting;
  return Status::Ok();
}

Status Agent::Place(Guest& guest) {
  const std::string name = SeatName(guest.config.config), key = SeatKey(guest.config.config);
  const auto found = seats_.find(key);
  if (stopping_) return Unavailable("tally-worker was asked to stop");
  if (found == seats_.end()) {
    if (seats_.size() >= kMaxSeats) {
      return Unavailable("all " + std::to_string(kMaxSeats) + " seats of this tally-worker are taken");
    }
    const std::lock_guard lock(mutex_);
    guest.config.config.log.level = log_level_;
    seats_[key] = std::make_unique<Seat>(guest.config, guest.session, logger_, [this] { wake_.Wake(); });
    guest.state = Guest::kSeated;
    return Status::Ok();
  }
  TALLY_ASSIGN_OR_RETURN(const bool taken, found->second->Offer(guest.config, guest.session));
  if (taken) {
    guest.state = Guest::kSeated;
    return Status::Ok();
  }
  const std::shared_ptr<Session> occupant = found->second->occupant();
  const bool lives = occupant != nullptr && !occupant->gone();
  if (Now() - guest.since <= (lives ? kTakenBound : guest.config.config.membership.join_timeout)) return Status::Ok();
  return Unavailable(name + (lives ? " is taken by " + occupant->name() + ", which lives"
                                   : " is still what a training process that is gone has left"));
}

}  // namespace tally::agent
