// How fast the NIC behind an address is, by what the system or the configuration says; nothing is measured.
#pragma once

#include <string>
#include <string_view>

namespace tally {

// What a NIC counts as of which nobody knows the speed: 10 Gbit/s.
inline constexpr double kAssumedNicBytesPerS = 10e9 / 8;

struct WireSpeed {
  double bytes_per_s = 0;  // in each direction; 0: the address is loopback's and no rate is emulated
  std::string source;      // for people: "link.rate", "loopback", "eth0", "eth0, assumed"
  std::string nic;         // the interface; empty if none was looked for or found
  bool assumed = false;    // nobody said it
};

// `rate_bits`: link.rate, 0 if there is none. `host`: a local address as endpoints have it; one that stands for all
// ("0.0.0.0", "[::]") means the fastest NIC that is up, a real one and one of known speed if there is any. A NIC whose
// speed the system does not know counts as 10 Gbit/s.
WireSpeed SpeedOfWire(double rate_bits, std::string_view host);

}  // namespace tally
