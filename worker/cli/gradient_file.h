// Recorded gradients: some tensors of a few consecutive steps of one worker, written by train_mlp --record-gradients,
// read by tally explain. The file, little-endian: "TALLYGRD", u32 version 1, u32 type of the values (0 fp32, 1 fp16),
// u32 steps, u32 tensors; per tensor u32 rows, u32 columns, u32 length of the name, the name; per step and tensor the
// values, row by row; CRC32C (u32) of everything before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/units.h"

namespace tally::cli {

struct RecordedTensor {
  std::string name;
  std::uint32_t rows = 0, columns = 0;

  std::size_t elements() const { return std::size_t{rows} * columns; }
};

struct RecordedGradients {
  std::vector<RecordedTensor> tensors;
  std::vector<std::vector<float>> steps;  // each: all tensors' values, one after another

  std::size_t elements() const;  // of a step
};

// Requires steps of elements() values. `type` fp32 or fp16 (rounded to nearest even, saturated).
std::vector<std::byte> EncodeGradients(const RecordedGradients& gradients, DType type);
// Hostile bytes. Errors: kCorrupt with the field, expected and got; a value that is not finite.
Result<RecordedGradients> DecodeGradients(std::span<const std::byte> bytes);

// Errors: kUnavailable (path, errno), kCorrupt.
Result<RecordedGradients> ReadGradients(const std::string& path);

}  // namespace tally::cli
