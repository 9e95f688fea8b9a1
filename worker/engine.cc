#include "worker/engine.h"

#include <algorithm>
#include <cfenv>
#include <random>
#include <utility>

#include <unistd.h>

#include "common/node_key.h"
#include "common/schedule/schedule.h"
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

constexpr Nanos kShareBound = std::chrono::seconds(5);
constexpr std::uint64_t kPoolBytes = std::uint64_t{1} << 30;

std::string HostName() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

std::uint64_t RandomIncarnation() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

// Links in memory have no emulated NIC.
bool SharesMemory(const Config& config) {
  return config.link.shm && config.link.rate_bits == 0 && (config.job.workers > 1 || !config.servers.addresses.empty());
}

// The first that the member has published of a kind; empty: none.
std::string EndpointOf(const Member& member, std::string_view scheme) {
  const auto found = std::ranges::find_if(member.endpoints, [&](const std::string& e) { return e.starts_with(scheme); });
  return found == member.endpoints.end() ? std::string() : *found;
}

}  // namespace

Engine::Engine(const LoadedConfig& config)
    : loaded_(config), pool_(kPoolBytes, SharesMemory(config.config) ? std::make_shared<SharedMemory>() : nullptr) {}

Result<std::unique_ptr<Engine>> Engine::Start(const LoadedConfig& config) {
  std::unique_ptr<Engine> engine(new Engine(config));
  TALLY_RETURN_IF_ERROR(engine->Begin());
  engine->thread_ = std::thread([raw = engine.get()] {
    // A thread inherits its maker's floating-point mode; sums keep denormals and round to nearest whatever that is.
    std::fesetenv(FE_DFL_ENV);
    PinThread(raw->loaded_.config.topology.pin, raw->nic_, *raw->logger_);
    raw->loop_.Run();
  });
  engine->Post([raw = engine.get()] { raw->membership_->Start(); });
  const Config& c = config.config;
  Status status;
  const auto speak_up = [&] { engine->logger_->Info("still joining", {{"coordinator", c.coordinator.address}}); };
  if (!engine->join_completion_.Wait(c.membership.join_timeout, speak_up, &status)) {
    status = engine->JoinError();
  }
  if (!status.ok()) return status;
  return engine;
}

Engine::~Engine() {
  (void)Leave();
  if (thread_.joinable()) {
    loop_.Stop();
    thread_.join();
  }
  membership_.reset();
  links_.reset();
  coordinator_host_.reset();
  local_frames_.Clear();
  node_memory_.reset();
  worker_transport_.reset();
  server_transport_.reset();
  shm_transport_.reset();
  control_transport_.reset();
}

