// How a job comes together: who may join, and the epoch once everybody has.
#include <algorithm>
#include <utility>

#include "common/schedule/nodes.h"
#include "common/schedule/topology.h"
#include "common/transport/connection_probe.h"
#include "compress/codec.h"
#include "server/core/coordinator_state.h"
#include "server/core/measurements.h"

namespace tally {

using namespace coordination;

namespace {

constexpr std::uint32_t kMaxMembers = 4096;
// From the epoch until the number of connections is settled, whoever has not answered: to find the way to a host that
// has several addresses, and to measure.
constexpr Nanos kMeasuring = std::chrono::seconds(2) + ConnectionProbe::kBound;

// FNV-1a, 64 bits.
std::uint64_t Hash(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = 0xCBF29CE484222325u ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

// Of all that sockets reach, the first: at the address that leads to the coordinator.
void KeepFirstAddress(std::vector<std::string>* endpoints) {
  bool kept = false;
  std::erase_if(*endpoints, [&kept](const std::string& endpoint) {
    const Result<EndpointParts> parts = ParseEndpoint(endpoint);
    const bool socket = parts.ok() && !parts->port.empty();  // else a name in memory
    return socket && std::exchange(kept, true);
  });
}

}  // namespace

Status Coordinator::Impl::CheckJoin(const JoinMessage& join, TimePoint now) const {
  const std::string who = Who(join);
  if (join.protocol != kProtocolVersion) {
    return Mismatch(who + " speaks protocol " + std::to_string(join.protocol) + " (tally " + join.version +
                    "), the coordinator " + std::to_string(kProtocolVersion) + " (tally " + options.version +
                    "); run the same version everywhere");
  }
  if (join.host.size() > kMaxNameBytes || join.node.size() > kMaxNameBytes || join.job.size() > kMaxNameBytes) {
    return InvalidArgument(who + ": host, node and job name are at most " + std::to_string(kMaxNameBytes) + " bytes");
  }
  if (join.index >= kMaxMembers || join.world > kMaxMembers) {
    return InvalidArgument(who + " of " + std::to_string(join.world) + ": a job has at most " +
                           std::to_string(kMaxMembers) + " members");
  }
  if (join.role == Role::kWorker) return CheckWorker(join, now);

  if (const auto found = servers.find(join.index); found != servers.end()) {
    return Unavailable("server " + std::to_string(join.index) + " is " + Who(found->second.join) +
                       " already, heard " + Seconds(now - found->second.last_heard) +
                       " ago; give each server its own server.index");
  }
  if (job.has_value() && join.index >= job->servers) {
    return InvalidArgument(who + " is out of range: job " + job->name + " lists " + std::to_string(job->servers) +
                           " servers.addresses");
  }
  return Status::Ok();
}

Status Coordinator::Impl::CheckWorker(const JoinMessage& join, TimePoint now) const {
  const std::string who = Who(join);
  if (join.job.empty()) return InvalidArgument(who + " gives no job name");
  if (join.world == 0) return InvalidArgument(who + " gives no number of workers");
  const bool first = !job.has_value();
  const std::string first_who = first ? who : Who(job->first);
  if (!first && join.job != job->name) {
    return Mismatch(who + " is of job " + join.job + ", the job here is " + job->name + " (since " + first_who + ")");
  }
  if (!first && join.world != job->world()) {
    return Mismatch(who + " expects " + std::to_string(join.world) + " workers, the job has " +
                    std::to_string(job->world()) + " (as " + first_who + " said)");
  }
  if (join.index >= join.world) {
    return InvalidArgument(who + " is out of range: the job has " + std::to_string(join.world) +
                           " workers, ranks 0 to " + std::to_string(join.world - 1));
  }
  if (first) return Status::Ok();
  if (const Seat& seat = job->seats[join.index]; seat.peer.has_value()) {
    return Unavailable("rank " + std::to_string(join.index) + " is " + Who(seat.peer->join) + " already, heard " +
                       Seconds(now - seat.peer->last_heard) + " ago; give each process its own rank");
  }
  if (join.config_digest != job->first.config_digest) {
    std::string lines;
    for (const std::string& line : DiffJobConfig(job->first.config_text, join.config_text)) lines += "\n  " + line;
    if (!lines.empty()) {
      return Mismatch(who + " has another job configuration than " + first_who + ":" + lines);
    }
  }
  if (job->complete) {
    return Unavailable("job " + job->name + " is running and rank " + std::to_string(join.index) +
                       " has left it; joining a running job is not possible in this version");
  }
  return Status::Ok();
}

Status Coordinator::Impl::StartJob(const JoinMessage& join, TimePoint now) {
  TALLY_ASSIGN_OR_RETURN(Config config, ParseJobConfig(join.config_text));
  const std::size_t server_count = config.servers.addresses.size();
  if (join.world + server_count > kMaxMembers) {
    return InvalidArgument("job " + join.job + " has " + std::to_string(join.world) + " workers and " +
                           std::to_string(server_count) + " servers; at most " + std::to_string(kMaxMembers) +
                           " members");
  }
  TALLY_RETURN_IF_ERROR(ExpandMode(config).status());
  if (phase == Phase::kFailed) ++jobs_ended;
  phase = Phase::kGathering;
  job_name = join.job;
  job.emplace();
  job->name = join.job;
  job->first = join;
  job->config = std::move(config);
  job->servers = static_cast<std::uint32_t>(server_count);
  job->hash = Hash(join.job, options.incarnation + ++jobs_started);
  job->seats.resize(join.world);
  job->declared.resize(join.world);
  if (job->config.compression.codec == kCodecAuto && options.advise_codec) {
    job->advice = options.advise_codec(job->config, join.world);
  }
  for (auto& [index, server] : servers) {
    if (index < job->servers) server.wait = Wait{{}, false, now + options.speak_up};
  }
  return Status::Ok();
}

void Coordinator::Impl::OnJoin(ConnectionId from, const JoinMessage& join, TimePoint now) {
  Status status = CheckJoin(join, now);
  if (status.ok() && join.role == Role::kWorker && !job.has_value()) status = StartJob(join, now);
  if (!status.ok()) return Refuse(from, status);

  Peer peer{from, join, now, std::nullopt};
  if (job.has_value()) peer.wait = Wait{{}, false, now + options.speak_up};
  peers[from] = {join.role, join.index};
  if (join.role == Role::kWorker) {
    job->seats[join.index].peer = std::move(peer);
  } else {
    servers[join.index] = std::move(peer);
  }
  if (phase == Phase::kGathering) CompleteWorld(now);
}

void Coordinator::Impl::CompleteWorld(TimePoint now) {
  for (const Seat& seat : job->seats) {
    if (!seat.peer.has_value()) return;
  }
  for (std::uint32_t s = 0; s < job->servers; ++s) {
    if (!servers.contains(s)) return;
  }
  EpochMessage message;
  message.epoch = EpochId{++epoch};
  message.job_hash = job->hash;
  message.job = job->name;
  message.config_text = job->first.config_text;
  ForEachMember([&](Peer& peer) {  // workers by rank, then servers by index
    message.members.push_back(MakeMember(peer.join));
    peer.wait.reset();
  });
  // Neighbours share a node, then a switch; a launcher may have dealt ranks out in any other order.
  std::vector<Placed> places;
  for (const Seat& seat : job->seats) places.push_back({seat.peer->join.node, seat.peer->join.switch_path});
  std::vector<std::uint32_t> order = OrderPositions(places);
  if (options.matrix.has_value()) {
    std::vector<MatrixPlace> hosts;
    for (const Seat& seat : job->seats) hosts.push_back({seat.peer->join.node, seat.peer->join.host});
    Result<MatrixOrder> measured = OrderByMatrix(*options.matrix, hosts, order);
    if (options.on_matrix) options.on_matrix(measured);
    if (measured.ok()) order = std::move(measured->order);
  }
  for (std::uint32_t p = 0; p < order.size(); ++p) message.members[order[p]].position = Position(p);
  std::size_t bytes = EncodeControl(message).size();
  if (bytes > kMaxControlBytes) {
    for (Member& member : message.members) KeepFirstAddress(&member.endpoints);
    bytes = EncodeControl(message).size();
  }
  if (bytes > kMaxControlBytes) {
    return FailJob(Failure(InvalidArgument("job " + job->name + " has " + std::to_string(message.members.size()) +
                                           " members, whose list takes " + std::to_string(bytes) +
                                           " bytes even with one address each (which network.interfaces chooses), at "
                                           "most " + std::to_string(kMaxControlBytes) +
                                           " are sent: use shorter host names (and topology.node), or fewer members")),
                   0, now);
  }
  Result<Positions> positions = Positions::Make(message.members);
  TALLY_CHECK(positions.ok(), positions.status().text());
  job->positions = std::move(positions).value();
  job->nodes = Nodes(message.members).count();
  job->complete = true;
  phase = Phase::kRunning;
  SendToMembers(message);
  job->measurements = Measurements(message.members, job->config);
  for (const Measurement& m : job->measurements) job->measuring.insert(m.by.value);
  job->measured_by = now + kMeasuring;
}

void Coordinator::Impl::OnMeasured(const Peer& worker, const MeasuredMessage& measured) {
  if (job->measuring.erase(worker.join.index) == 0) return;  // too late
  job->measured[worker.join.index] = measured;
  if (job->measuring.empty()) PublishLinks();
}

// Those that have not measured in time go by what the others found.
void Coordinator::Impl::PublishLinks() {
  job->measuring.clear();
  std::vector<std::uint32_t> connections;
  for (const auto& [rank, measured] : job->measured) {
    if (measured.bytes_per_s > 0) connections.push_back(measured.connections);
  }
  SendToMembers(LinksMessage{AgreedConnections(std::move(connections))});
  // Groups are planned after this.
  job->nic_rates = NicRatesOf(job->measurements, job->positions, job->measured);
}

}  // namespace tally
