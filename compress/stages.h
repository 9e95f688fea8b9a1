// CodecStages: what tensors travel with from which step on: as they are before start_step, then with each ratio of the
// warm-up in turn, then as configured (Lin et al., ICLR 2018, section 3.4, for the warm-up).
#pragma once

#include <cstdint>
#include <vector>

#include "common/config/config.h"

namespace tally {

struct CodecStage {
  std::uint64_t first_step = 0;
  bool uncompressed = false;      // whatever the codecs are called
  Config::Compression options;
};

// By first step; the first one begins with step 0. The options have passed CheckCompression.
std::vector<CodecStage> CodecStages(const Config::Compression& options);

}  // namespace tally
