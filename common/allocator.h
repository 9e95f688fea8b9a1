// Keeps the C allocator from giving large blocks back to the system: a fresh page costs more than copying it, and
// libzmq allocates every received message. Programs call it first thing in main; libraries never do.
#pragma once

#include <malloc.h>

namespace tally {

inline void KeepLargeBlocks() {
  constexpr int kKeep = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kKeep);
  mallopt(M_TRIM_THRESHOLD, kKeep);
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace tally
