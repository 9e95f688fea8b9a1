#include "common/config/checks.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "common/schedule/topology.h"
#include "common/transport/link.h"

namespace tally {
namespace {

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    return (ntohl(v4.sin_addr.s_addr) >> 24) == 127;
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 v6;
  std::memcpy(&v6, address, sizeof v6);
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) != 0 && v6.sin6_addr.s6_addr[12] == 127;
  return mapped || IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) != 0;
}

// The host of "scheme://host:port", "host:port", "[v6]:port" or "host".
std::string HostOf(std::string_view address) {
  const std::size_t scheme = address.find("://");
  if (scheme != std::string_view::npos) address.remove_prefix(scheme + 3);
  if (address.starts_with('[')) return std::string(address.substr(1, address.find(']') - 1));
  const bool one_colon = std::count(address.begin(), address.end(), ':') == 1;
  return std::string(one_colon ? address.substr(0, address.find(':')) : address);
}

class AddressChecker {
 public:
  AddressChecker(bool insecure, const OriginOf& origin, std::vector<std::string>* errors)
      : insecure_(insecure), origin_(origin), errors_(errors) {}

  // A control address: tcp://host:port.
  void Control(std::string_view name, const std::string& address, bool any_port) {
    const Result<EndpointParts> parts = ParseEndpoint(address);
    if (!parts.ok()) return Add(name, parts.status().text() + "; expected tcp://host:port");
    if (parts->scheme == "inproc") return;
    if (parts->scheme != "tcp") return Add(name, "\"" + address + "\": control connections are tcp://host:port");
    if (!any_port && std::stoul(parts->port) == 0) return Add(name, "\"" + address + "\": port 0 cannot be reached");
    Host(name, address);
  }

  // Where data links bind: a host, with or without scheme and port. Empty is fine.
  void Host(std::string_view name, const std::string& address) {
    if (insecure_ || address.empty() || IsLoopbackHost(HostOf(address))) return;
    Add(name, "\"" + address + "\" is not on the loopback interface; traffic is not encrypted, so that needs " +
                  "network.insecure = true (--insecure)");
  }

  void Add(std::string_view name, const std::string& fault) {
    errors_->push_back(origin_(name) + ": " + std::string(name) + ": " + fault);
  }

 private:
  bool insecure_;
  const OriginOf& origin_;
  std::vector<std::string>* errors_;
};

}  // namespace

bool IsLoopbackHost(std::string_view host) {
  const std::string name(host);
  if (name == "localhost") return true;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, freeaddrinfo);
  bool all = list != nullptr;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) all = all && IsLoopback(entry->ai_addr);
  return all;
}

void CheckTogether(const Config& config, bool own_server, const OriginOf& origin, std::vector<std::string>* errors) {
  const auto add = [&](std::string_view name, const std::string& fault) {
    errors->push_back(origin(name) + ": " + std::string(name) + ": " + fault);
  };
  const Mode mode = config.aggregation.mode;
  const bool needs_servers = mode == Mode::kPs || mode == Mode::kHybrid ||
                             (mode == Mode::kHierarchical && config.aggregation.between == Mode::kPs);
  if (needs_servers && config.servers.addresses.empty() && !own_server) {
    add("aggregation.mode", std::string(ModeName(mode)) + " sums on servers, but servers.addresses names none; " +
                                "name them, or choose ring");
  }
  if (config.job.workers > 0 && config.worker.rank >= config.job.workers) {
    add("worker.rank", std::to_string(config.worker.rank) + " is not below job.workers = " +
                           std::to_string(config.job.workers) + " (" + origin("job.workers") + ")");
  }
  if (config.membership.dead < 2 * config.membership.heartbeat) {
    add("membership.dead", "must be at least twice membership.heartbeat (" + origin("membership.heartbeat") +
                               "), or every late heartbeat ends the job");
  }
  if (config.link.credit_bytes < config.link.frame_bytes) {
    add("link.credit", "must be at least link.frame (" + origin("link.frame") + ")");
  }
  if (const Status path = CheckSwitchPath(config.topology.switch_path); !path.ok()) {
    add("topology.switch", path.text());
  }
  if (!config.link.nic.empty() && config.link.rate_bits == 0) {
    add("link.nic", "an emulated NIC needs link.rate");
  }
  for (const CodecOptionFault& fault : CodecOptionFaults(config.compression)) add(fault.name, fault.text);
}

std::vector<CodecOptionFault> CodecOptionFaults(const Config::Compression& options) {
  constexpr std::size_t kMaxWarmup = 16;
  const std::string& codec = options.codec;
  const bool selects = codec == "topk" || codec == "dgc";
  std::vector<CodecOptionFault> faults;
  const auto add = [&faults](std::string_view name, std::string text) { faults.push_back({name, std::move(text)}); };
  if (codec == "randomk" && options.randomk_scale == "stratum" && options.error_feedback) {
    add("compression.randomk_scale",
        "\"stratum\" makes a residual grow: take none, or switch compression.error_feedback off");
  }
  if (options.reply == "union" && !selects) {
    add("compression.reply", "\"union\" is for topk and dgc, not for " + codec);
  }
  if (codec == "int8_shared" && options.scale != "pow2") {
    add("compression.scale", "int8_shared has scales that are powers of two: leave \"pow2\", or take int8");
  }
  if (codec == "int8_shared" && options.rounding == "stochastic") {
    add("compression.rounding", "int8_shared rounds to nearest: leave \"auto\", or take int8");
  }
  if (codec == "dgc" && !options.error_feedback) {
    add("compression.error_feedback", "dgc is error feedback with momentum: leave it on, or take topk");
  }
  if (!options.warmup.empty() && !selects) {
    add("compression.warmup", "it is for topk and dgc, not for " + codec);
  } else if (options.warmup.empty() != (options.warmup_steps == 0) || options.warmup.size() > kMaxWarmup) {
    add(options.warmup.empty() ? "compression.warmup_steps" : "compression.warmup",
        std::to_string(options.warmup.size()) + " ratios in compression.warmup, and compression.warmup_steps is " +
            std::to_string(options.warmup_steps) + ": expected up to " + std::to_string(kMaxWarmup) +
            " ratios and the steps for each, or neither");
  }
  return faults;
}

void CheckAddresses(const Config& config, const OriginOf& origin, std::vector<std::string>* errors) {
  AddressChecker checker(config.network.insecure, origin, errors);
  std::set<std::string> seen;
  for (const std::string& address : config.servers.addresses) {
    checker.Control("servers.addresses", address, false);
    if (!seen.insert(address).second) checker.Add("servers.addresses", "\"" + address + "\" stands twice");
  }
  const bool is_first_server =
      !config.servers.addresses.empty() && config.coordinator.address == config.servers.addresses[0];
  if (!config.coordinator.address.empty() && !is_first_server) {
    checker.Control("coordinator.address", config.coordinator.address, true);
  }
  checker.Control("server.listen", config.server.listen, true);
  checker.Host("server.data_bind", config.server.data_bind);
  checker.Host("worker.bind", config.worker.bind);
}

}  // namespace tally
