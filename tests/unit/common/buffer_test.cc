#include "common/buffer.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "common/shared_memory.h"

namespace tally {
namespace {

struct Count {
  int calls = 0;
  std::uint64_t tag = 0;
  Release release(std::uint64_t with_tag = 0) {
    return {[](void* context, std::uint64_t t) {
              auto* self = static_cast<Count*>(context);
              ++self->calls;
              self->tag = t;
            },
            this, with_tag};
  }
};

TEST(BufferPool, BlocksAreAlignedExactInSizeAndUnique) {
  BufferPool pool;
  for (const std::size_t bytes : {0u, 1u, 63u, 4095u, 4096u, 4097u, 65537u, 4u << 20}) {
    BufferRef ref = pool.Get(bytes);
    EXPECT_EQ(ref.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ref.data()) % 64, 0u);
    if (bytes > 0) std::memset(ref.data(), 0x5A, bytes);
    EXPECT_TRUE(ref.unique());
    const BufferRef second = ref;
    EXPECT_FALSE(ref.unique());
    EXPECT_EQ(second.data(), ref.data());
  }
}

TEST(BufferPool, AWarmPoolAllocatesNothing) {
  BufferPool pool;
  for (const std::size_t bytes : {100u, 5000u, 70000u}) pool.Get(bytes).Reset();
  const auto allocations = pool.stats().allocations;
  for (int round = 0; round < 100; ++round) {
    const BufferRef a = pool.Get(101), b = pool.Get(4999), c = pool.Get(65600);
  }
  EXPECT_EQ(pool.stats().allocations, allocations);
  EXPECT_EQ(pool.stats().in_use_bytes, 0u);
}

TEST(BufferPool, KeepsNoMoreIdleMemoryThanTold) {
  BufferPool pool(8192);
  std::vector<BufferRef> refs;
  for (int i = 0; i < 10; ++i) refs.push_back(pool.Get(4096));
  EXPECT_EQ(pool.stats().in_use_bytes, 40960u);
  refs.clear();
  EXPECT_EQ(pool.stats().in_use_bytes, 0u);
  EXPECT_EQ(pool.stats().idle_bytes, 8192u);
}

TEST(BufferPool, BlocksOutliveThePool) {
  BufferRef ref;
  {
    BufferPool pool;
    ref = pool.Get(1000);
    std::memset(ref.data(), 7, 1000);
  }
  EXPECT_EQ(ref.data()[999], std::byte{7});
}

TEST(BufferRef, MovesCopiesAndAssigns) {
  BufferPool pool;
  BufferRef a = pool.Get(10);
  std::byte* const place = a.data();
  BufferRef b = std::move(a);
  EXPECT_EQ(b.data(), place);
  BufferRef c;
  EXPECT_FALSE(c);
  c = b;
  b = std::move(c);  // onto the same block
  EXPECT_TRUE(b.unique());
  BufferRef& alias = b;
  b = alias;
  EXPECT_TRUE(b.unique());
}

TEST(BufferRef, WrappedMemoryIsReleasedOnceByTheLast) {
  BufferPool pool;
  std::array<std::byte, 8> memory;
  Count count;
  for (int round = 1; round <= 3; ++round) {
    BufferRef a = pool.Wrap(memory, count.release(static_cast<std::uint64_t>(round)));
    EXPECT_EQ(a.data(), memory.data());
    BufferRef b = a;
    a.Reset();
    EXPECT_EQ(count.calls, round - 1);
    EXPECT_TRUE(b.unique());
    b.Reset();
    b.Reset();
    EXPECT_EQ(count.calls, round);
    EXPECT_EQ(count.tag, static_cast<std::uint64_t>(round));
  }
}

TEST(BufferRef, ReadOnlyMemoryIsNeverUnique) {
  BufferPool pool;
  const std::array<std::byte, 8> memory{};
  Count count;
  BufferRef ref = pool.WrapConst(memory, count.release());
  EXPECT_FALSE(ref.unique());
  ref.Reset();
  EXPECT_EQ(count.calls, 1);
  std::array<std::byte, 8> writable;
  EXPECT_TRUE(pool.Wrap(writable, {}).unique()) << "a recycled wrapper must not stay read-only";
}

TEST(BufferRef, BecomesAReleaseAndComesBack) {
  BufferPool pool;
  BufferRef ref = pool.Get(16);
  std::byte* const place = ref.data();
  Release release = std::move(ref).IntoRelease();
  EXPECT_FALSE(ref);
  EXPECT_GT(pool.stats().in_use_bytes, 0u);
  BufferRef back = BufferRef::FromRelease(release);
  EXPECT_EQ(back.data(), place);
  EXPECT_TRUE(back.unique());
  release = std::move(back).IntoRelease();
  release();
  EXPECT_EQ(pool.stats().in_use_bytes, 0u);
  BufferRef().IntoRelease()();
}

// What is idle beyond the bound gives its pages back; the block itself is used again.
TEST(BufferPool, SharedBlocksBeyondTheBoundTakeNoMemory) {
  constexpr std::size_t kBlock = std::size_t{1} << 20, kBlocks = 8;
  const auto shared = std::make_shared<SharedMemory>();
  BufferPool pool(2 * kBlock, shared);
  std::vector<BufferRef> blocks;
  const auto fill = [&] {
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks.push_back(pool.Get(kBlock));
      std::ranges::fill(blocks.back().bytes(), std::byte{1});
    }
  };
  fill();
  std::vector<int> arenas;
  std::set<const std::byte*> places;
  for (const BufferRef& block : blocks) {
    const auto place = shared->Find(block.bytes());
    ASSERT_TRUE(place.has_value());
    if (std::ranges::find(arenas, place->descriptor) == arenas.end()) arenas.push_back(place->descriptor);
    places.insert(block.data());
  }
  const auto resident = [&arenas] {
    std::uint64_t bytes = 0;
    for (const int arena : arenas) {
      struct stat status {};
      EXPECT_EQ(fstat(arena, &status), 0);
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    return bytes;
  };
  EXPECT_GE(resident(), kBlocks * kBlock);
  blocks.clear();
  EXPECT_EQ(pool.stats().idle_bytes, 2 * kBlock);
  EXPECT_LE(resident(), 3 * kBlock);
  const std::uint64_t allocations = pool.stats().allocations;
  fill();
  EXPECT_EQ(pool.stats().allocations, allocations);
  for (const BufferRef& block : blocks) EXPECT_TRUE(places.contains(block.data()));
}

TEST(BufferRef, OtherReleasesStayWhatTheyAre) {
  BufferPool pool;
  Count count;
  EXPECT_FALSE(BufferRef::FromRelease({}));
  EXPECT_FALSE(BufferRef::FromRelease(count.release()));
  std::array<std::byte, 8> memory;
  const Release wrapped = pool.Wrap(memory, count.release()).IntoRelease();
  EXPECT_FALSE(BufferRef::FromRelease(wrapped));
  EXPECT_EQ(count.calls, 0);
  wrapped();
  EXPECT_EQ(count.calls, 1);
}

TEST(BufferRef, ReferencesMayBeDroppedOnAnyThread) {
  BufferPool pool;
  for (int round = 0; round < 200; ++round) {
    BufferRef ref = pool.Get(5000);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back([copy = ref]() mutable { copy.Reset(); });
    ref.Reset();
    for (auto& thread : threads) thread.join();
  }
  EXPECT_EQ(pool.stats().in_use_bytes, 0u);
}

}  // namespace
}  // namespace tally
