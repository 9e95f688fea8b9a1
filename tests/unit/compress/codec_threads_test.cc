// Slabs shared out to any number of threads give the same bytes.
#include <gtest/gtest.h>

#include "common/thread_pool.h"
#include "tests/unit/compress/codec_cases.h"

namespace tally {
namespace {

TEST(CodecThreads, SameBytesWhateverTheirNumber) {
  constexpr std::size_t kSlab = 4096, kSlabs = 23, kElements = kSlab * (kSlabs - 1) + 77;
  const std::vector<float> g = RandomSlab(kElements, 1), e = RandomSlab(kElements, 2);
  for (const CodecCase& c : CodecCases()) {
    const auto codec = c.Make();
    std::vector<std::byte> expected;
    std::vector<float> expected_rest;
    for (const std::size_t threads : {1u, 2u, 3u, 7u}) {
      ThreadPool pool(threads);
      std::vector<std::byte> bytes(kSlabs * codec->EncodedBytes(kSlab));
      std::vector<float> rest(kElements);
      pool.Run(kSlabs, [&](std::size_t u) {
        const std::size_t first = u * kSlab, count = std::min(kSlab, kElements - first);
        EncodeKey key = c.Key();
        key.offset = first;
        EXPECT_TRUE(codec->EncodeWithFeedback(key, g.data() + first, 1.0f, e.data() + first, rest.data() + first, count,
                                              bytes.data() + u * codec->EncodedBytes(kSlab)));
      });
      if (threads == 1) {
        expected = bytes;
        expected_rest = rest;
      }
      EXPECT_EQ(bytes, expected) << c.name << " " << c.label << ", " << threads << " threads";
      EXPECT_EQ(rest, expected_rest);
    }
  }
}

}  // namespace
}  // namespace tally
