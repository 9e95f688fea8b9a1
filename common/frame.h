// FrameHeader: the header of a data frame as plain C++, and its bytes (preamble + Cap'n Proto, schemas/frame.capnp).
// Decoding takes hostile bytes: everything is bounded and checked before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/crc32c.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

inline constexpr std::uint64_t kMaxPayloadBytes = std::uint64_t{4} << 20;  // DESIGN: a frame is at most 4 MiB
inline constexpr std::size_t kMaxHeaderBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFrameSlabs = 65536;
inline constexpr std::size_t kPreambleBytes = 16;
inline constexpr std::uint32_t kPreambleMagic = 0x594C4C54;  // "TLLY" little-endian
inline constexpr std::uint16_t kProtocolVersion = 1;

enum class Role : std::uint8_t { kWorker = 0, kServer = 1 };

enum class FrameKind : std::uint8_t { kHello, kWelcome, kPush, kReply, kPartial, kTotal, kControl, kCredit,
                                       kNodePush, kNodeReply, kProbe };

enum FrameFlags : std::uint16_t {
  kFlagNonFinite = 1,          // the slab (alone in its frame, empty payload; in a schedule: in the data) is void
  kFlagPreviousCommitted = 2,  // verdict of step-1, for owners that have not heard it
  kFlagPreviousSkipped = 4,
  kFlagKeep = 8,               // zeros, sent with an empty payload: no residual was added, none changes
  kFlagInPlace = 16,           // inside a node: empty payload, the numbers lie in memory that both have mapped
  kFlagZeros = 32,             // inside a node: zeros, sent with an empty payload
};

enum class CollectiveKind : std::uint8_t { kAllReduce = 0, kBroadcast = 1, kAllGather = 2, kReduceScatter = 3 };
inline constexpr CollectiveKind kLastCollectiveKind = CollectiveKind::kReduceScatter;

struct CollectiveShape {
  std::uint64_t elements = 0;  // of a rank's block in kAllGather and kReduceScatter
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::uint64_t call = 0;  // from 1; 0: no standalone collective
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::uint32_t root = 0;  // rank, of kBroadcast
  bool operator==(const CollectiveShape&) const = default;
};

struct FrameHeader {
  std::uint64_t job_hash = 0;
  EpochId epoch;
  std::uint64_t incarnation = 0;
  GroupId group;
  StepId step;
  BucketId bucket;
  std::uint32_t position = 0;  // sender: a worker's position or a server's index, by `role`
  Role role = Role::kWorker;
  FrameKind kind = FrameKind::kPush;
  std::uint8_t codec = 0;
  std::uint8_t codec_version = 0;
  std::uint16_t flags = 0;
  double weight = 1;
  std::vector<std::uint32_t> slabs;
  std::vector<std::uint32_t> contributors;
  CollectiveShape collective;
  float factor = 1;  // kNodePush in place: what the numbers are to be multiplied by
  // Filled by the transport on Send; checked by it on receipt.
  std::uint64_t payload_bytes = 0;
  std::uint32_t payload_crc = 0;
  bool has_crc = false;
};

struct Preamble {
  std::uint32_t header_bytes = 0;
  std::uint32_t payload_bytes = 0;
};

// Writes the header's Cap'n Proto bytes into `out` (cleared first; its capacity is reused). Length is a multiple of 8.
void EncodeHeader(const FrameHeader& header, std::vector<std::byte>* out);

// Reads them back. `bytes` need not be aligned. Errors: kCorrupt with the field;
// `header` is then in an unspecified but valid state.
Status DecodeHeader(std::span<const std::byte> bytes, FrameHeader* header);

// The 16-byte preamble of a TCP stream, little-endian, pinned by golden tests: magic u32; version u8 and header bytes
// u24; payload bytes u32; CRC32C u32 over these 12 bytes and the header.
void EncodePreamble(const Preamble& preamble, std::span<const std::byte> header,
                    std::span<std::byte, kPreambleBytes> out);
// Checks magic, version (kMismatch, both named) and bounds; the CRC is for CheckHeaderCrc, once the header is there.
Result<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> bytes, std::uint64_t max_payload_bytes);
Status CheckHeaderCrc(std::span<const std::byte, kPreambleBytes> preamble, std::span<const std::byte> header);

}  // namespace tally
