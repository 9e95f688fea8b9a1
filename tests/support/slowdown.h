// kSlowdown: what a test multiplies the time by that it waits for a whole job to get somewhere. Such a bound only ends
// a test that would hang; under a sanitizer a job takes several times as long.
#pragma once

#include <string>

namespace tally::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TALLY_TEST_SLOW 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TALLY_TEST_SLOW 1
#endif
#endif

#ifdef TALLY_TEST_SLOW
constexpr int kSlowdown = 5;
#else
constexpr int kSlowdown = 1;
#endif

// For a setting: Seconds(3) is "3s", or longer.
inline std::string Seconds(int seconds) { return std::to_string(seconds * kSlowdown) + "s"; }

}  // namespace tally::test
