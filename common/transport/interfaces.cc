#include "common/transport/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

#include "common/transport/local_address.h"

namespace tally {
namespace {

// 4 or 16 bytes, network order.
std::vector<unsigned char> BytesOf(const std::string& address) {
  std::array<unsigned char, 16> bytes{};
  if (inet_pton(AF_INET, address.c_str(), bytes.data()) == 1) return {bytes.begin(), bytes.begin() + 4};
  if (inet_pton(AF_INET6, address.c_str(), bytes.data()) == 1) return {bytes.begin(), bytes.end()};
  return {};
}

bool IsV6(const HostAddress& address) { return address.address.find(':') != std::string::npos; }
bool IsLinkLocal(const HostAddress& address) {
  const auto bytes = BytesOf(address.address);
  return bytes.size() == 16 && bytes[0] == 0xFE && (bytes[1] & 0xC0) == 0x80;
}

struct Rule {
  bool excludes = false, exact = false;
  std::string name;                    // of an interface, unless it is
  std::vector<unsigned char> network;  // an address's bytes,
  std::size_t bits = 0;                // of which so many count

  bool Matches(const HostAddress& address) const {
    if (network.empty()) return exact ? address.interface == name : address.interface.starts_with(name);
    const auto bytes = BytesOf(address.address);
    if (bytes.size() != network.size()) return false;
    for (std::size_t bit = 0; bit < bits; ++bit) {
      if (((bytes[bit / 8] ^ network[bit / 8]) >> (7 - bit % 8) & 1) != 0) return false;
    }
    return true;
  }
};

Result<Rule> ParseRule(std::string_view text) {
  const auto wrong = [&] {
    return InvalidArgument("network.interfaces: \"" + std::string(text.substr(0, 60)) +
                           "\" is no interface (eth, =eth0), address or network (10.0.0.0/8); ^ before it takes it away");
  };
  std::string_view rest = text;
  Rule rule;
  rule.excludes = rest.starts_with('^');
  if (rule.excludes) rest.remove_prefix(1);
  rule.exact = rest.starts_with('=');
  if (rule.exact) rest.remove_prefix(1);
  if (rest.empty() || rest.size() > 64) return wrong();
  const std::size_t slash = rest.find('/');
  rule.network = rule.exact ? std::vector<unsigned char>{} : BytesOf(std::string(rest.substr(0, slash)));
  if (rule.network.empty()) {
    if (slash != std::string_view::npos) return wrong();
    rule.name = rest;
    return rule;
  }
  rule.bits = 8 * rule.network.size();
  if (slash == std::string_view::npos) return rule;
  const std::string_view digits = rest.substr(slash + 1);
  std::size_t bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  if (error != std::errc() || end != digits.data() + digits.size() || bits > rule.bits) return wrong();
  rule.bits = bits;
  return rule;
}

std::string Endpoint(const HostAddress& address) {
  return IsV6(address) ? "[" + address.address + "]" : address.address;
}

bool IsAnyAddress(std::string_view host) { return host == "0.0.0.0" || host == "::" || host == "[::]" || host == "*"; }

// By name, as these have no hardware and nothing else that tells them from a container's own interface.
bool IsBridge(const HostAddress& address) {
  constexpr std::array<std::string_view, 7> kNames = {"docker", "br-", "virbr", "cni", "lxc", "podman", "vmnet"};
  return std::ranges::any_of(kNames, [&](std::string_view name) { return address.interface.starts_with(name); });
}

// Of a network mask: its leading ones.
std::size_t MaskBits(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  std::array<unsigned char, 16> bytes{};
  if (mask->sa_family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, mask, sizeof v4);
    std::memcpy(bytes.data(), &v4.sin_addr, 4);
  } else if (mask->sa_family == AF_INET6) {
    sockaddr_in6 v6{};
    std::memcpy(&v6, mask, sizeof v6);
    std::memcpy(bytes.data(), &v6.sin6_addr, 16);
  }
  std::size_t bits = 0;
  while (bits < 128 && (bytes[bits / 8] >> (7 - bits % 8) & 1) != 0) ++bits;
  return bits;
}

}  // namespace

Result<std::vector<HostAddress>> HostAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return Unavailable(std::string("listing interfaces failed: ") + std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<HostAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::array<char, INET6_ADDRSTRLEN> text{};
    const void* bytes = nullptr;
    sockaddr_in v4{};
    sockaddr_in6 v6{};
    if (entry->ifa_addr->sa_family == AF_INET) {
      std::memcpy(&v4, entry->ifa_addr, sizeof v4);
      bytes = &v4.sin_addr;
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(&v6, entry->ifa_addr, sizeof v6);
      bytes = &v6.sin6_addr;
    } else {
      continue;
    }
    if (inet_ntop(entry->ifa_addr->sa_family, bytes, text.data(), text.size()) == nullptr) continue;
    addresses.push_back({entry->ifa_name, text.data(), (entry->ifa_flags & IFF_LOOPBACK) != 0,
                         MaskBits(entry->ifa_netmask)});
  }
  return addresses;
}