Status Engine::Begin() {
  const Config& c = loaded_.config;
  TALLY_ASSIGN_OR_RETURN(logger_, Logger::Make(c.log));
  logger_->SetContext({{"job", c.job.name}, {"rank", c.worker.rank}});
  workers_ = c.job.workers;
  servers_ = static_cast<std::uint32_t>(c.servers.addresses.size());
  if (workers_ == 0 || c.worker.rank >= workers_) {
    return InvalidArgument("rank " + std::to_string(c.worker.rank) + " of " + std::to_string(workers_) +
                           " workers: set job.workers and worker.rank, or start through a launcher that sets RANK and "
                           "WORLD_SIZE");
  }
  TALLY_ASSIGN_OR_RETURN(const ModeExpansion expansion, ExpandMode(c));
  for (const std::string& warning : expansion.warnings) logger_->Warn(warning);
  exchange_ = expansion.exchange;
  schedule_ = expansion.schedule;
  server_shares_ = expansion.server_shares;
  worker_shares_ = expansion.worker_shares;
  open_ = expansion.open || schedule_ == kScheduleAuto;
  node_stages_ = expansion.node_stages;
  description_ = open_ ? DescribeExpansion(expansion) : Expanded(expansion);
  incarnation_ = RandomIncarnation();

  std::string coordinator = c.coordinator.address;
  if (coordinator.empty() && servers_ > 0) coordinator = c.servers.addresses.front();
  if (coordinator.empty() && workers_ == 1) coordinator = "tcp://127.0.0.1:0";
  if (coordinator.empty()) {
    return InvalidArgument("no coordinator: set coordinator.address, servers.addresses, or MASTER_ADDR and MASTER_PORT");
  }
  TALLY_ASSIGN_OR_RETURN(const EndpointParts where, ParseEndpoint(coordinator));
  TALLY_ASSIGN_OR_RETURN(const std::string own_address, LocalAddressTowards(where.host));
  coordinator_is_local_ = IsLoopbackAddress(own_address);
  LinkOptions options;
  options.payload_crc = c.link.payload_crc == "on" || (c.link.payload_crc == "auto" && !coordinator_is_local_);
  options.socket_buffer_bytes = static_cast<std::uint32_t>(c.link.socket_buffer_bytes);
  options.connect_timeout = c.membership.join_timeout;
  TALLY_RETURN_IF_ERROR(StartTransports(options));
  if (servers_ == 0 && c.worker.rank == 0) {
    CoordinatorOptions coordinator_options;
    coordinator_options.version = kVersion;
    coordinator_options.incarnation = incarnation_;
    if (const std::string& matrix = c.topology.matrix; !matrix.empty()) {
      TALLY_ASSIGN_OR_RETURN(coordinator_options.matrix, ReadBandwidthMatrix(matrix));
    }
    coordinator_host_ = std::make_unique<CoordinatorHost>(&loop_, logger_.get(), NicRateBits(c), coordinator_options);
    TALLY_ASSIGN_OR_RETURN(coordinator, coordinator_host_->Listen(control_transport_.get(), coordinator, Role::kWorker));
  }
  loaded_.config.coordinator.address = coordinator;

  links_ = std::make_unique<DataLinks>(&loop_, this, logger_.get(), c.link.egress_bytes);
  links_->on_change = [this] {
    CheckJoined();
    if (standalone_ != nullptr && standalone_->in_flight()) Wake();
  };
  links_->on_error = [this](const Status& why) { Fail(why); };
  std::string nic_host = own_address;
  if (workers_ > 1) TALLY_RETURN_IF_ERROR(ListenForPeers(own_address, &nic_host));
  ListenInMemory();
  if (workers_ > 1 && node_stages_ && c.link.shm) {
    node_memory_ = std::make_unique<NodeMemory>(&loop_);
    if (const Result<std::string> endpoint = node_memory_->Listen(); endpoint.ok()) {
      data_endpoints_.push_back(*endpoint);
    } else {
      logger_->Warn("no shared memory with this node's other processes: their gradients come in frames",
                    {{"why", endpoint.status().text()}});
      node_memory_.reset();
    }
  }

  Membership::Options member;
  member.coordinator = coordinator;
  member.heartbeat = c.membership.heartbeat;
  member.dead = c.membership.dead;
  member.join.version = kVersion;
  member.join.role = Role::kWorker;
  member.join.index = c.worker.rank;
  member.join.world = workers_;
  member.join.job = c.job.name;
  member.join.incarnation = incarnation_;
  member.join.host = HostName();
  member.join.node = c.topology.node.empty() ? NodeKey() : c.topology.node;
  TALLY_ASSIGN_OR_RETURN(member.join.switch_path, OwnSwitchPath(c.topology));
  member.join.pid = static_cast<std::uint32_t>(getpid());
  SayNic(c, nic_host, &member.join);
  nic_ = SpeedOfWire(0, nic_host).nic;
  member.join.endpoints = data_endpoints_;
  member.join.config_digest = loaded_.job_digest;
  member.join.config_text = loaded_.job_text;
  join_by_ = loop_.Now() + c.membership.join_timeout;
  membership_ = std::make_unique<Membership>(&loop_, control_transport_.get(), logger_.get(), member, this);
  return Status::Ok();
}

