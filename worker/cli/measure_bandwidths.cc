#include "worker/cli/measure_bandwidths.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/control.h"
#include "common/node_key.h"
#include "common/transport/interfaces.h"
#include "common/transport/link.h"
#include "common/transport/local_address.h"
#include "worker/cli/link_probe.h"
#include "worker/client.h"

namespace tally::cli {
namespace {

constexpr std::size_t kNameBytes = 128;
constexpr Nanos kAnswerFor = std::chrono::minutes(30);

// What each rank tells all others.
struct Presence {
  std::array<char, kNameBytes> node{}, host{}, endpoint{};
};
static_assert(sizeof(Presence) == 3 * kNameBytes);

Status Put(const char* what, const std::string& text, std::array<char, kNameBytes>* out) {
  if (text.size() >= kNameBytes || !IsPrintableName(text)) {
    return InvalidArgument(std::string(what) + " \"" + text + "\" is no name");
  }
  std::ranges::copy(text, out->begin());
  return Status::Ok();
}
std::string Get(const std::array<char, kNameBytes>& in) { return {in.data(), strnlen(in.data(), in.size())}; }

// Where the others reach this rank: as its data links.
Result<std::string> OwnHost(const Config& config) {
  TALLY_ASSIGN_OR_RETURN(const EndpointParts coordinator, ParseEndpoint(config.coordinator.address));
  TALLY_ASSIGN_OR_RETURN(const std::string own, LocalAddressTowards(coordinator.host));
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                         DataAddresses(config.worker.bind, config.network.interfaces, config.network.insecure, own));
  return addresses.front();
}

// Round `round` of a tournament of `n` (even): whom `self` meets. Over all n - 1 rounds everybody meets everybody
// once (the circle method: the last one stays, the others go around).
std::uint32_t Opponent(std::uint32_t self, std::uint32_t round, std::uint32_t n) {
  const std::uint32_t around = n - 1;
  if (self == around) return (round * (n / 2)) % around;
  const std::uint32_t other = (round + around - self) % around;
  return other == self ? around : other;
}

class Measurement {
 public:
  Measurement(Client& client, const BandwidthOptions& options) : client_(client), options_(options) {}

  Status Meet(const Config& config, ProbeResponder& responder) {
    Presence own;
    char host[kNameBytes] = "unknown";
    gethostname(host, sizeof host - 1);
    TALLY_RETURN_IF_ERROR(Put("node", config.topology.node.empty() ? NodeKey() : config.topology.node, &own.node));
    TALLY_RETURN_IF_ERROR(Put("host", host, &own.host));
    TALLY_RETURN_IF_ERROR(Put("endpoint", responder.endpoint(), &own.endpoint));
    const std::span<const std::uint8_t> mine(reinterpret_cast<const std::uint8_t*>(&own), sizeof own);
    std::vector<std::uint8_t> all(sizeof own * client_.workers());
    TALLY_RETURN_IF_ERROR(client_.AllGather(mine, std::span(all)));
    std::map<std::string, std::uint32_t> node_of;
    std::set<std::string> hosts;
    for (std::uint32_t rank = 0; rank < client_.workers(); ++rank) {
      Presence other;
      std::memcpy(&other, &all[rank * sizeof other], sizeof other);
      if (!node_of.try_emplace(Get(other.node), nodes_.size()).second) continue;
      if (rank == client_.rank().value) self_ = static_cast<std::uint32_t>(nodes_.size());
      nodes_.push_back(other);
      hosts.insert(Get(other.host));
    }
    matrix_.size = static_cast<std::uint32_t>(nodes_.size());
    matrix_.values.assign(nodes_.size() * nodes_.size(), 0.0);
    const bool by_host = hosts.size() == nodes_.size();
    for (const Presence& node : nodes_) matrix_.names.push_back(Get(by_host ? node.host : node.node));
    return Status::Ok();
  }

  Result<BandwidthMatrix> Measure() {
    const std::uint32_t n = matrix_.size, even = n + n % 2;
    std::vector<float> rates(std::size_t{n} * n);
    Status failed;
    for (std::uint32_t round = 0; round + 1 < even; ++round) {
      TALLY_RETURN_IF_ERROR(client_.Barrier());
      const std::string progress = "round " + std::to_string(round + 1) + " of " + std::to_string(even - 1);
      if (options_.progress) options_.progress(progress);
      if (!self_.has_value()) continue;
      const std::uint32_t other = Opponent(*self_, round, even);
      if (other >= n || *self_ > other || !failed.ok()) continue;
      const auto rate = ProbeBothWays(Get(nodes_[other].endpoint), options_.each);
      if (!rate.ok()) {
        failed = rate.status().WithContext(matrix_.names[*self_] + " to " + matrix_.names[other]);
        continue;
      }
      rates[std::size_t{*self_} * n + other] = rates[std::size_t{other} * n + *self_] = static_cast<float>(*rate);
    }
    TALLY_RETURN_IF_ERROR(client_.AllReduce(std::span(rates), ReduceOp::kSum));
    if (!failed.ok()) return failed;
    for (std::uint32_t i = 0; i < n; ++i) {
      for (std::uint32_t j = 0; j < n; ++j) {
        const float rate = rates[std::size_t{i} * n + j];
        if (i != j && !(rate > 0)) {
          return Unavailable(matrix_.names[i] + " and " + matrix_.names[j] + " were not measured; see the ranks there");
        }
        matrix_.values[std::size_t{i} * n + j] = rate;
      }
    }
    return std::move(matrix_);
  }

 private:
  Client& client_;
  const BandwidthOptions& options_;
  BandwidthMatrix matrix_;
  std::vector<Presence> nodes_;  // of their first ranks
  std::optional<std::uint32_t> self_;  // a node, if this is its first rank
};

}  // namespace

Result<BandwidthMatrix> MeasureBandwidths(const LoadedConfig& config, const BandwidthOptions& options) {
  TALLY_ASSIGN_OR_RETURN(const auto client, Client::Join(config));
  TALLY_ASSIGN_OR_RETURN(const std::string host, OwnHost(config.config));
  TALLY_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeResponder> responder, ProbeResponder::Listen(host, 0));
  std::thread answering([&] { responder->ServeAll(kAnswerFor); });
  const auto measure = [&]() -> Result<BandwidthMatrix> {
    Measurement measurement(*client, options);
    TALLY_RETURN_IF_ERROR(measurement.Meet(config.config, *responder));
    return measurement.Measure();
  };
  auto matrix = measure();
  responder->Stop();
  answering.join();
  if (matrix.ok()) TALLY_RETURN_IF_ERROR(client->Leave());
  return matrix;
}

}  // namespace tally::cli
