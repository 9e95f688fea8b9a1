// Messages between a training process and its node's tally-worker, as plain structs to and from schemas/agent.capnp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/control.h"
#include "common/frame.h"
#include "common/status.h"
#include "worker/client.h"
#include "worker/step_weight.h"

namespace tally::agent {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::size_t kMaxMessageBytes = std::size_t{8} << 20;
inline constexpr std::size_t kPacketBytes = std::size_t{16} << 10;  // of the largest that travels in the socket itself

// Where numbers lie: in the how many-th memory that came for a group or buffer.
struct Place {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Body {
  std::uint64_t bytes = 0;
  bool operator==(const Body&) const = default;
};
struct Memory {
  std::uint64_t bytes = 0;
  bool operator==(const Memory&) const = default;
};

struct Attach {
  std::uint32_t protocol = kProtocol;
  std::string version, config;
  bool operator==(const Attach&) const = default;
};
struct Keep {
  std::uint32_t group = 0, tensor = 0;
  bool operator==(const Keep&) const = default;
};
struct Submit {
  std::uint32_t group = 0, bucket = 0;
  StepWeight weight;
  float learning_rate = 0;
  bool operator==(const Submit&) const = default;
};
struct EndStep {
  std::uint32_t group = 0;
  Vote vote = Vote::kCommit;
  StepWeight weight;
  float learning_rate = 0, loss_scale = 1;
  bool operator==(const EndStep&) const = default;
};
struct GiveUp {
  std::uint32_t group = 0, bucket = 0;
  StepId step;
  bool operator==(const GiveUp&) const = default;
};
struct Collective {
  CollectiveShape shape;  // without a number
  bool operator==(const Collective&) const = default;
};
struct MakeBuffer {
  std::uint64_t elements = 0;
  bool operator==(const MakeBuffer&) const = default;
};
struct ReduceBuffer {
  std::uint32_t number = 0;
  ReduceOp op = ReduceOp::kSum;
  bool operator==(const ReduceBuffer&) const = default;
};
struct ExportState {
  std::uint32_t group = 0;
  bool operator==(const ExportState&) const = default;
};
struct ImportState {
  std::uint32_t group = 0;
  bool operator==(const ImportState&) const = default;
};
struct Residual {
  std::uint32_t group = 0, tensor = 0;
  bool operator==(const Residual&) const = default;
};
struct AskStats {
  bool operator==(const AskStats&) const = default;
};
struct Leave {
  bool operator==(const Leave&) const = default;
};

struct Refused {
  std::string why;
  bool operator==(const Refused&) const = default;
};
struct Abort {
  std::string reason;
  bool operator==(const Abort&) const = default;
};

struct Attached {
  std::uint32_t workers = 0, servers = 0, local_rank = 0;
  EpochId epoch;
  std::string description;
  bool operator==(const Attached&) const = default;
};
struct TensorPlaces {
  Place input, output, output16;
  bool operator==(const TensorPlaces&) const = default;
};
struct Declared {
  GroupId id;
  StepId step;
  std::vector<std::vector<std::uint32_t>> buckets;
  std::vector<TensorPlaces> tensors;
  std::string description;
  bool operator==(const Declared&) const = default;
};
struct Reply {
  StatusKind kind = StatusKind::kOk;
  std::string text;

  explicit Reply(const Status& status = {}) : kind(status.kind()), text(status.text()) {}
  Status status() const { return {kind, text}; }
  bool operator==(const Reply&) const = default;
};
struct BucketEnd {
  std::uint32_t group = 0, bucket = 0;
  Reply reply;
  bool operator==(const BucketEnd&) const = default;
};
struct StepEnd {
  StepId step;
  Outcome outcome = Outcome::kCommitted;
  std::string reason;
  bool operator==(const StepEnd&) const = default;
};
struct Buffer {
  Place input, output;
  bool operator==(const Buffer&) const = default;
};
struct Stats {
  ClientStats stats;
  bool operator==(const Stats&) const = default;
};

using Message = std::variant<Reply, Body, Memory, Attach, DeclareMessage, Keep, Submit, EndStep, GiveUp, Collective,
                             MakeBuffer, ReduceBuffer, ExportState, ImportState, Residual, AskStats, Leave, Refused, Abort, Attached,
                             Declared, BucketEnd, StepEnd, Buffer, Stats>;

// Where a collective's numbers lie in the memory that was sent before it. In place: `out` is `in`.
struct Extent {
  std::uint64_t in_bytes = 0, out_bytes = 0, out_offset = 0;
  std::uint64_t bytes() const { return out_offset + out_bytes; }
};
Extent ExtentOf(const CollectiveShape& shape, std::uint32_t workers);

std::vector<std::byte> Encode(const Message& message);
// Hostile bytes. Errors: kCorrupt, kUnsupported (a kind that this version does not know).
Result<Message> Decode(std::span<const std::byte> bytes);

}  // namespace tally::agent