Result<std::string> ChooseAddress(std::span<const std::string> rules, std::span<const HostAddress> addresses) {
  std::vector<Rule> includes, excludes;
  for (const std::string& text : rules) {
    TALLY_ASSIGN_OR_RETURN(Rule rule, ParseRule(text));
    (rule.excludes ? excludes : includes).push_back(std::move(rule));
  }
  const auto excluded = [&](const HostAddress& address) {
    return std::ranges::any_of(excludes, [&](const Rule& rule) { return rule.Matches(address); });
  };
  const auto first = [&](const auto& matches) -> std::optional<std::string> {
    for (const bool v6 : {false, true}) {
      for (const HostAddress& address : addresses) {
        if (IsV6(address) == v6 && !excluded(address) && matches(address)) return Endpoint(address);
      }
    }
    return std::nullopt;
  };
  for (const Rule& rule : includes) {
    const bool by_address = !rule.network.empty();
    const auto found =
        first([&](const HostAddress& a) { return rule.Matches(a) && (by_address || !IsLinkLocal(a)); });
    if (found.has_value()) return *found;
  }
  if (includes.empty()) {
    if (const auto found = first([](const HostAddress& a) { return !a.loopback && !IsLinkLocal(a); })) return *found;
  }
  std::string wanted, there;
  for (const std::string& rule : rules) wanted += (wanted.empty() ? "" : ", ") + rule;
  for (const HostAddress& a : addresses) there += (there.empty() ? "" : ", ") + a.interface + " " + a.address;
  return InvalidArgument("no interface of this host matches network.interfaces = " + wanted + "; there are: " + there);
}

std::vector<std::string> MoreAddresses(const std::string& first, std::span<const HostAddress> addresses) {
  std::vector<std::string> all;
  if (!first.empty()) all.push_back(first);
  for (const bool bridge : {false, true}) {
    for (const bool v6 : {false, true}) {
      for (const HostAddress& a : addresses) {
        if (IsBridge(a) != bridge || IsV6(a) != v6 || a.loopback || IsLinkLocal(a)) continue;
        const std::string text = Endpoint(a);
        if (all.size() < kMaxDataAddresses && std::ranges::find(all, text) == all.end()) all.push_back(text);
      }
    }
  }
  return all;
}

bool OnOwnNetwork(const std::string& host, std::span<const HostAddress> own) {
  const auto bytes = BytesOf(host);
  return std::ranges::any_of(own, [&](const HostAddress& a) {
    const Rule network{false, false, {}, BytesOf(a.address), a.network_bits};
    return !a.loopback && a.network_bits > 0 && !bytes.empty() && network.Matches({{}, host});
  });
}

Result<std::vector<std::string>> DataAddresses(const std::string& bind, std::span<const std::string> interfaces,
                                               bool insecure, const std::string& otherwise) {
  if (!bind.empty() && !IsAnyAddress(bind)) return std::vector{bind};
  if (bind.empty() && !interfaces.empty()) {
    TALLY_ASSIGN_OR_RETURN(const std::vector<HostAddress> addresses, HostAddresses());
    TALLY_ASSIGN_OR_RETURN(std::string chosen, ChooseAddress(interfaces, addresses));
    if (insecure || IsLoopbackAddress(chosen)) return std::vector{chosen};
    return InvalidArgument("network.interfaces leads to " + chosen + ", which is not on the loopback interface; traffic " +
                           "is not encrypted, so that needs network.insecure = true (--insecure)");
  }
  const bool any = !bind.empty() || IsAnyAddress(otherwise);
  if (!any && (!insecure || IsLoopbackAddress(otherwise))) return std::vector{otherwise};
  if (!insecure) return std::vector<std::string>{"127.0.0.1"};
  // Without the list of interfaces there is still the address that leads to the coordinator.
  const Result<std::vector<HostAddress>> addresses = HostAddresses();
  if (!addresses.ok() && any) return addresses.status();
  std::vector<std::string> all =
      MoreAddresses(any ? "" : otherwise, addresses.ok() ? *addresses : std::vector<HostAddress>{});
  if (any) all.push_back("127.0.0.1");
  return all;
}

}  // namespace tally
