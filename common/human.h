// Numbers as people read them.
#pragma once

#include <string>

namespace tally {

// Three significant digits: "1.23 ms", "45.0 us", "3.20 s".
std::string HumanSeconds(double seconds);

}  // namespace tally
