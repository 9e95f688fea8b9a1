#include "common/transport/wire_speed.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "common/transport/local_address.h"
#include "common/transport/sockets.h"

namespace tally {
namespace {

constexpr double kMegabit = 1e6 / 8;

// How well a figure is known: real NICs before those that the system makes up, what it says before what is assumed.
struct Nic {
  WireSpeed speed;
  int certainty = -1;
};

Nic NicOf(const std::string& name) {
  const std::string place = "/sys/class/net/" + name;
  std::error_code ignored;
  const int real = std::filesystem::exists(place + "/device", ignored) ? 2 : 0;
  std::ifstream file(place + "/speed");
  double megabits = 0;
  if (file >> megabits && megabits > 0) return {{megabits * kMegabit, name, name, false}, real + 1};
  return {{kAssumedNicBytesPerS, name + ", assumed", name, true}, real};
}

}  // namespace

WireSpeed SpeedOfWire(double rate_bits, std::string_view host) {
  if (rate_bits > 0) return {rate_bits / 8, "link.rate", {}, false};
  if (IsLoopbackAddress(host)) return {0, "loopback", {}, false};
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool any = host == "0.0.0.0" || host == "::" || host.empty();
  const bool v6 = host.find(':') != std::string_view::npos;
  const std::string wanted = (v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":0";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {kAssumedNicBytesPerS, "no NIC is known, assumed", {}, true};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(all, &freeifaddrs);
  Nic found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    if ((i->ifa_flags & IFF_RUNNING) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const auto bytes =
        static_cast<socklen_t>(i->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!any && AddressText(i->ifa_addr, bytes) != wanted) continue;
    const Nic nic = NicOf(i->ifa_name);
    if (std::pair(nic.certainty, nic.speed.bytes_per_s) > std::pair(found.certainty, found.speed.bytes_per_s)) found = nic;
  }
  if (found.certainty >= 0) return found.speed;
  return {kAssumedNicBytesPerS, any ? "no NIC is up, assumed" : std::string(host) + " is of no NIC that is up, assumed", {}, true};
}

}  // namespace tally
