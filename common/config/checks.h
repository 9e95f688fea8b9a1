// Checks of a whole configuration: values that are each valid but do not go together, and addresses.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/config/config.h"

namespace tally {

// "127.0.0.1", "::1", "localhost" and names that resolve to loopback addresses only. Looks names up.
bool IsLoopbackHost(std::string_view host);

// The origin of a setting by its full name, to put before a fault.
using OriginOf = std::function<std::string(std::string_view name)>;

// Options of codecs that do not go together: the key's full name, and what is wrong with it.
struct CodecOptionFault {
  std::string_view name;
  std::string text;
};
std::vector<CodecOptionFault> CodecOptionFaults(const Config::Compression& options);

// Appends one entry per fault. `own_server`: the configuration of a tally-server, whose own address need not be listed.
void CheckTogether(const Config& config, bool own_server, const OriginOf& origin, std::vector<std::string>* errors);
void CheckAddresses(const Config& config, const OriginOf& origin, std::vector<std::string>* errors);

}  // namespace tally
