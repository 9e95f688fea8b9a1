#include "server/server.h"

#include <unistd.h>

#include <algorithm>
#include <cfenv>
#include <future>
#include <random>
#include <utility>

#include "common/node_key.h"
#include "common/shared_memory.h"
#include "common/topology/bandwidth_matrix.h"
#include "common/topology/own_place.h"
#include "common/topology/pin.h"
#include "common/transport/interfaces.h"
#include "common/transport/local_address.h"
#include "common/transport/rate_limiter.h"
#include "common/transport/unix_sockets.h"
#include "common/transport/wire_speed.h"
#include "common/version.h"

namespace tally {
namespace {

constexpr Nanos kRejoin = std::chrono::seconds(1);
constexpr std::uint64_t kPoolBytes = std::uint64_t{1} << 30;
constexpr Nanos kPoll = std::chrono::milliseconds(5);

std::string HostName() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

class Server::Signpost final : public Acceptor {
 public:
  explicit Signpost(std::string text) : text_(std::move(text)) {}
  Status OnHello(const LinkIdentity&) override { return Mismatch(text_); }
  void OnAccepted(std::unique_ptr<Link>) override {}

 private:
  std::string text_;
};

Server::Server(const Config& config, Logger* logger)
    : config_(config),
      logger_(logger),
      // Links in memory have no emulated NIC.
      pool_(kPoolBytes, config.link.shm && config.link.rate_bits == 0 ? std::make_shared<SharedMemory>() : nullptr) {}

Result<std::unique_ptr<Server>> Server::Start(const Config& config, Logger* logger) {
  std::unique_ptr<Server> server(new Server(config, logger));
  TALLY_RETURN_IF_ERROR(server->Begin());
  server->thread_ = std::thread([raw = server.get()] {
    // Sums keep denormals and round to nearest, whatever mode the thread inherits.
    std::fesetenv(FE_DFL_ENV);
    PinThread(raw->config_.topology.pin, SpeedOfWire(0, raw->nic_host_).nic, *raw->logger_);
    raw->loop_.Run();
  });
  return server;
}

Server::~Server() {
  if (thread_.joinable()) {
    loop_.Stop();
    thread_.join();
  }
  membership_.reset();
  links_.reset();
  coordinator_host_.reset();
  data_transport_.reset();
  shm_transport_.reset();
  control_transport_.reset();
}

Status Server::Begin() {
  std::random_device device;
  incarnation_ = (std::uint64_t{device()} << 32 | device()) | 1;
  TALLY_ASSIGN_OR_RETURN(const EndpointParts where, ParseEndpoint(config_.server.listen));
  LinkOptions options;
  options.payload_crc =
      config_.link.payload_crc == "on" || (config_.link.payload_crc == "auto" && !IsLoopbackAddress(where.host));
  options.socket_buffer_bytes = static_cast<std::uint32_t>(config_.link.socket_buffer_bytes);
  options.connect_timeout = config_.membership.join_timeout;
  TALLY_ASSIGN_OR_RETURN(control_transport_, MakeTransport("tcp", &loop_, &pool_, options));
  if (config_.link.rate_bits > 0) {
    TALLY_ASSIGN_OR_RETURN(options.limiter, RateLimiter::Make(config_.link.rate_bits, config_.link.nic));
  }
  TALLY_ASSIGN_OR_RETURN(data_transport_, MakeTransport(config_.servers.transport, &loop_, &pool_, options));

  if (config_.server.index == 0) {
    CoordinatorOptions coordinator;
    coordinator.version = kVersion;
    coordinator.incarnation = incarnation_;
    if (const std::string& matrix = config_.topology.matrix; !matrix.empty()) {
      TALLY_ASSIGN_OR_RETURN(coordinator.matrix, ReadBandwidthMatrix(matrix));
    }
    coordinator_host_ = std::make_unique<CoordinatorHost>(&loop_, logger_, NicRateBits(config_), coordinator);
    TALLY_ASSIGN_OR_RETURN(control_address_, coordinator_host_->Listen(control_transport_.get(), config_.server.listen,
                                                                       Role::kServer));
    coordinator_ = control_address_;
  } else {
    if (config_.servers.addresses.empty()) {
      return InvalidArgument("server " + std::to_string(config_.server.index) +
                             " needs servers.addresses to find the first server, which coordinates");
    }
    coordinator_ = config_.coordinator.address.empty() ? config_.servers.addresses.front() : config_.coordinator.address;
    LinkIdentity self;
    self.role = Role::kServer;
    self.index = config_.server.index;
    self.control = true;
    signpost_ = std::make_unique<Signpost>("this is server " + std::to_string(config_.server.index) +
                                           ", which does not coordinate; join at " + coordinator_);
    TALLY_ASSIGN_OR_RETURN(control_address_,
                           control_transport_->Listen(config_.server.listen, self, signpost_.get()));
  }

  TALLY_RETURN_IF_ERROR(ListenForData(where, options));
  loop_.Post([this] { Join(); });
  return Status::Ok();
}

// `where`: the control address, `options` those of links that are paced.
Status Server::ListenForData(const EndpointParts& where, const LinkOptions& options) {
  links_ = std::make_unique<DataLinks>(&loop_, this, logger_, config_.link.egress_bytes);
  const std::string listen_host = where.host.find(':') == std::string::npos ? where.host : "[" + where.host + "]";
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                         DataAddresses(config_.server.data_bind, config_.network.interfaces, config_.network.insecure,
                                       listen_host));
  nic_host_ = hosts.front();
  TALLY_ASSIGN_OR_RETURN(switch_path_, OwnSwitchPath(config_.topology));
  LinkIdentity self;
  self.role = Role::kServer;
  self.index = config_.server.index;
  self.incarnation = incarnation_;
  for (const std::string& host : hosts) {
    for (std::uint32_t i = 0; i < std::max(config_.server.data_endpoints, 1U); ++i) {
      Result<std::string> endpoint =
          links_->Listen(data_transport_.get(), config_.servers.transport + "://" + host + ":0", self);
      if (endpoint.ok()) {
        data_endpoints_.push_back(std::move(endpoint).value());
      } else if (host == hosts.front()) {
        return endpoint.status();
      } else {
        logger_->Debug("not listening at one of this machine's addresses", {{"why", endpoint.status().text()}});
      }
    }
  }
  if (pool_.shared() == nullptr) return Status::Ok();
  TALLY_ASSIGN_OR_RETURN(shm_transport_, MakeTransport("shm", &loop_, &pool_, options));
  const Result<std::string> endpoint = links_->Listen(shm_transport_.get(), FreshShmEndpoint(), self);
  if (endpoint.ok()) {
    data_endpoints_.push_back(*endpoint);
  } else {
    logger_->Warn("no links in memory: workers on this node use " + config_.servers.transport,
                  {{"why", endpoint.status().text()}});
  }
  return Status::Ok();
}

void Server::Join() {
  Membership::Options member;
  member.coordinator = coordinator_;
  member.heartbeat = config_.membership.heartbeat;
  member.dead = config_.membership.dead;
  member.join.version = kVersion;
  member.join.role = Role::kServer;
  member.join.index = config_.server.index;
  member.join.incarnation = incarnation_;
  member.join.host = HostName();
  member.join.node = config_.topology.node.empty() ? NodeKey() : config_.topology.node;
  member.join.switch_path = switch_path_;
  member.join.pid = static_cast<std::uint32_t>(getpid());
  SayNic(config_, nic_host_, &member.join);
  member.join.endpoints = data_endpoints_;
  membership_ = std::make_unique<Membership>(&loop_, control_transport_.get(), logger_, member, this);
  membership_->Start();
}

// ---- a job's life ------------------------------------------------------------------------------------------------------

void Server::OnEpoch(EpochMessage message) {
  EndJob();
  Result<Config> job = ParseJobConfig(message.config_text);
  if (!job.ok()) {
    Report(job.status().WithContext("configuration of job " + message.job));
    return;
  }
  Result<Positions> positions = Positions::Make(message.members);
  if (!positions.ok()) {
    Report(positions.status());
    return;
  }
  positions_ = std::move(positions).value();
  job_ = std::move(job).value();
  membership_->SetTimes(job_.membership.heartbeat, job_.membership.dead);
  workers_ = 0;
  for (const Member& m : message.members) workers_ += m.role == Role::kWorker ? 1 : 0;
  const Result<ModeExpansion> mode = ExpandMode(job_);
  nodes_ = mode.ok() && mode->node_stages ? Nodes(message.members) : Nodes();
  job_name_ = message.job;
  job_hash_ = message.job_hash;

  LinkIdentity self;
  self.role = Role::kServer;
  self.index = config_.server.index;
  self.incarnation = incarnation_;
  self.job_hash = message.job_hash;
  self.epoch = message.epoch;
  links_->Admit(message, self);
  OwnerHost::Options host;
  host.self = {Role::kServer, config_.server.index};
  host.job_hash = message.job_hash;
  host.incarnation = incarnation_;
  host.workers = nodes_.exchange_positions(workers_);
  host.senders = workers_;
  host.speaker = [this](std::uint32_t slab, Position p) { return positions_.rank(nodes_.worker_at(slab, p)); };
  host.memory_cap_bytes = config_.server.memory_cap_bytes != 0
                              ? config_.server.memory_cap_bytes
                              : static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                                    static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  host.send = [this](Position p, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                     BufferRef hold) {
    links_->Send({Role::kWorker, nodes_.worker_at(key, p).value}, header, payload, std::move(hold));
  };
  owner_host_ = std::make_unique<OwnerHost>(host, &pool_);
  running_ = true;
  logger_->Info("job begins", {{"job", job_name_}, {"workers", workers_}, {"epoch", message.epoch.value}});
}

void Server::OnLayout(LayoutMessage message) {
  if (!running_) return;
  const std::string name = message.name;
  const GroupId group = message.group;
  const EpochId epoch = message.epoch;
  auto tables = MakeGroupTables(std::move(message), job_, workers_);
  if (!tables.ok()) {
    Fail(tables.status());
    return;
  }
  if (const Status status = owner_host_->AddGroup(std::move(tables).value(), job_); !status.ok()) {
    Fail(status);
    return;
  }
  groups_.emplace_back(group.value, epoch);
  logger_->Debug("group", {{"name", name}, {"id", group.value}, {"epoch", epoch.value}});
  links_->Unpark();
}

void Server::OnVerdict(const VerdictMessage& verdict) {
  if (running_) owner_host_->OnVerdict(verdict);
}

void Server::OnJobFailed(const Status& why) {
  // Without its coordinator a server has no job; it comes back when the coordinator does.
  if (stopping_) return;
  logger_->Warn("no coordinator", {{"why", why.text()}});
  OnJobEnded(why);
  loop_.After(kRejoin, [this] {
    if (!stopping_) Join();
  });
}

void Server::OnJobEnded(const Status& how) {
  if (!running_) return;
  EndJob();
  if (on_job_ended) on_job_ended(how);
}

void Server::EndJob() {
  if (!running_) return;
  running_ = false;
  links_->CloseAll();
  Collect();
  owner_host_.reset();
  groups_.clear();
  calls_ = {};
  ++stats_.jobs;
  const LinkStats links = links_->stats();
  logger_->Info("job ended",
                {{"job", job_name_}, {"bytes_received", links.bytes_received}, {"bytes_sent", links.bytes_sent}});
}

void Server::Collect() {
  if (owner_host_ == nullptr) return;
  const Owner::Stats owners = owner_host_->stats();
  stats_.pushes += owners.pushes;
  stats_.slabs_done += owners.slabs_done;
  stats_.duplicates += owners.duplicates;
  stats_.stale += owners.stale;
  stats_.saturated += owners.saturated;
  stats_.held_bytes_max = std::max(stats_.held_bytes_max, owners.held_bytes_max);
}

// The coordinator tells everybody else; here the job ends as soon as the callback that noticed is over.
void Server::Fail(const Status& why) {
  if (!running_) return;
  Report(why);
  loop_.Post([this, why] { OnJobEnded(why); });
}

void Server::Report(const Status& why) {
  logger_->Error("job failed here", {{"job", job_name_}, {"why", why.text()}});
  FailureMessage message;
  message.kind = why.kind();
  message.text = "server " + std::to_string(config_.server.index) + ": " + why.text();
  membership_->Send(message);
}

// ---- frames ------------------------------------------------------------------------------------------------------------

void Server::OnFrame(Link& link, Frame& frame) {
  if (!running_) return;
  const FrameHeader& header = frame.header;
  const auto group =
      std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.first == header.group.value; });
  Status status;
  const Rank sender(link.peer().index);
  // With node stages it speaks for its node.
  const std::uint32_t speaks_for = nodes_.speaks_for(positions_.position(sender));
  if (header.job_hash != job_hash_ || header.role != Role::kWorker || header.position != speaks_for) {
    status = Corrupt("frame speaks for another job or position");
  } else if (header.kind != FrameKind::kPush) {
    status = Corrupt("a server takes pushes only");
  } else if (group == groups_.end()) {
    links_->Park(link, frame);
    return;
  } else if (header.epoch != group->second) {
    return;  // fenced: of an epoch that is over
  } else if (status = calls_.Note(sender, header.collective); status.ok()) {
    status = owner_host_->OnPush(frame);
  }
  if (status.ok()) return;
  ++stats_.bad_frames;
  Fail(status.WithContext("from " + link.Describe()));
}

