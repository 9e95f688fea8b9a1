#include "worker/node_collective.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>

#include "common/check.h"
#include "server/core/collective_calls.h"

namespace tally {
namespace {

// A piece is staged, summed and taken out while it is in the cache.
constexpr std::size_t kPiece = std::size_t{1} << 18;  // elements
// Up to this size everybody sums everything, which saves a wait.
constexpr std::size_t kWhole = std::size_t{1} << 13;
// From this size on results do not fit in the cache anyway.
constexpr std::size_t kStream = std::size_t{1} << 21;
constexpr std::size_t kLine = 128;  // bytes, two cache lines: neighbours are fetched in pairs
constexpr std::size_t kPage = 4096;
constexpr Nanos kLook = std::chrono::milliseconds(20);

std::size_t ControlBytes(std::uint32_t ranks) { return (kLine * (ranks + 1) + kPage - 1) / kPage * kPage; }

// Elements that `rank` sums of `n`, from a multiple of a cache line on.
std::pair<std::size_t, std::size_t> Part(std::size_t n, std::uint32_t rank, std::uint32_t ranks) {
  const std::size_t lines = (n + 15) / 16;
  return {std::min(n, lines * rank / ranks * 16), std::min(n, lines * (rank + 1) / ranks * 16)};
}

std::string Memory(std::uint32_t number) {
  return number == 0 ? "memory of its own" : "buffer " + std::to_string(number);
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// The futex word is the number of the last round that everybody has come to.
struct NodeCollective::Control {
  std::atomic<std::uint32_t> complete;
  std::atomic<std::uint32_t> sleepers;
  alignas(64) std::atomic<std::uint64_t> arrivals;  // over all rounds
};

// What a rank asks for stands in one of two places by turns: it may be a round ahead of who still compares.
struct NodeCollective::RankLine {
  struct Asked {
    std::atomic<std::uint64_t> elements, call;
    std::atomic<std::uint32_t> op, memory;
  };
  std::atomic<std::uint32_t> round;  // last one that it has come to
  Asked asked[2];
};

std::uint64_t NodeCollective::StagingBytes(std::uint32_t ranks) { return ControlBytes(ranks) + 2 * kPiece * sizeof(float); }

NodeCollective::NodeCollective(Options options, std::vector<std::span<std::byte>> staging, std::span<std::byte> shared)
    : options_(std::move(options)),
      staging_(std::move(staging)),
      control_(reinterpret_cast<Control*>(shared.data())),
      lines_(shared.data() + kLine),
      results_(shared.data() + ControlBytes(options_.ranks)) {
  static_assert(sizeof(Control) <= kLine && sizeof(RankLine) <= kLine);
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);
  TALLY_CHECK(staging_.size() == options_.ranks && shared.size() >= StagingBytes(options_.ranks), "memory of all ranks");
  terms_.resize(options_.ranks);
}

NodeCollective::RankLine& NodeCollective::Line(std::uint32_t rank) const {
  return *reinterpret_cast<RankLine*>(lines_ + rank * kLine);
}

float* NodeCollective::Staged(std::uint32_t rank, std::uint32_t slot) const {
  return reinterpret_cast<float*>(staging_[rank].data() + ControlBytes(options_.ranks)) + slot * kPiece;
}

float* NodeCollective::Result(std::uint32_t slot) const { return reinterpret_cast<float*>(results_) + slot * kPiece; }

Status NodeCollective::Begin(const CollectiveShape& shape, std::uint32_t memory) {
  shape_ = shape;
  const std::uint32_t place = (round_ + 1) % 2;
  RankLine::Asked& own = Line(options_.self).asked[place];
  own.op.store(static_cast<std::uint32_t>(shape.op), std::memory_order_relaxed);
  own.memory.store(memory, std::memory_order_relaxed);
  own.elements.store(shape.elements, std::memory_order_relaxed);
  own.call.store(shape.call, std::memory_order_relaxed);
  TALLY_RETURN_IF_ERROR(AllHere());
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    const RankLine::Asked& asked = Line(rank).asked[place];
    const CollectiveShape other{asked.elements.load(std::memory_order_relaxed), DType::kFloat32,
                                asked.op.load(std::memory_order_relaxed) == 0 ? ReduceOp::kSum : ReduceOp::kMean,
                                asked.call.load(std::memory_order_relaxed)};
    const std::uint32_t others = asked.memory.load(std::memory_order_relaxed);
    if (other == shape && others == memory) continue;
    if (other == shape) {
      return Mismatch("collective call " + std::to_string(shape.call) + ": rank " + std::to_string(options_.self) +
                      " gives " + Memory(memory) + ", rank " + std::to_string(rank) + " " + Memory(others) +
                      "; all ranks make the same calls with the same buffers in the same order");
    }
    return CollectiveMismatch(Rank(options_.self), shape, Rank(rank), other);
  }
  return Status::Ok();
}

// Everybody has come to this point. The last one wakes those who sleep.
Status NodeCollective::AllHere() {
  const std::uint32_t round = ++round_;
  Line(options_.self).round.store(round, std::memory_order_relaxed);
  const std::uint64_t arrivals = control_->arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrivals % options_.ranks != 0) return WaitFor(round);
  control_->complete.store(round, std::memory_order_seq_cst);
  if (control_->sleepers.load(std::memory_order_seq_cst) != 0) {
    syscall(SYS_futex, &control_->complete, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  return Status::Ok();
}

Status NodeCollective::WaitFor(std::uint32_t round) {
  const auto complete = [this, round] {
    return static_cast<std::int32_t>(control_->complete.load(std::memory_order_seq_cst) - round) >= 0;
  };
  const TimePoint begin = std::chrono::steady_clock::now();
  if (options_.spin.count() > 0) {
    for (const TimePoint end = begin + options_.spin; std::chrono::steady_clock::now() < end;) {
      for (int i = 0; i < 64; ++i) {
        if (complete()) return Status::Ok();
        Pause();
      }
      sched_yield();  // who is waited for may want this core
    }
  }
  while (true) {
    control_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    const std::uint32_t seen = control_->complete.load(std::memory_order_seq_cst);
    if (static_cast<std::int32_t>(seen - round) < 0) {
      const timespec look{0, std::chrono::nanoseconds(kLook).count()};
      syscall(SYS_futex, &control_->complete, FUTEX_WAIT, seen, &look, nullptr, 0);
    }
    control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (complete()) return Status::Ok();
    const Nanos waited = std::chrono::steady_clock::now() - begin;
    TALLY_RETURN_IF_ERROR(options_.alive(waited));
    if (waited >= options_.timeout) {
      return Timeout(DescribeCollective(shape_) + " (call " + std::to_string(shape_.call) + "): " + Absent(round) + " did not come");
    }
  }
}

std::string NodeCollective::Absent(std::uint32_t round) const {
  std::string text;
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) {
    if (static_cast<std::int32_t>(Line(rank).round.load(std::memory_order_relaxed) - round) >= 0) continue;
    text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return text.empty() ? "nobody" : text;
}

// Piece k is staged while the others still sum piece k-1, and taken out while they stage piece k+1; one wait per piece.
// Slots alternate through all calls: whoever writes one has met everybody since the last reading of it.
Status NodeCollective::Reduce(std::span<const float> in, std::span<float> out, const CollectiveShape& shape,
                              std::uint32_t memory) {
  const std::size_t n = in.size();
  const float divisor = Divisor(shape);
  std::uint32_t slot = slot_;
  slot_ ^= 1;
  if (n <= kWhole) {
    Copy(Staged(options_.self, slot), in.data(), n, false);
    TALLY_RETURN_IF_ERROR(Begin(shape, memory));
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) terms_[rank] = {Staged(rank, slot), 1};
    (void)SumTerms(out.data(), terms_, divisor, n, false);
    return Status::Ok();
  }
  // What this rank sums itself need not be staged.
  const auto stage = [&](std::size_t first, std::uint32_t to) {
    const std::size_t count = std::min(n - first, kPiece);
    const auto [begin, end] = Part(count, options_.self, options_.ranks);
    Copy(Staged(options_.self, to), in.data() + first, begin, false);
    Copy(Staged(options_.self, to) + end, in.data() + first + end, count - end, false);
  };
  stage(0, slot);
  TALLY_RETURN_IF_ERROR(Begin(shape, memory));
  for (std::size_t first = 0; first < n; first += kPiece) {
    const std::size_t count = std::min(n - first, kPiece), next = first + count;
    const auto [begin, end] = Part(count, options_.self, options_.ranks);
    for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) terms_[rank] = {Staged(rank, slot) + begin, 1};
    terms_[options_.self].values = in.data() + first + begin;
    (void)SumTerms(Result(slot) + begin, terms_, divisor, end - begin, false);
    if (next < n) stage(next, slot_);
    TALLY_RETURN_IF_ERROR(AllHere());
    Copy(out.data() + first, Result(slot), count, n >= kStream);
    if (next < n) {
      slot = slot_;
      slot_ ^= 1;
    }
  }
  return Status::Ok();
}