// Workers of this node reach this one without a socket's copies, if they can.
void Engine::ListenInMemory() {
  if (shm_transport_ == nullptr || data_endpoints_.empty()) return;
  LinkIdentity self;
  self.index = loaded_.config.worker.rank;
  self.incarnation = incarnation_;
  const Result<std::string> endpoint = links_->Listen(shm_transport_.get(), FreshShmEndpoint(), self);
  if (endpoint.ok()) {
    data_endpoints_.push_back(*endpoint);
  } else {
    logger_->Warn("no links in memory: this node's other processes use " + loaded_.config.link.transport,
                  {{"why", endpoint.status().text()}});
  }
}

Status Engine::StartTransports(LinkOptions options) {
  const Config& c = loaded_.config;
  TALLY_ASSIGN_OR_RETURN(control_transport_, MakeTransport("tcp", &loop_, &pool_, options));
  if (SharesMemory(c)) {
    LinkOptions in_memory = options;
    in_memory.connect_timeout = kShareBound;  // to reach it: its socket is there before its name is published
    in_memory.welcome_timeout = c.membership.join_timeout;
    TALLY_ASSIGN_OR_RETURN(shm_transport_, MakeTransport("shm", &loop_, &pool_, in_memory));
  }
  if (c.link.rate_bits > 0) {
    TALLY_ASSIGN_OR_RETURN(options.limiter, RateLimiter::Make(c.link.rate_bits, c.link.nic));
  }
  TALLY_ASSIGN_OR_RETURN(worker_transport_, MakeTransport(c.link.transport, &loop_, &pool_, options));
  if (server_shares_) {
    TALLY_ASSIGN_OR_RETURN(server_transport_, MakeTransport(c.servers.transport, &loop_, &pool_, options));
  }
  return Status::Ok();
}

std::string Engine::RankName() const {
  return "rank " + std::to_string(loaded_.config.worker.rank) + " of job " + loaded_.config.job.name;
}

Status Engine::JoinError() {
  const std::string missing = Ask([this] { return Missing(); });
  return Timeout(RankName() + " did not get into the job within " +
                 std::to_string(std::chrono::duration_cast<std::chrono::seconds>(
                                    loaded_.config.membership.join_timeout).count()) +
                 " s (membership.join_timeout), coordinator " + loaded_.config.coordinator.address + missing);
}

// ---- membership ------------------------------------------------------------------------------------------------------

void Engine::OnEpoch(EpochMessage message) {
  if (failed_ || leaving_) return;
  if (message.epoch.value == 0 || epoch_.epoch.value != 0) {
    return Fail(Corrupt("the coordinator published epoch " + std::to_string(message.epoch.value) +
                        ", expected one epoch per job, from 1 on; here is epoch " + std::to_string(epoch_.epoch.value)));
  }
  epoch_ = std::move(message);
  Result<Positions> positions = Positions::Make(epoch_.members);
  if (!positions.ok()) return Fail(positions.status());
  if (positions->count() != workers_) {
    return Fail(Corrupt("the epoch has " + std::to_string(positions->count()) + " workers, the job " +
                        std::to_string(workers_)));
  }
  positions_ = std::move(positions).value();
  position_ = positions_.position(rank());
  LinkIdentity identity;
  identity.job_hash = epoch_.job_hash;
  identity.epoch = epoch_.epoch;
  identity.incarnation = incarnation_;
  identity.index = rank().value;
  links_->Admit(epoch_, identity);
  if (position_.value != rank().value) logger_->Info("position", {{"position", position_.value}});

  nodes_ = node_stages_ ? Nodes(epoch_.members) : Nodes();
  if (nodes_.shared()) {
    logger_->Info("nodes", {{"nodes", nodes_.count()}, {"here", nodes_.positions(nodes_.node_of(position_)).size()}});
  } else if (node_stages_ && workers_ > 1 && loaded_.config.aggregation.mode != Mode::kAuto) {
    logger_->Warn("no two workers are on one node, so nothing is summed inside nodes",
                  {{"node_here", OwnNode()},
                   {"what_to_do", "start several workers on each machine; a container with a network of its own is a node of "
                                  "its own"}});
  }
  FindPeers();
  MakeOwnerHost();
  MakeStandalone();
  MeasureLinks();
  CountConnections();
  DialPeers();
  CheckJoined();
}

