// Which of this machine's addresses leads to a peer.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"

namespace tally {

// The source address that the system would use towards `host` (a route look-up; nothing is sent), as a literal for an
// endpoint ("10.0.0.2", "[fe80::1]"). Errors: kUnavailable naming host and cause.
Result<std::string> LocalAddressTowards(std::string_view host);

// True for 127.0.0.0/8, ::1 and "localhost".
bool IsLoopbackAddress(std::string_view host);

}  // namespace tally
