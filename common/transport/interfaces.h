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
};

// Errors: kUnavailable when the system does not tell.
Result<std::vector<HostAddress>> HostAddresses();

// The address that `rules` choose, as an endpoint has it ("[fd00::2]"). A rule is the beginning of an interface's name
// ("eth"), "=" and the whole name ("=eth0"), an address ("10.0.0.2") or a network ("10.0.0.0/8"); "^" before it takes away
// what it names. The first rule that names anything left decides, of that the first address, IPv4 before IPv6; of rules
// that only take away, what is left but loopback. Link-local IPv6 addresses count only where a rule gives them.
// Errors: kInvalidArgument: a rule that is none of these; none matches, with what there is.
Result<std::string> ChooseAddress(std::span<const std::string> rules, std::span<const HostAddress> addresses);

// Where data links bind: `bind` if it is set, else by `interfaces`, else `otherwise`. Errors as above; kInvalidArgument
// when `interfaces` lead off loopback and `insecure` is not set.
Result<std::string> DataAddress(const std::string& bind, std::span<const std::string> interfaces, bool insecure,
                                const std::string& otherwise);

}  // namespace tally