std::string Engine::OwnNode() const {
  for (const Member& m : epoch_.members) {
    if (m.role == Role::kWorker && m.position == position_) return m.node;
  }
  return {};
}

void Engine::MakeOwnerHost() {
  OwnerHost::Options host;
  host.self = {Role::kWorker, nodes_.speaks_for(position_)};
  host.job_hash = epoch_.job_hash;
  host.incarnation = incarnation_;
  host.workers = nodes_.exchange_positions(workers_);
  host.senders = workers_;
  host.send = [this](Position p, std::uint32_t key, const FrameHeader& header, std::span<const std::byte> payload,
                     BufferRef hold) {
    links_->Send({Role::kWorker, nodes_.worker_at(key, p).value}, header, payload, std::move(hold));
  };
  if (nodes_.shared()) {
    host.carries = [this](std::uint32_t slab) { return nodes_.carrier(slab, nodes_.node_of(position_)) == position_; };
  }
  host.speaker = [this](std::uint32_t slab, Position p) { return positions_.rank(nodes_.worker_at(slab, p)); };
  host.has_local = true;
  host.local = Position(nodes_.speaks_for(position_));
  host.deliver_local = [this](const FrameHeader& header, std::span<const std::byte> payload, BufferRef hold) {
    Frame& kept = local_frames_.Add();
    kept.header = header;
    // const_cast: the payload is read only, as hold is shared (see Frame).
    kept.payload = {const_cast<std::byte*>(payload.data()), payload.size()};
    kept.hold = std::move(hold);
    if (std::exchange(draining_local_, true)) return;
    loop_.Post([this] { DrainLocal(); });
  };
  owner_host_ = std::make_unique<OwnerHost>(host, &pool_);
}

// Of two workers the one with the higher position dials; servers are always dialled.
bool Engine::Dials(OwnerRef peer) const { return peer.role == Role::kServer || peer.index < position_.value; }

void Engine::DialPeers() {
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (Dials(peers_[i])) Dial(peers_[i], std::max(wanted_[i], 1U));
    if (failed_) return;
  }
}

// In memory if the member is on this node and that can be done.
void Engine::Dial(OwnerRef peer, std::uint32_t connections, std::uint32_t first) {
  const Member* member = FindMember(peer);
  if (member == nullptr) {
    Fail(Mismatch("the epoch names no member for a peer that the exchange needs"));
    return;
  }
  const std::string local = shm_transport_ != nullptr && member->node == OwnNode()
                                ? EndpointOf(*member, kShmScheme)
                                : std::string();
  if (local.empty()) return DialMember(peer, *member, connections, first);
  const auto otherwise = [this, peer, connections, first, member = *member](const Status& why) {
    const Config& c = loaded_.config;
    logger_->Warn("no link in memory to a process on this node",
                  {{"peer", Describe(member)},
                   {"instead", peer.role == Role::kServer ? c.servers.transport : c.link.transport},
                   {"why", why.text()}});
    DialMember(peer, member, connections, first);
  };
  links_->Dial(shm_transport_.get(), peer, {local}, 1, loaded_.config.membership.join_timeout, otherwise, kShareBound);
}

void Engine::DialMember(OwnerRef peer, const Member& member, std::uint32_t connections, std::uint32_t first) {
  const std::vector<std::string> endpoints = WaysTo(member);
  if (endpoints.empty() && !member.endpoints.empty()) {
    const Status wrong = Mismatch(Describe(member) + " published only addresses that other hosts cannot reach (" +
                                  member.endpoints.front() + "): set " +
                                  (peer.role == Role::kServer ? "server.listen or server.data_bind" : "worker.bind") +
                                  " there to an address of its network");
    return StepsNeed(peer) ? Fail(wrong) : NotReached(peer, wrong);
  }
  Transport* transport = peer.role == Role::kServer ? server_transport_.get() : worker_transport_.get();
  DataLinks::Otherwise otherwise;  // a link that only standalone calls want is not worth the job
  if (!StepsNeed(peer)) otherwise = [this, peer](const Status& why) { NotReached(peer, why); };
  links_->Dial(transport, peer, endpoints, connections, DialBound(), std::move(otherwise), Nanos::max(), first);
}

