// FindPath: which of the addresses that a process has published leads to it from here. An address may lead nowhere, or
// to another machine that has the same private one (172.17.0.1 of docker0), so each is asked who answers.
// Thread: the loop's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/loop.h"
#include "common/transport/link.h"

namespace tally {

// Dials `ways` one after another, each a little later than the one before or as soon as that has failed, without waiting
// for an answer. `done` runs once, later, on the loop: with the index of the first at which `wanted` (role, index,
// incarnation) answers; after `bound`, or once all have failed for good, with kUnavailable and what each one said. A
// process that is not ready is asked again. Nothing runs once `*alive` is false; `transport` must live until then.
// Errors of `done`: kUnavailable.
void FindPath(EventLoop* loop, Transport* transport, std::vector<std::string> ways, const LinkIdentity& self,
              const LinkIdentity& wanted, Nanos bound, std::shared_ptr<const bool> alive,
              std::function<void(Result<std::size_t>)> done);

// The endpoints of one host address, which share its load, as one way each; in the order of their first ones.
std::vector<std::vector<std::string>> WaysOf(const std::vector<std::string>& endpoints);

}  // namespace tally
