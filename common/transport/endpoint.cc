// ParseEndpoint (link.h): the text form of an address.
#include <algorithm>
#include <charconv>

#include "common/transport/link.h"

namespace tally {
namespace {

bool IsPort(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc{} && end == text.data() + text.size() && port <= 65535;
}

}  // namespace

Result<EndpointParts> ParseEndpoint(std::string_view endpoint) {
  const auto wrong = [&](std::string_view why) {
    return InvalidArgument("endpoint \"" + std::string(endpoint.substr(0, 256)) + "\": " + std::string(why));
  };
  const std::size_t separator = endpoint.find("://");
  if (separator == std::string_view::npos || separator == 0) return wrong("expected \"transport://address\"");
  if (!std::ranges::all_of(endpoint, [](char c) { return c > ' ' && c <= '~'; })) {
    return InvalidArgument("an endpoint holds a blank or an unprintable character");
  }
  EndpointParts parts;
  parts.scheme = endpoint.substr(0, separator);
  std::string_view rest = endpoint.substr(separator + 3);
  if (parts.scheme == "inproc" || parts.scheme == "shm") {  // a name, no port
    if (rest.empty()) return wrong("the name is empty");
    parts.host = rest;
    return parts;
  }
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string_view::npos) return wrong("the port is missing (\"host:port\")");
  std::string_view host = rest.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find_first_of(":[]") != std::string_view::npos) {
    return wrong("write an IPv6 address in brackets (\"[::1]:7070\")");
  }
  if (host.empty()) return wrong("the host is empty");
  parts.host = host;
  parts.port = rest.substr(colon + 1);
  if (!IsPort(parts.port)) return wrong("the port is not a number from 0 to 65535");
  return parts;
}

}  // namespace tally