void Engine::CheckJoined() {
  if (joined_ || epoch_.epoch.value == 0) return;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (wanted_[i] == 0 || !links_->complete(peers_[i], wanted_[i])) return;
  }
  joined_ = true;
  if (!open_) {
    const std::lock_guard lock(description_mutex_);
    description_ = Expanded(ExpandMode(loaded_.config).value());  // now it is known how peers are reached
  }
  logger_->Info("joined", {{"workers", workers_},
                           {"servers", servers_},
                           {"epoch", epoch_.epoch.value},
                           {"exchange", description_},
                           {"emulated_nic", loaded_.config.link.rate_bits > 0
                                                ? std::to_string(loaded_.config.link.rate_bits) + " bit/s"
                                                : std::string("no")}});
  join_completion_.Complete(Status::Ok());
}

void Engine::OnLayout(LayoutMessage message) {
  const auto declaration = std::find_if(declarations_.begin(), declarations_.end(),
                                        [&](const auto& d) { return d->name == message.name; });
  if (declaration == declarations_.end()) return;
  const std::shared_ptr<Declaration> declared = *declaration;
  const std::uint32_t number = message.group.value;
  if (number == kStandaloneGroup.value || declared->group != nullptr || groups_.contains(number) || sharing_.contains(number)) {
    return Fail(Corrupt("the coordinator published group " + message.name + " as number " + std::to_string(number) +
                        ": expected one layout per group, with a number of its own from 1 on"));
  }
  const Config& c = loaded_.config;
  NoteChoice(message);
  const auto make = [&]() -> Status {
    TALLY_ASSIGN_OR_RETURN(auto tables, MakeGroupTables(std::move(message), c, workers_, nodes_.exchange_positions(workers_)));
    TALLY_RETURN_IF_ERROR(owner_host_->AddGroup(tables, c));
    GroupRuntime::Options options;
    options.exchange.header.job_hash = epoch_.job_hash;
    options.exchange.header.epoch = tables->message.epoch;
    options.exchange.header.incarnation = incarnation_;
    options.exchange.header.group = tables->message.group;
    options.exchange.self = position_;
    options.exchange.speaker = [this](std::uint32_t, Position p) { return positions_.rank(p); };
    options.exchange.positions = options.exchange.senders = workers_;
    options.exchange.limits = MakeFlowLimits(*tables, c, owner_host_->workers());
    options.exchange.seed = c.compression.seed;
    options.exchange.stochastic = StochasticRounding(c.compression);
    options.error_feedback = c.compression.error_feedback;
    options.follow_learning_rate = c.compression.ef_lr_correction == "ratio";
    options.collective = tables->message.name.starts_with(kCollectivePrefix);
    if (nodes_.shared()) options.nodes = &nodes_;
    TALLY_ASSIGN_OR_RETURN(auto group, GroupRuntime::Make(options, tables, declared->own, &pool_, this));
    declared->group = group.get();
    sharing_[tables->message.group.value] = std::move(group);
    return Status::Ok();
  };
  const auto done = [this, declared](Status status) {
    if (failed_) return;  // the caller was told
    std::erase(declarations_, declared);
    if (status.ok()) {
      TellGroup(*declared->group);
      groups_.insert(sharing_.extract(declared->group->tables().message.group.value));
    } else {
      Fail(status.WithContext("group " + declared->name));
    }
    declared->completion.Complete(status);
    links_->Unpark();
  };
  if (const Status status = make(); !status.ok()) return done(status);
  if (!nodes_.shared()) return done(Status::Ok());
  ShareWithNode(declared->group, done);
}

