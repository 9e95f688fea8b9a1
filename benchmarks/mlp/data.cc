#include "benchmarks/mlp/data.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "benchmarks/mlp/random.h"

namespace tally::mlp {
namespace {

constexpr std::size_t kSide = 28;
constexpr float kMean = 0.286f, kDeviation = 0.353f;  // of the training pictures' pixels in [0, 1]
constexpr std::uint32_t kMaxRows = 1'000'000;

// A gzip'd IDX file of unsigned bytes (big-endian sizes in front, the first is the number of rows), read row by row.
class IdxReader {
 public:
  // `sizes`: what every dimension after the first must be.
  static Result<IdxReader> Open(const std::string& path, std::span<const std::uint32_t> sizes) {
    errno = 0;
    IdxReader reader;
    reader.path_ = path;
    reader.file_.reset(gzopen(path.c_str(), "rb"));
    if (!reader.file_) {
      return Unavailable(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be opened") +
                         "; install Debian's package dataset-fashion-mnist (apt-get install dataset-fashion-mnist)");
    }
    std::vector<std::uint8_t> header(4 * (2 + sizes.size()));
    TALLY_RETURN_IF_ERROR(reader.Read(header));
    const auto word = [&](std::size_t index) {
      std::uint32_t value = 0;
      for (std::size_t i = 0; i < 4; ++i) value = value << 8 | header[4 * index + i];
      return value;
    };
    bool ok = word(0) == 0x0801u + sizes.size() && word(1) <= kMaxRows;
    for (std::size_t i = 0; i < sizes.size(); ++i) ok = ok && word(2 + i) == sizes[i];
    if (!ok) return Corrupt(path + ": its header is not that of " + (sizes.empty() ? "labels" : "28x28 pictures"));
    reader.rows_ = word(1);
    return reader;
  }

  std::uint32_t rows() const { return rows_; }

  Status Read(std::span<std::uint8_t> bytes) {
    if (gzread(file_.get(), bytes.data(), static_cast<unsigned>(bytes.size())) != static_cast<int>(bytes.size())) {
      return Corrupt(path_ + ": ends before what its header announces");
    }
    return Status::Ok();
  }

 private:
  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };
  std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::uint32_t rows_ = 0;
};

void Shrink(std::span<const std::uint8_t, kSide * kSide> picture, float* out) {
  for (std::size_t y = 0; y < kSide; y += 2) {
    for (std::size_t x = 0; x < kSide; x += 2) {
      const std::uint8_t* p = picture.data() + y * kSide + x;
      const float mean = static_cast<float>(p[0] + p[1] + p[kSide] + p[kSide + 1]) / (4 * 255.0f);
      *out++ = (mean - kMean) / kDeviation;
    }
  }
}

}  // namespace

Range ShardOf(std::size_t rows, std::size_t index, std::size_t count) {
  return {rows * index / count, rows * (index + 1) / count};
}

Result<Dataset> LoadFashionMnist(Split split, std::size_t index, std::size_t count, const std::string& folder) {
  const std::string prefix = folder + (split == Split::kTrain ? "/train" : "/t10k");
  TALLY_ASSIGN_OR_RETURN(auto label_file, IdxReader::Open(prefix + "-labels-idx1-ubyte.gz", {}));
  constexpr std::array<std::uint32_t, 2> kPicture = {kSide, kSide};
  TALLY_ASSIGN_OR_RETURN(auto picture_file, IdxReader::Open(prefix + "-images-idx3-ubyte.gz", kPicture));
  const std::uint32_t rows = label_file.rows();
  if (picture_file.rows() != rows) {
    return Corrupt(prefix + "-*: " + std::to_string(picture_file.rows()) + " pictures but " + std::to_string(rows) +
                   " labels");
  }
  std::vector<std::uint8_t> labels(rows);
  TALLY_RETURN_IF_ERROR(label_file.Read(labels));
  if (std::any_of(labels.begin(), labels.end(), [](std::uint8_t label) { return label >= kClasses; })) {
    return Corrupt(prefix + "-labels-idx1-ubyte.gz: a label above 9");
  }

  std::vector<std::uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return labels[a] < labels[b]; });
  std::vector<std::uint32_t> place(rows);
  for (std::uint32_t i = 0; i < rows; ++i) place[order[i]] = i;

  const Range shard = ShardOf(rows, index, count);
  Dataset data;
  data.labels.resize(shard.size());
  data.pixels.resize(shard.size() * kInputs);
  std::array<std::uint8_t, kSide * kSide> picture;
  for (std::uint32_t row = 0; row < rows; ++row) {
    TALLY_RETURN_IF_ERROR(picture_file.Read(picture));
    if (place[row] < shard.begin || place[row] >= shard.end) continue;
    const std::size_t target = place[row] - shard.begin;
    data.labels[target] = labels[row];
    Shrink(picture, data.pixels.data() + target * kInputs);
  }
  return data;
}

void DrawBatch(const Dataset& shard, std::uint64_t seed, std::uint32_t rank, std::uint64_t step, std::size_t rows,
               Batch& batch) {
  TALLY_CHECK(shard.size() > 0, "a batch is drawn from a shard that is not empty");
  // Mixed one after the other: rank 1 of step 0 and rank 0 of step 1 must not meet.
  Random random(Random(Random(Random(seed).Next() + rank).Next() + step).Next());
  batch.pixels.resize(rows * kInputs);
  batch.labels.resize(rows);
  float* out = batch.pixels.data();
  for (std::size_t i = 0; i < rows; ++i) {
    const std::size_t index = random.Below(static_cast<std::uint32_t>(shard.size()));
    const auto row = shard.row(index);
    out = std::copy(row.begin(), row.end(), out);
    batch.labels[i] = shard.labels[index];
  }
}

}  // namespace tally::mlp
