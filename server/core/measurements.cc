#include "server/core/measurements.h"

#include <algorithm>
#include <set>
#include <string>

#include "common/transport/link.h"
#include "common/transport/local_address.h"
#include "server/core/coordinator.h"

namespace tally {
namespace {

constexpr double kAlike = 0.8;

bool OnNetwork(const Member& member) {
  return std::ranges::any_of(member.endpoints, [](const std::string& endpoint) {
    const Result<EndpointParts> parts = ParseEndpoint(endpoint);
    return parts.ok() && parts->scheme == "tcp" && !IsLoopbackAddress(parts->host);
  });
}

}  // namespace

std::vector<Measurement> Measurements(const std::vector<Member>& members, const Config& job) {
  if (job.link.connections != 0) return {};
  const Result<ModeExpansion> mode = ExpandMode(job);
  if (!mode.ok()) return {};
  const bool peers = mode->exchange == ExchangeKind::kSchedule || mode->worker_shares;
  if ((peers ? job.link.transport : job.servers.transport) != "tcp") return {};

  std::vector<const Member*> workers, servers;
  for (const Member& m : members) (m.role == Role::kWorker ? workers : servers).push_back(&m);
  std::ranges::sort(workers, {}, [](const Member* m) { return m->position.value; });
  std::ranges::sort(servers, {}, [](const Member* m) { return m->index; });
  std::vector<const Member*> heads;
  std::set<std::string> seen;
  for (const Member* m : workers) {
    if (seen.insert(m->node).second) heads.push_back(m);
  }

  std::vector<Measurement> measurements;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (!peers && h >= servers.size()) break;
    const Member* to = peers ? heads[(h + 1) % heads.size()] : servers[h];
    if (to->node == heads[h]->node || !OnNetwork(*to)) continue;
    const OwnerRef owner{to->role, to->role == Role::kServer ? to->index : to->position.value};
    measurements.push_back({Rank(heads[h]->index), owner});
  }
  return measurements;
}

std::map<OwnerRef, double> NicRatesOf(std::span<const Measurement> measurements, const Positions& positions,
                                      const std::map<std::uint32_t, MeasuredMessage>& found) {
  struct End {
    double rate = 0;  // at least
    std::set<OwnerRef> others;
  };
  std::map<OwnerRef, End> ends;
  double fastest = 0;
  const auto note = [&ends](const OwnerRef& of, const OwnerRef& other, double rate) {
    End& end = ends[of];
    end.rate = std::max(end.rate, rate);
    end.others.insert(other);
  };
  for (const Measurement& m : measurements) {
    const auto measured = found.find(m.by.value);
    if (measured == found.end() || !(measured->second.bytes_per_s > 0)) continue;
    const double rate = measured->second.bytes_per_s;
    const bool worker = m.to.role == Role::kWorker;
    const OwnerRef by{Role::kWorker, m.by.value};
    const OwnerRef to{m.to.role, worker ? positions.rank(Position(m.to.index)).value : m.to.index};
    note(by, to, rate);
    note(to, by, rate);
    fastest = std::max(fastest, rate);
  }
  std::map<OwnerRef, double> rates;
  for (const auto& [of, end] : ends) {
    const auto faster = [&](const OwnerRef& other) { return kAlike * ends.at(other).rate > end.rate; };
    if (end.rate >= kAlike * fastest) {
      rates[of] = fastest;
    } else if (end.others.size() > 1 || std::ranges::any_of(end.others, faster)) {
      rates[of] = end.rate;
    }
  }
  return rates;
}

std::uint32_t AgreedConnections(std::vector<std::uint32_t> found) {
  if (found.empty()) return 1;
  std::ranges::sort(found);
  return found[found.size() / 2];
}

}  // namespace tally