Status NodeCollective::ReduceShared(std::span<const float* const> inputs, std::span<float> out,
                                    const CollectiveShape& shape, std::uint32_t memory) {
  const std::size_t n = out.size();
  // An input may be written again as soon as its own rank's call has ended, so a small one is read from where it is staged.
  if (n <= kWhole) return Reduce({inputs[options_.self], n}, out, shape, memory);
  TALLY_RETURN_IF_ERROR(Begin(shape, memory));
  const auto [begin, end] = Part(n, options_.self, options_.ranks);
  for (std::uint32_t rank = 0; rank < options_.ranks; ++rank) terms_[rank] = {inputs[rank] + begin, 1};
  (void)SumTerms(out.data() + begin, terms_, Divisor(shape), end - begin, n >= kStream);
  return AllHere();
}

Status NodeCollective::AllReduce(std::span<const float> in, std::span<float> out, const CollectiveShape& shape) {
  return broken_.ok() ? Kept(Reduce(in, out, shape, 0)) : broken_;
}

Status NodeCollective::AllReduceShared(std::span<const float* const> inputs, std::span<float> out,
                                       const CollectiveShape& shape, std::uint32_t memory) {
  return broken_.ok() ? Kept(ReduceShared(inputs, out, shape, memory)) : broken_;
}

// Rounds are no longer those of the others after one.
Status NodeCollective::Kept(const Status& status) {
  if (broken_.ok()) broken_ = status;
  return status;
}

}  // namespace tally
