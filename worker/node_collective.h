// NodeCollective: standalone all-reduces of a job on one node, done by the calling threads themselves in memory that all
// of them have mapped: no engine, no frame. Sums go in local-rank order, as in NodeExchange.
// Thread: the caller's, one call at a time. A rank that does not come is waited for with a bound; `alive` says whether
// that still makes sense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/frame.h"
#include "common/reduce/reduce.h"
#include "common/status.h"

namespace tally {

class NodeCollective {
 public:
  // Bytes of each rank's staging memory, and of the shared one (counters, then results), for `ranks` of them.
  static std::uint64_t StagingBytes(std::uint32_t ranks);

  struct Options {
    std::uint32_t self = 0, ranks = 1;
    Nanos spin{0};     // how long a wait looks at memory before it sleeps
    Nanos timeout{0};  // of a wait
    // Asked about every 20 ms of a wait: an error ends it.
    std::function<Status(Nanos waited)> alive;
  };
  // `staging`: per rank, StagingBytes each; the own one is written, `shared` too. All zeros at first.
  NodeCollective(Options options, std::vector<std::span<std::byte>> staging, std::span<std::byte> shared);

  // `memory` tells buffers apart that are equally long: a number that all ranks have for the same one; 0 in the first call.
  // After an error no call succeeds.
  // out = sum over all ranks of `in`, divided by the number of ranks for a mean. `in` may be `out`. Errors: kMismatch
  // (another rank is in another call), kTimeout (names who did not come), what `alive` says; out is then undefined.
  Status AllReduce(std::span<const float> in, std::span<float> out, const CollectiveShape& shape);
  // The same where everybody's input is mapped, and `out` is one memory of all.
  Status AllReduceShared(std::span<const float* const> inputs, std::span<float> out, const CollectiveShape& shape,
                         std::uint32_t memory);

 private:
  struct Control;
  struct RankLine;

  Status Reduce(std::span<const float> in, std::span<float> out, const CollectiveShape& shape, std::uint32_t memory);
  Status ReduceShared(std::span<const float* const> inputs, std::span<float> out, const CollectiveShape& shape,
                      std::uint32_t memory);
  Status Kept(const Status& status);  // remembers the first error
  Status Begin(const CollectiveShape& shape, std::uint32_t memory);
  Status AllHere();
  Status WaitFor(std::uint32_t round);
  std::string Absent(std::uint32_t round) const;
  RankLine& Line(std::uint32_t rank) const;
  float* Staged(std::uint32_t rank, std::uint32_t slot) const;
  float* Result(std::uint32_t slot) const;
  float Divisor(const CollectiveShape& shape) const {
    return shape.op == ReduceOp::kMean ? static_cast<float>(options_.ranks) : 1.0F;
  }

  const Options options_;
  const std::vector<std::span<std::byte>> staging_;
  Control* const control_;
  std::byte* const lines_;
  std::byte* const results_;
  std::uint32_t round_ = 0;  // of waits for everybody
  std::uint32_t slot_ = 0;   // of the two, that the next piece takes
  CollectiveShape shape_;    // of the call that is open
  Status broken_;
  std::vector<Term> terms_;
};

}  // namespace tally