void Engine::TellGroup(const GroupRuntime& group) {
  const LayoutMessage& layout = group.tables().message;
  if (layout.name.starts_with(kCollectivePrefix)) return;
  std::map<std::string, int> codecs;
  for (const std::uint8_t id : layout.codecs) ++codecs[CodecName(id)];
  std::string text;
  for (const auto& [name, tensors] : codecs) text += (text.empty() ? "" : ", ") + name + " " + std::to_string(tensors);
  logger_->Info("group", {{"group", layout.name},
                          {"tensors_by_codec", text},
                          {"residual_bytes", group.feedback().bytes() + group.velocity().bytes()}});
}

std::unique_ptr<NodeShare> Engine::MakeNodeShare(GroupId group) {
  std::vector<NodeShare::Peer> peers;
  for (const Position p : nodes_.positions(nodes_.node_of(position_))) {
    if (p == position_) continue;
    NodeShare::Peer& peer = peers.emplace_back();
    peer.position = p;
    peer.rank = positions_.rank(p);
    for (const Member& member : epoch_.members) {
      if (member.role != Role::kWorker || member.position != p) continue;
      peer.endpoint = EndpointOf(member, kNodeMemoryScheme);
    }
    if (peer.endpoint.empty() || node_memory_ == nullptr) peer.fault = "link.shm is off";
    // Who could not be reached once is not waited for again.
    if (unshared_.contains(p.value)) {
      peer.endpoint.clear();
      peer.fault = "could not share memory before";
    }
  }
  const ArenaRequest request{epoch_.job_hash, epoch_.epoch, group, ArenaKind::kInputs, position_, false};
  return std::make_unique<NodeShare>(&loop_, node_memory_.get(), request, std::move(peers));
}

// For a node's processes to map each other's memory; whoever waits for it must not give up before.
Nanos Engine::ShareBound() const { return std::min<Nanos>(kShareBound, loaded_.config.step.timeout / 2); }

void Engine::ShareWithNode(GroupRuntime* group, std::function<void(Status)> done) {
  auto share = MakeNodeShare(group->tables().message.group);
  group->ShareWithNode(std::move(share), ShareBound(), [this, group, done = std::move(done)](Status status, std::string faults) {
    for (const NodeShare::Peer& peer : group->share()->peers()) {
      if (!peer.fault.empty()) unshared_.insert(peer.position.value);
    }
    if (!faults.empty() && !std::exchange(told_unshared_, true)) {
      logger_->Warn("not all of this node's processes share memory: frames carry their gradients", {{"why", faults}});
    }
    done(std::move(status));
  });
}

void Engine::OnVerdict(const VerdictMessage& verdict) {
  const auto found = groups_.find(verdict.group.value);
  if (found == groups_.end()) return;
  ++(verdict.commit ? committed_ : skipped_);
  found->second->OnVerdict(verdict);
  // A step that began without the link has ended without it. Who left is not coming back.
  const auto suspected = suspected_at_.find(verdict.group.value);
  const bool later = suspected == suspected_at_.end() || verdict.step >= suspected->second;
  if (later && suspicion_.kind() == StatusKind::kPeerLost) suspicion_ = Status::Ok();
  if (found->second->saturated() == 0 || std::exchange(told_saturated_, true)) return;
  const Config::Compression& compression = loaded_.config.compression;
  logger_->Warn("gradients at the limit of the range of 16 bits or beyond",
                {{"numbers", found->second->saturated()},
                 {"group", found->second->tables().message.name},
                 {"what_exceeds", compression.error_feedback ? "waits in the residual" : "is lost"}});
}

void Engine::OnJobFailed(const Status& why) { SetFailure(why); }

// ---- frames ----------------------------------------------------------------------------------------------------------

