// Preamble, little-endian: magic u32 | version u8, header bytes u24 | payload bytes u32 | CRC32C u32 of the first
// 12 bytes and the header.
#include "common/frame.h"

#include <cmath>

#include "common/crc32c.h"
#include "common/envelope.h"
#include "schemas/frame.capnp.h"

namespace tally {
namespace {

constexpr std::size_t kFixedWords = 32;  // root pointer, Header, Collective, rounding of the two lists
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;
constexpr std::uint16_t kKnownFlags = kFlagNonFinite | kFlagPreviousCommitted | kFlagPreviousSkipped | kFlagKeep |
                                      kFlagInPlace | kFlagZeros;
constexpr std::size_t kCrcOffset = 12;
static_assert(kProtocolVersion <= 0xFF && kMaxHeaderBytes < std::size_t{1} << 24);

Status Wrong(const char* field, std::uint64_t got) {
  return Corrupt(std::string("frame header: ") + field + " = " + std::to_string(got));
}

void StoreU32(std::byte* out, std::uint32_t value) { std::memcpy(out, &value, sizeof value); }

std::uint32_t LoadU32(const std::byte* in) {
  std::uint32_t value;
  std::memcpy(&value, in, sizeof value);
  return value;
}

template <typename List>
void Store(const std::vector<std::uint32_t>& from, List to) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}

template <typename List>
void Load(List from, std::vector<std::uint32_t>* to) {
  to->clear();
  to->reserve(from.size());
  for (const std::uint32_t value : from) to->push_back(value);
}

Status Read(schema::Header::Reader from, FrameHeader* to) {
  const auto kind = static_cast<std::uint16_t>(from.getKind());
  if (kind > static_cast<std::uint16_t>(FrameKind::kProbe)) return Wrong("kind", kind);
  if (from.getRole() > static_cast<std::uint8_t>(Role::kServer)) return Wrong("role", from.getRole());
  if ((from.getFlags() & ~kKnownFlags) != 0) return Wrong("flags", from.getFlags());
  if (!std::isfinite(from.getWeight()) || from.getWeight() < 0) return Corrupt("frame header: weight is not >= 0");
  if (!std::isfinite(from.getFactor())) return Corrupt("frame header: factor is not finite");
  if (from.getPayloadBytes() > kMaxPayloadBytes) return Wrong("payload bytes", from.getPayloadBytes());
  to->job_hash = from.getJobHash();
  to->epoch = EpochId{from.getEpoch()};
  to->incarnation = from.getIncarnation();
  to->group = GroupId{from.getGroup()};
  to->step = StepId{from.getStep()};
  to->bucket = BucketId{from.getBucket()};
  to->position = from.getPosition();
  to->role = static_cast<Role>(from.getRole());
  to->kind = static_cast<FrameKind>(kind);
  to->codec = from.getCodec();
  to->codec_version = from.getCodecVersion();
  to->flags = from.getFlags();
  to->weight = from.getWeight();
  to->factor = from.getFactor();
  to->payload_bytes = from.getPayloadBytes();
  to->payload_crc = from.getPayloadCrc();
  to->has_crc = from.getHasCrc();

  const auto slabs = from.getSlabs();
  if (slabs.size() > kMaxFrameSlabs) return Wrong("number of slabs", slabs.size());
  Load(slabs, &to->slabs);
  for (std::size_t i = 1; i < to->slabs.size(); ++i) {
    if (to->slabs[i] <= to->slabs[i - 1]) return Wrong("slabs do not rise: slab", to->slabs[i]);
  }
  const auto contributors = from.getContributors();
  if (contributors.size() > kMaxFrameSlabs) return Wrong("number of contributors", contributors.size());
  Load(contributors, &to->contributors);

  const auto collective = from.getCollective();  // all zero where it is absent
  if (collective.getElements() > kMaxElements) return Wrong("elements", collective.getElements());
  if (collective.getDtype() > static_cast<std::uint8_t>(kLastDType)) return Wrong("dtype", collective.getDtype());
  if (collective.getOp() > static_cast<std::uint8_t>(kLastReduceOp)) return Wrong("op", collective.getOp());
  if (collective.getKind() > static_cast<std::uint8_t>(kLastCollectiveKind)) return Wrong("kind of collective", collective.getKind());
  to->collective = {collective.getElements(), static_cast<DType>(collective.getDtype()),
                    static_cast<ReduceOp>(collective.getOp()), collective.getCall(),
                    static_cast<CollectiveKind>(collective.getKind()), collective.getRoot()};
  return Status::Ok();
}

void Write(const FrameHeader& header, schema::Header::Builder to) {
  to.setJobHash(header.job_hash);
  to.setEpoch(header.epoch.value);
  to.setIncarnation(header.incarnation);
  to.setStep(header.step.value);
  to.setGroup(header.group.value);
  to.setBucket(header.bucket.value);
  to.setPosition(header.position);
  to.setRole(static_cast<std::uint8_t>(header.role));
  to.setKind(static_cast<schema::FrameKind>(header.kind));
  to.setCodec(header.codec);
  to.setCodecVersion(header.codec_version);
  to.setFlags(header.flags);
  to.setWeight(header.weight);
  to.setFactor(header.factor);
  to.setPayloadBytes(header.payload_bytes);
  to.setPayloadCrc(header.payload_crc);
  to.setHasCrc(header.has_crc);
  if (!header.slabs.empty()) Store(header.slabs, to.initSlabs(static_cast<unsigned>(header.slabs.size())));
  if (!header.contributors.empty()) {
    Store(header.contributors, to.initContributors(static_cast<unsigned>(header.contributors.size())));
  }
  if (header.collective != CollectiveShape{}) {
    auto collective = to.initCollective();
    collective.setElements(header.collective.elements);
    collective.setDtype(static_cast<std::uint8_t>(header.collective.dtype));
    collective.setOp(static_cast<std::uint8_t>(header.collective.op));
    collective.setCall(header.collective.call);
    collective.setKind(static_cast<std::uint8_t>(header.collective.kind));
    collective.setRoot(header.collective.root);
  }
}

}  // namespace

