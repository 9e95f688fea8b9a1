// Which of this machine's addresses data links bind to, as network.interfaces says. Never by resolving the own host name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

// One address of an interface that is up.
struct HostAddress {
  std::string interface;
  std::string address;  // "10.0.0.2", "fd00::2", without brackets or scope
  bool loopback = false;
  std::size_t network_bits = 0;  // leading bits that it shares with its network's other addresses; 0: not known
};

// Errors: kUnavailable when the system does not tell.
Result<std::vector<HostAddress>> HostAddresses();

// The address that `rules` choose, as an endpoint has it ("[fd00::2]"). A rule is the beginning of an interface's name
// ("eth"), "=" and the whole name ("=eth0"), an address ("10.0.0.2") or a network ("10.0.0.0/8"); "^" before it takes away
// what it names. The first rule that names anything left decides, of that the first address, IPv4 before IPv6; of rules
// that only take away, what is left but loopback. Link-local IPv6 addresses count only where a rule gives them.
// Errors: kInvalidArgument: a rule that is none of these; none matches, with what there is.
Result<std::string> ChooseAddress(std::span<const std::string> rules, std::span<const HostAddress> addresses);

inline constexpr std::size_t kMaxDataAddresses = 8;

// Where data links listen, as endpoints have it: at `bind` if it is set, else where `interfaces` lead, else at `otherwise`
// and, as others may reach this machine another way, at its other addresses but loopback and link-local ones (MoreAddresses).
// 0.0.0.0 and [::] stand for all of them and then loopback; a loopback address for itself. Without `insecure` nothing is
// added off loopback. Never none.
// Errors as above; kInvalidArgument when `interfaces` lead off loopback and `insecure` is not set.
Result<std::vector<std::string>> DataAddresses(const std::string& bind, std::span<const std::string> interfaces,
                                               bool insecure, const std::string& otherwise);

// `first`, then what others may reach this machine by, IPv4 before IPv6, bridges of containers and virtual machines last;
// at most kMaxDataAddresses. `first` may be empty.
std::vector<std::string> MoreAddresses(const std::string& first, std::span<const HostAddress> addresses);

// Whether `host` is on a network that one of `own` is on, loopback apart.
bool OnOwnNetwork(const std::string& host, std::span<const HostAddress> own);

}  // namespace tally
