// The cores that are free on this machine, measured.
#pragma once

namespace tally::cli {

// How many cores threads of this machine get now, all asking at once for a fifth of a second: fewer than it has where
// other programs run.
double FreeCores();

}  // namespace tally::cli