void Server::OnClosed(Link& link, const Status& why) {
  logger_->Debug("data link closed", {{"link", link.Describe()}, {"why", why.text()}});
  links_->Remove(link);
}

// ---- outside -----------------------------------------------------------------------------------------------------------

ServerStats Server::Stats() {
  auto promise = std::make_shared<std::promise<ServerStats>>();
  auto future = promise->get_future();
  const auto snapshot = [this, promise] {
    ServerStats stats = stats_;
    const LinkStats links = links_->stats();
    stats.bytes_received = links.bytes_received;
    stats.bytes_sent = links.bytes_sent;
    stats.frames_received = links.frames_received;
    stats.frames_sent = links.frames_sent;
    stats.rejected_connections = links_->rejected() + (coordinator_host_ == nullptr ? 0 : coordinator_host_->rejected());
    stats.pool_allocations = pool_.stats().allocations;
    promise->set_value(stats);
  };
  if (thread_.joinable()) {
    loop_.Post(snapshot);
  } else {
    snapshot();
  }
  return future.get();
}

void Server::Inspect(const std::function<void(const OwnerHost*)>& look) {
  std::promise<void> promise;
  loop_.Post([&] {
    look(owner_host_.get());
    promise.set_value();
  });
  promise.get_future().wait();
}

void Server::Stop(Nanos bound) {
  if (!thread_.joinable()) return;
  const TimePoint deadline = std::chrono::steady_clock::now() + bound;
  const auto ask = [this](std::function<bool()> question) {
    auto promise = std::make_shared<std::promise<bool>>();
    auto future = promise->get_future();
    loop_.Post([promise, question] { promise->set_value(question()); });
    return future.get();
  };
  const auto drained = [this] {
    stopping_ = true;
    return !running_ || (owner_host_->Missing().empty() && links_->queued_bytes() == 0);
  };
  while (!ask(drained) && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  auto told = std::make_shared<std::promise<void>>();
  auto future = told->get_future();
  loop_.Post([this, told] {
    if (running_) Fail(Unavailable("was asked to stop"));
    membership_->Leave("asked to stop", [told] { told->set_value(); });
  });
  (void)future.wait_for(std::chrono::seconds(1));
  // The coordinator's last words to the others are queued behind ours.
  if (coordinator_host_ != nullptr) std::this_thread::sleep_for(kPoll * 4);
  loop_.Stop();
  thread_.join();
  EndJob();
}

}  // namespace tally
