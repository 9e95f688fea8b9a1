// Which processes share memory: those of one node (DESIGN §1).
#pragma once

#include <string>

namespace tally {

// 16 hexadecimal digits, equal for the processes of one boot and network namespace. Empty if the system tells neither;
// such a process is a node of its own.
std::string NodeKey();

}  // namespace tally