void Engine::OnFrame(Link& link, Frame& frame) {
  if (failed_ || leaving_) return;
  const FrameHeader& header = frame.header;
  const bool inside_node = header.kind == FrameKind::kNodePush || header.kind == FrameKind::kNodeReply;
  const bool for_itself = inside_node || header.group == kStandaloneGroup;
  const Rank sender(link.peer().index);  // if it is a worker
  std::uint32_t speaks_for = link.peer().index;
  if (link.peer().role == Role::kWorker) {
    const Position position = positions_.position(sender);
    speaks_for = for_itself ? position.value : nodes_.speaks_for(position);
  }
  if (header.role != link.peer().role || header.position != speaks_for || header.job_hash != epoch_.job_hash) {
    Fail(Corrupt("frame from " + DescribeMember(link.peer().role, link.peer().index, epoch_.members) + " speaks for " +
                 (header.role == Role::kServer ? "server " : "position ") + std::to_string(header.position) +
                 ", expected " + std::to_string(speaks_for) + ", or for another job"));
    return;
  }
  const Status status = CheckSender(header, link.peer());
  if (!status.ok()) {
    return Fail(status.WithContext("frame from " + DescribeMember(link.peer().role, link.peer().index, epoch_.members)));
  }
  if (!Deliver(frame, sender)) links_->Park(link, frame);
}

// `sender`: of a frame of a worker.
bool Engine::Deliver(Frame& frame, Rank sender) {
  if (frame.header.group == kStandaloneGroup) {
    if (frame.header.epoch != epoch_.epoch) return true;  // fenced, as below
    NoteCall(sender, frame.header.collective);
    if (!failed_) standalone_->OnFrame(frame);
    return true;
  }
  const auto found = groups_.find(frame.header.group.value);
  if (found == groups_.end()) return false;
  GroupRuntime& group = *found->second;
  if (frame.header.epoch != group.tables().message.epoch) return true;  // fenced: of an epoch that is over
  if (frame.header.role == Role::kWorker) NoteCall(sender, frame.header.collective);
  if (failed_) return true;
  if (frame.header.kind == FrameKind::kPush) {
    if (const Status status = owner_host_->OnPush(frame); !status.ok()) {
      Fail(status.WithContext("push from rank " + std::to_string(sender.value)));
    }
    return true;
  }
  group.OnFrame(frame);
  return true;
}

void Engine::DrainLocal() {
  draining_local_ = false;
  std::swap(local_frames_, draining_frames_);
  for (Frame& frame : draining_frames_) {
    if (!failed_) Deliver(frame, rank());
    frame.hold.Reset();
  }
  draining_frames_.Clear();
}

void Engine::OnClosed(Link& link, const Status& why) {
  const std::string name = DescribeMember(link.peer().role, link.peer().index, epoch_.members);
  const std::string text = "data link to " + name + " closed: " + why.text();
  const bool server = link.peer().role == Role::kServer;
  const OwnerRef peer{link.peer().role, server ? link.peer().index : positions_.position(Rank(link.peer().index)).value};
  links_->Remove(link);
  if (failed_ || leaving_ || !joined_) return;
  logger_->Debug(text);
  if (!server) dialled_.erase(peer.index);  // whoever wants it again dials again
  WatchSteps(StepsNeed(peer) ? &suspicion_ : &call_suspicion_, PeerLost(text));
}

void Engine::OnPeerLeft(const std::string& who) {
  {
    const std::lock_guard lock(failure_mutex_);
    who_left_ = who;
  }
  someone_left_ = true;
  WatchSteps(&suspicion_, Unavailable(who));
}

// A link closed or a rank left. If somebody died, the coordinator says so; if nothing needs that peer any more, all is
// well; but a step that then stands still for membership.dead needs it, and the suspicion is the error. Checks are
// counted, not time: a process that was stopped has not looked yet.
void Engine::WatchSteps(Status* suspicion, const Status& why) {
  if (suspicion->ok() || why.kind() == StatusKind::kUnavailable) *suspicion = why;
  for (const auto& [id, group] : groups_) suspected_at_[id] = StepId(group->step().value + (group->in_flight() ? 1 : 0));
  if (!std::exchange(watching_, true)) CheckSteps();
}