void EncodeHeader(const FrameHeader& header, std::vector<std::byte>* out) {
  const std::size_t bound = kFixedWords + (header.slabs.size() + header.contributors.size() + 1) / 2;
  WriteEnvelope<schema::Header>(bound, out, [&](schema::Header::Builder to) { Write(header, to); });
}

Status DecodeHeader(std::span<const std::byte> bytes, FrameHeader* header) {
  return ReadEnvelope<schema::Header>(bytes, kMaxHeaderBytes,
                                      [&](schema::Header::Reader from) { return Read(from, header); });
}

void EncodePreamble(const Preamble& preamble, std::span<const std::byte> header,
                    std::span<std::byte, kPreambleBytes> out) {
  TALLY_CHECK(preamble.header_bytes <= kMaxHeaderBytes, "a frame header beyond its bound");
  StoreU32(out.data(), kPreambleMagic);
  StoreU32(out.data() + 4, kProtocolVersion | preamble.header_bytes << 8);
  StoreU32(out.data() + 8, preamble.payload_bytes);
  StoreU32(out.data() + kCrcOffset, Crc32c(header, Crc32c(out.first(kCrcOffset))));
}

Result<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> bytes, std::uint64_t max_payload_bytes) {
  if (LoadU32(bytes.data()) != kPreambleMagic) return Corrupt("not a Tally stream (magic number)");
  const std::uint32_t version = LoadU32(bytes.data() + 4) & 0xFF;
  if (version != kProtocolVersion) {
    return Mismatch("the peer speaks protocol version " + std::to_string(version) + ", this program " +
                    std::to_string(kProtocolVersion));
  }
  const Preamble preamble{LoadU32(bytes.data() + 4) >> 8, LoadU32(bytes.data() + 8)};
  if (preamble.header_bytes < 16 || preamble.header_bytes % 8 != 0 || preamble.header_bytes > kMaxHeaderBytes) {
    return Corrupt("preamble: header of " + std::to_string(preamble.header_bytes) + " bytes");
  }
  if (preamble.payload_bytes > max_payload_bytes) {
    return Corrupt("preamble: payload of " + std::to_string(preamble.payload_bytes) + " bytes, at most " +
                   std::to_string(max_payload_bytes));
  }
  return preamble;
}

Status CheckHeaderCrc(std::span<const std::byte, kPreambleBytes> preamble, std::span<const std::byte> header) {
  if (LoadU32(preamble.data() + kCrcOffset) == Crc32c(header, Crc32c(preamble.first(kCrcOffset)))) return Status::Ok();
  return Corrupt("CRC32C of preamble and header");
}

}  // namespace tally
