#include "worker/agent/seat.h"

#include <chrono>
#include <utility>

namespace tally::agent {
namespace {

constexpr Nanos kLook = std::chrono::milliseconds(50);
constexpr Nanos kAbortBound = std::chrono::seconds(2);

}  // namespace

std::string SeatName(const Config& config) {
  return "rank " + std::to_string(config.worker.rank) + " of job " + config.job.name;
}

std::string SeatKey(const Config& config) {
  std::string key = SeatName(config) + " at " + config.coordinator.address;
  for (const std::string& server : config.servers.addresses) key += " " + server;
  return key;
}

Seat::Seat(const LoadedConfig& config, std::shared_ptr<Session> first, Logger* logger, std::function<void()> on_ended)
    : config_(config),
      name_(SeatName(config.config)),
      logger_(logger),
      on_ended_(std::move(on_ended)),
      session_(std::move(first)),
      thread_([this] { Run(); }) {}

Seat::~Seat() {
  Stop(Unavailable("the node's tally-worker ends"));
  thread_.join();
}

Result<bool> Seat::Offer(const LoadedConfig& config, const std::shared_ptr<Session>& next) {
  const std::lock_guard lock(mutex_);
  if (!vacant_ || stopping_ || !engine_->failure().ok()) return false;
  if (config.job_digest != config_.job_digest) {
    std::string differences;
    for (const std::string& line : DiffJobConfig(config_.job_text, config.job_text)) differences += "\n" + line;
    return Mismatch(next->name() + " comes back as " + name_ + " with other settings:" + differences);
  }
  vacant_ = false;
  session_ = next;
  changed_.notify_all();
  return true;
}

std::shared_ptr<Session> Seat::occupant() const {
  const std::lock_guard lock(mutex_);
  return session_;
}

bool Seat::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Seat::Stop(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(stopping_, true)) return;
  stop_reason_ = why;
  if (engine_ != nullptr) engine_->Abort(why);
  if (session_ != nullptr) session_->channel().StopReceiving(why);
  changed_.notify_all();
}

void Seat::SetLogLevel(const std::string& level) {
  const std::lock_guard lock(mutex_);
  log_level_ = level;
  if (engine_ != nullptr) (void)engine_->SetLogLevel(level);
}

void Seat::Run() {
  Result<std::unique_ptr<EmbeddedBackend>> backend = EmbeddedBackend::Start(config_);
  if (backend.ok()) {
    backend_ = std::move(backend).value();
    service_ = std::make_unique<Service>(backend_.get(), config_.config);
    ServeAll();
    service_.reset();
    backend_.reset();  // leaves the job
  } else {
    logger_->Warn("a training process did not get into its job", {{"seat", name_}, {"why", backend.status().text()}});
    (void)occupant()->channel().Send(Reply(backend.status()));
  }
  logger_->Info("seat ended", {{"seat", name_}});
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    session_.reset();
  }
  on_ended_();
}

void Seat::ServeAll() {
  {
    const std::lock_guard lock(mutex_);
    engine_ = &backend_->engine();
    if (!log_level_.empty()) (void)engine_->SetLogLevel(log_level_);
    if (stopping_) engine_->Abort(stop_reason_);
  }
  for (std::shared_ptr<Session> session = occupant(); session != nullptr; session = Next()) {
    logger_->Info("attached", {{"seat", name_}, {"who", session->name()}});
    const Service::End end = service_->Serve(session);
    const Status& how = end.lost.ok() ? end.turned_out : end.lost;
    logger_->Info("detached",
                  {{"seat", name_}, {"who", session->name()}, {"how", how.ok() ? "between steps" : how.text()}});
    if (end.left) break;
    if (!end.lost.ok()) AbortAndWait(end.lost);
    if (!backend_->engine().failure().ok()) break;
  }
  const std::lock_guard lock(mutex_);
  engine_ = nullptr;
}

// Others may wait for this rank meanwhile, so not for ever. A job that fails needs nobody back.
std::shared_ptr<Session> Seat::Next() {
  const Nanos bound = config_.config.worker.return_within;
  const auto deadline = std::chrono::steady_clock::now() + bound;
  std::unique_lock lock(mutex_);
  const std::string last = session_->name();
  vacant_ = true;
  while (vacant_) {
    if (stopping_ || !engine_->failure().ok()) {
      vacant_ = false;
      return nullptr;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      vacant_ = false;
      lock.unlock();
      AbortAndWait(PeerLost(last + " is gone and none came back within " +
                            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(bound).count()) +
                            " ms (worker.return_within)"));
      return nullptr;
    }
    changed_.wait_for(lock, kLook);
  }
  return session_;
}

// The other ranks are told before this one leaves.
void Seat::AbortAndWait(const Status& why) {
  backend_->engine().Abort(why);
  const auto deadline = std::chrono::steady_clock::now() + kAbortBound;
  while (backend_->engine().failure().ok() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace tally::agent
