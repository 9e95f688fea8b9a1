#include "common/transport/wire_speed.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <fstream>
#include <memory>

#include "common/transport/local_address.h"

namespace tally {
namespace {

constexpr double kAssumed = 10e9 / 8;
constexpr double kMegabit = 1e6 / 8;

WireSpeed SpeedOfInterface(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  double megabits = 0;
  if (file >> megabits && megabits > 0) return {megabits * kMegabit, name};
  return {kAssumed, name + ", assumed"};
}

std::string Numeric(const sockaddr* address) {
  const bool is_ipv4 = address->sa_family == AF_INET;
  char text[NI_MAXHOST];
  const auto length = static_cast<socklen_t>(is_ipv4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  return getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

}  // namespace

WireSpeed SpeedOfWire(double rate_bits, std::string_view host) {
  if (rate_bits > 0) return {rate_bits / 8, "link.rate"};
  if (IsLoopbackAddress(host)) return {0, "loopback"};
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const bool any = host == "0.0.0.0" || host == "::" || host.empty();
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {kAssumed, "no NIC is known, assumed"};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> interfaces(all, &freeifaddrs);
  WireSpeed found;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_addr->sa_family != AF_INET && i->ifa_addr->sa_family != AF_INET6)) continue;
    if ((i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (!any && Numeric(i->ifa_addr) != host) continue;
    const WireSpeed speed = SpeedOfInterface(i->ifa_name);
    if (speed.bytes_per_s > found.bytes_per_s) found = speed;
  }
  return found.bytes_per_s > 0 ? found : WireSpeed{kAssumed, std::string(host) + " is of no NIC that is up, assumed"};
}

}  // namespace tally
