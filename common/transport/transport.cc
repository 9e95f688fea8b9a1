// The table of transports, expanded from transports.inc.
#include <array>
#include <string>

#include "common/transport/link.h"

namespace tally {

#define TALLY_TRANSPORT(name, factory) \
  Result<std::unique_ptr<Transport>> factory(EventLoop* loop, BufferPool* pool, const LinkOptions& options);
#include "common/transport/transports.inc"
#undef TALLY_TRANSPORT

namespace {

struct Entry {
  std::string_view name;
  Result<std::unique_ptr<Transport>> (*make)(EventLoop*, BufferPool*, const LinkOptions&);
};

constexpr std::array kTransports = {
#define TALLY_TRANSPORT(name, factory) Entry{name, factory},
#include "common/transport/transports.inc"
#undef TALLY_TRANSPORT
};

constexpr bool NamesAreUnique() {
  for (std::size_t i = 0; i < kTransports.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (kTransports[i].name == kTransports[j].name) return false;
    }
  }
  return true;
}
static_assert(NamesAreUnique(), "two lines of transports.inc have the same name");

}  // namespace

Result<std::unique_ptr<Transport>> MakeTransport(std::string_view name, EventLoop* loop, BufferPool* pool,
                                                 const LinkOptions& options) {
  std::string names;
  for (const Entry& entry : kTransports) {
    if (entry.name == name) return entry.make(loop, pool, options);
    names.append(names.empty() ? "" : ", ").append(entry.name);
  }
  return InvalidArgument("no transport is called \"" + std::string(name) + "\"; there are: " + names);
}

}  // namespace tally
