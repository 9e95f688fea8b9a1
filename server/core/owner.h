// Owner: sums the slabs of one group that one member owns, wherever that member lives (tally-server or a worker).
// Pure: frames in, reply frames out; no I/O, no clock. Thread: one at a time.
// Invariants: each (step, slab, position) counts once; only the current and the next step are accepted; in
// deterministic mode slab u is added in position order u+1, …, u (mod N), early arrivals are held (bounded by the senders' credit).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/buffer.h"
#include "common/frame.h"
#include "common/recycled_list.h"
#include "common/schedule/layout.h"
#include "common/status.h"
#include "common/transport/link.h"
#include "compress/codec.h"
#include "server/core/positions.h"

namespace tally {

struct OwnerOptions {
  std::uint64_t job_hash = 0;
  EpochId epoch{};
  GroupId group{};
  StepId first_step{};         // the step that is open when this owner starts
  std::optional<bool> previous_committed{};  // verdict of the step before, if it is known
  Role role = Role::kServer;   // of this owner; goes into reply headers with `index`
  std::uint32_t index = 0;
  std::uint32_t workers = 1;   // N
  SpeakerOf speaker{};         // whom errors name
  bool deterministic = true;
  bool error_feedback = true;  // residual of lossy replies
  std::uint64_t seed = 1;
  bool stochastic = false;     // of the replies' rounding
  std::uint64_t held_bytes_cap = 0;  // early arrivals held at most; 0 = no cap. Beyond: kCorrupt (credit was ignored)
};

// What an owner answers. Goes to every worker unless `only` is set (resent to one that asked again).
struct ReplyFrame {
  FrameHeader header;  // kind kReply
  std::span<const std::byte> payload;
  BufferRef hold;      // keeps payload alive
  bool only_one = false;
  Position only;
};

class Owner {
 public:
  // `slabs`: the numbers owned here, rising. `tensor_codec[t]`: codec of tensor t, all non-null. Everything referenced
  // must outlive the owner. `former`: an owner of the same slabs that has ended its last step; its residuals are
  // taken over, and no slab has one there that has none here.
  Owner(const OwnerOptions& options, const Layout& layout, std::span<const std::uint32_t> slabs,
        std::span<const Codec* const> tensor_codec, BufferPool* pool, Owner* former = nullptr);
  ~Owner();

  // Takes a push (its hold keeps the payload alive; may move from `frame`, may keep frame.hold). Slabs completed by it
  // are appended to `replies`, one frame per push that completes something (flagged slabs alone, with empty payload,
  // and apart those whose weights rounded to another total). A part flagged `keep` is zeros with its weight; a slab of
  // nothing else is answered with the flag, and its residual stays. A duplicate of a finished slab appends its reply again,
  // for that sender only.
  // Errors, with nothing changed: kCorrupt (a field, a length, a slab not owned, values that do not validate) means the
  // sender broke the protocol; kMismatch (epoch); kInvalidArgument (step outside the window: a stale frame to drop).
  Status OnPush(Frame& frame, RecycledList<ReplyFrame>* replies);
  // What OnPush checks first, of the header alone and whatever the step. Errors as there.
  Status CheckHeader(const FrameHeader& header) const;
  // The step that is open, and whether all of it is answered.
  StepId step() const;
  bool all_done() const;

  // The step's verdict: commit swaps the residuals of lossy replies, skip drops them; results of the step are freed.
  // Also understood from the flags of the first frame of step + 1. Repeats are harmless: false, nothing done.
  bool OnVerdict(StepId step, bool commit);

  // What unfinished slabs of the current step wait for: "slab 17 (fc1.weight) misses ranks 2, 3"; empty if nothing.
  std::string Missing(std::size_t max_items) const;

  struct Stats {
    std::uint64_t pushes = 0, duplicates = 0, stale = 0, slabs_done = 0, non_finite_slabs = 0;
    std::uint64_t saturated = 0;  // numbers of replies (Codec::Saturated)
    std::uint64_t held_bytes = 0, held_bytes_max = 0, accumulator_bytes = 0;
  };
  const Stats& stats() const;
  // Sum over owned tensors' reply residual: L1 norm; and the committed residual of one slab (empty if none).
  double ResidualL1() const;
  std::span<const float> Residual(SlabId slab) const;
  // Makes `values` the committed residual of a slab that has one; no slab of the open step may be done.
  void RestoreResidual(SlabId slab, std::span<const float> values);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally
