// The version that programs print and members tell each other.
#pragma once

namespace tally {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace tally
