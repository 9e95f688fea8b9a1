// The loader against small IDX files that the test writes, and against the packaged data set where it is installed.
#include "benchmarks/mlp/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <numeric>
#include <set>

namespace tally::mlp {
namespace {

using testing::HasSubstr;

class IdxFolder {
 public:
  IdxFolder() {
    std::string pattern = testing::TempDir() + "tally_idx_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~IdxFolder() { std::filesystem::remove_all(path_); }

  void Write(const std::string& name, std::uint32_t magic, const std::vector<std::uint32_t>& sizes,
             const std::vector<std::uint8_t>& bytes) const {
    gzFile file = gzopen((path_ + "/" + name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    const auto put = [&](std::uint32_t word) {
      for (int shift = 24; shift >= 0; shift -= 8) gzputc(file, static_cast<int>(word >> shift & 255));
    };
    put(magic);
    for (const std::uint32_t size : sizes) put(size);
    if (!bytes.empty()) gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
  }
  // Picture i is filled with value i; labels as given.
  void WriteTrain(const std::vector<std::uint8_t>& labels) const {
    const auto rows = static_cast<std::uint32_t>(labels.size());
    std::vector<std::uint8_t> pixels;
    for (std::size_t i = 0; i < labels.size(); ++i) pixels.insert(pixels.end(), 784, static_cast<std::uint8_t>(i));
    Write("train-images-idx3-ubyte.gz", 0x803, {rows, 28, 28}, pixels);
    Write("train-labels-idx1-ubyte.gz", 0x801, {rows}, labels);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

float Grey(int value) { return (static_cast<float>(4 * value) / (4 * 255.0f) - 0.286f) / 0.353f; }

TEST(ShardOf, CoversEveryRowOnceWithEvenSizes) {
  for (const std::size_t rows : {0u, 1u, 3u, 7u, 101u, 60000u}) {
    for (const std::size_t shards : {1u, 2u, 3u, 4u, 7u}) {
      std::size_t next = 0;
      for (std::size_t i = 0; i < shards; ++i) {
        const Range range = ShardOf(rows, i, shards);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), rows / shards);
        EXPECT_LE(range.size(), (rows + shards - 1) / shards);
        next = range.end;
      }
      EXPECT_EQ(next, rows);
    }
  }
}

TEST(LoadFashionMnist, SortsByLabelAndKeepsTheFileOrderWithinOne) {
  const IdxFolder folder;
  folder.WriteTrain({3, 1, 3, 0, 1, 9, 0});
  const Dataset data = LoadFashionMnist(Split::kTrain, 0, 1, folder.path()).value();
  EXPECT_THAT(data.labels, testing::ElementsAre(0, 0, 1, 1, 3, 3, 9));
  const std::array<int, 7> source = {3, 6, 1, 4, 0, 2, 5};
  for (std::size_t i = 0; i < source.size(); ++i) {
    for (const float pixel : data.row(i)) EXPECT_EQ(pixel, Grey(source[i]));
  }
}

TEST(LoadFashionMnist, ShardsAreTheSortedRowsInParts) {
  const IdxFolder folder;
  folder.WriteTrain({3, 1, 3, 0, 1, 9, 0, 2, 2, 5, 8});
  const Dataset all = LoadFashionMnist(Split::kTrain, 0, 1, folder.path()).value();
  for (const std::size_t shards : {1u, 2u, 3u, 4u, 7u}) {
    Dataset joined;
    for (std::size_t i = 0; i < shards; ++i) {
      const Dataset part = LoadFashionMnist(Split::kTrain, i, shards, folder.path()).value();
      joined.labels.insert(joined.labels.end(), part.labels.begin(), part.labels.end());
      joined.pixels.insert(joined.pixels.end(), part.pixels.begin(), part.pixels.end());
    }
    EXPECT_EQ(joined.labels, all.labels);
    EXPECT_EQ(joined.pixels, all.pixels);
  }
}

TEST(LoadFashionMnist, AveragesTwoByTwo) {
  const IdxFolder folder;
  std::vector<std::uint8_t> picture(784);
  picture[0] = 40, picture[1] = 80, picture[28] = 120, picture[29] = 160;  // mean 100
  picture[783] = 200;                                                      // mean 50
  folder.Write("train-images-idx3-ubyte.gz", 0x803, {1, 28, 28}, picture);
  folder.Write("train-labels-idx1-ubyte.gz", 0x801, {1}, {7});
  const Dataset data = LoadFashionMnist(Split::kTrain, 0, 1, folder.path()).value();
  EXPECT_EQ(data.row(0)[0], Grey(100));
  EXPECT_EQ(data.row(0)[1], Grey(0));
  EXPECT_EQ(data.row(0)[195], Grey(50));
}

TEST(LoadFashionMnist, MissingFileNamesItAndThePackage) {
  const auto loaded = LoadFashionMnist(Split::kTest, 0, 1, "/nonexistent/folder");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().kind(), StatusKind::kUnavailable);
  EXPECT_THAT(loaded.status().text(), HasSubstr("/nonexistent/folder/t10k-"));
  EXPECT_THAT(loaded.status().text(), HasSubstr("dataset-fashion-mnist"));
}

TEST(LoadFashionMnist, RefusesFilesThatAreNotWhatTheyClaim) {
  const IdxFolder folder;
  const auto kind = [&] { return LoadFashionMnist(Split::kTrain, 0, 1, folder.path()).status().kind(); };
  folder.WriteTrain({1, 2});
  folder.Write("train-labels-idx1-ubyte.gz", 0x801, {3}, {1, 2, 3});  // one label too many
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
  folder.Write("train-labels-idx1-ubyte.gz", 0x801, {2}, {1});  // cut short
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
  folder.Write("train-labels-idx1-ubyte.gz", 0x801, {2}, {1, 10});  // no such class
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
  folder.Write("train-labels-idx1-ubyte.gz", 0x803, {2}, {1, 2});  // another magic
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
  folder.Write("train-labels-idx1-ubyte.gz", 0x801, {0xffffffff}, {1, 2});  // absurd
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
  folder.WriteTrain({1, 2});
  folder.Write("train-images-idx3-ubyte.gz", 0x803, {2, 28, 29}, std::vector<std::uint8_t>(2 * 28 * 29));
  EXPECT_EQ(kind(), StatusKind::kCorrupt);
}

TEST(LoadFashionMnist, ThePackagedDataSetHasItsSizesAndFewClassesPerShard) {
  ASSERT_TRUE(std::filesystem::exists(std::string(kFashionMnistFolder) + "/t10k-images-idx3-ubyte.gz"))
      << "Debian's package dataset-fashion-mnist is not installed";
  const Dataset test = LoadFashionMnist(Split::kTest).value();
  EXPECT_EQ(test.size(), 10000u);
  EXPECT_EQ(test.pixels.size(), 10000u * kInputs);
  const Dataset shard = LoadFashionMnist(Split::kTrain, 1, 4).value();
  EXPECT_EQ(shard.size(), 15000u);
  const std::set<int> classes(shard.labels.begin(), shard.labels.end());
  EXPECT_THAT(classes, testing::ElementsAre(2, 3, 4));
  const double sum = std::accumulate(test.pixels.begin(), test.pixels.end(), 0.0);
  EXPECT_NEAR(sum / static_cast<double>(test.pixels.size()), 0.0, 0.02);
}

TEST(DrawBatch, DependsOnSeedRankAndStepAndStaysInTheShard) {
  Dataset shard;
  shard.labels.resize(50);
  shard.pixels.resize(50 * kInputs);
  for (std::size_t i = 0; i < 50; ++i) shard.pixels[i * kInputs] = static_cast<float>(i);
  const auto rows = [&](std::uint64_t seed, std::uint32_t rank, std::uint64_t step) {
    Batch batch;
    DrawBatch(shard, seed, rank, step, 64, batch);
    std::vector<float> drawn;
    for (std::size_t i = 0; i < 64; ++i) drawn.push_back(batch.pixels[i * kInputs]);
    return drawn;
  };
  EXPECT_EQ(rows(1, 0, 0), rows(1, 0, 0));
  std::set<std::vector<float>> different;
  for (std::uint64_t seed : {1u, 2u}) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      for (std::uint64_t step = 0; step < 4; ++step) different.insert(rows(seed, rank, step));
    }
  }
  EXPECT_EQ(different.size(), 32u);
}

}  // namespace
}  // namespace tally::mlp