void Engine::CheckSteps() {
  if (failed_ || leaving_) return;
  const Nanos interval = loaded_.config.membership.heartbeat * 2;
  for (const auto& [id, group] : groups_) CheckStep(id, group->in_flight(), group->progress(), suspicion_, interval);
  if (standalone_ != nullptr) {  // there is an epoch
    CheckStep(kStandaloneGroup.value, standalone_->in_flight(), standalone_->progress(),
              suspicion_.ok() ? call_suspicion_ : suspicion_, interval);
  }
  if (failed_) return;
  loop_.After(interval, [this] { CheckSteps(); });
}

void Engine::CheckStep(std::uint32_t id, bool in_flight, std::uint64_t progress, const Status& suspicion, Nanos interval) {
  WatchedStep& watched = watched_steps_[id];
  if (suspicion.ok() || !in_flight || watched.progress != progress) {
    watched = {progress, 0};
  } else if (++watched.still * interval >= loaded_.config.membership.dead) {
    Fail(suspicion);
  }
}

Status Engine::Send(OwnerRef to, std::uint32_t, const FrameHeader& header, std::span<const std::byte> payload,
                    BufferRef hold) {
  if (to.role == Role::kWorker && to.index == position_.value) {
    // const_cast: shared or wrapped as const, so the owner only reads (see Frame).
    own_push_.header = header;
    own_push_.payload = {const_cast<std::byte*>(payload.data()), payload.size()};
    own_push_.hold = std::move(hold);
    const Status status = owner_host_->OnPush(own_push_);
    own_push_.hold.Reset();
    return status;
  }
  links_->Send(to, header, payload, std::move(hold));
  return Status::Ok();
}

void Engine::Prepared(const PreparedMessage& message) {
  membership_->Send(message);
  if (message.loss_scale <= 1 || !groups_.at(message.group.value)->has_fp16()) return;
  if (std::exchange(told_loss_scale_, true)) return;
  logger_->Warn("means of fp16 tensors are divided by the loss scale, which may take them below the range of fp16",
                {{"loss_scale", message.loss_scale},
                 {"what_to_do", "read Output instead of Output16, or declare the tensors as bf16"}});
}

void Engine::Verdict(const VerdictMessage& verdict) { owner_host_->OnVerdict(verdict); }

void Engine::PostContinue(GroupRuntime* group) {
  loop_.Post([this, group] {
    if (!failed_) group->Continue();
  });
}

// ---- failure ---------------------------------------------------------------------------------------------------------

void Engine::Fail(const Status& why) {
  if (failed_ || leaving_) return;
  FailureMessage message;
  message.kind = why.kind();
  message.text = RankName() + ": " + why.text();
  membership_->Send(message);
  SetFailure(why);
}

void Engine::SetFailure(const Status& why) {
  if (leaving_ || failed_) return;
  std::string where = RankName();
  if (epoch_.epoch.value != 0) where += ", epoch " + std::to_string(epoch_.epoch.value);
  for (const auto& [id, group] : groups_) {
    if (group->in_flight()) where += ", " + group->Describe();
  }
  if (standalone_ != nullptr && standalone_->in_flight()) where += ", " + standalone_->Describe();
  const Status status = why.WithContext(where);
  {
    std::lock_guard lock(failure_mutex_);
    failure_ = status;
  }
  failed_ = true;
  logger_->Error("job failed", {{"kind", ToString(why.kind())}, {"why", why.text()}});
  // Frames that are queued read the callers' memory: links go before the callers are told. Not from here, as this may
  // run inside a link's own callback.
  loop_.Post([this, status] {
    links_->CloseAll();
    local_frames_.Clear();
    CompleteAll(status);
  });
}

void Engine::CompleteAll(const Status& status) {
  join_completion_.Complete(status);
  for (const auto& declaration : std::exchange(declarations_, {})) declaration->completion.Complete(status);
  for (const auto& [id, group] : groups_) group->FailAll(status);
  if (standalone_ != nullptr) standalone_->FailAll(status);
}

Status Engine::failure() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

}  // namespace tally
