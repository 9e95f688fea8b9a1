// Fashion-MNIST for the training job: reads Debian's gzip files, shrinks the pictures, cuts contiguous shards.
// Sorted by label before it is cut, so that every worker sees few classes: a gradient that is lost is then missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace tally::mlp {

inline constexpr std::size_t kInputs = 14 * 14;  // 28x28 pictures, averaged over 2x2
inline constexpr std::size_t kClasses = 10;
inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

struct Dataset {
  std::vector<float> pixels;         // size() rows of kInputs, normalised: 0 is the mean grey, 1 one standard deviation above
  std::vector<std::uint8_t> labels;  // < kClasses

  std::size_t size() const { return labels.size(); }
  std::span<const float> row(std::size_t index) const { return {pixels.data() + index * kInputs, kInputs}; }
};

enum class Split { kTrain, kTest };

// The half-open range of rows of shard `index` of `count`: contiguous, disjoint, together all rows, sizes differ by at
// most one.
struct Range {
  std::size_t begin = 0, end = 0;
  std::size_t size() const { return end - begin; }
};
Range ShardOf(std::size_t rows, std::size_t index, std::size_t count);

// Shard `index` of `count` of the rows sorted by label (equal labels keep the file's order). Only the shard is kept in
// memory. Errors: kUnavailable naming the file and the Debian package that holds it; kCorrupt if a file is not what its
// header says.
Result<Dataset> LoadFashionMnist(Split split, std::size_t index = 0, std::size_t count = 1,
                                 const std::string& folder = kFashionMnistFolder);

// One mini-batch, drawn with replacement from `shard` by a generator seeded with (seed, rank, step).
struct Batch {
  std::vector<float> pixels;
  std::vector<std::uint8_t> labels;
};
void DrawBatch(const Dataset& shard, std::uint64_t seed, std::uint32_t rank, std::uint64_t step, std::size_t rows,
               Batch& batch);

}  // namespace tally::mlp
