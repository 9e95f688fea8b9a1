// Bytes that a peer or a user sends before anybody trusts them: frames, control messages, configuration text.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "common/check.h"
#include "common/config/config.h"
#include "common/control.h"
#include "common/frame.h"
#include "common/transport/handshake.h"
#include "tests/fuzz/target.h"

namespace tally {
namespace {

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  TALLY_CHECK(file.good(), path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

FuzzBytes BytesOf(std::string_view text) {
  FuzzBytes bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

std::string TextOf(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

// The pinned messages of tests/golden whose name begins with one of these.
std::vector<FuzzBytes> GoldenSeeds(std::initializer_list<std::string_view> beginnings) {
  std::set<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TALLY_SOURCE_DIR "/tests/golden")) {
    const std::string name = entry.path().filename().string();
    const auto begins_with = [&name](std::string_view beginning) { return name.starts_with(beginning); };
    if (entry.path().extension() == ".hex" && std::ranges::any_of(beginnings, begins_with)) paths.insert(entry.path());
  }
  TALLY_CHECK(!paths.empty(), "no golden messages");
  std::vector<FuzzBytes> seeds;
  for (const auto& path : paths) {
    const std::string hex = ReadFile(path);
    FuzzBytes& seed = seeds.emplace_back();
    for (std::size_t i = 0; i + 1 < hex.size(); i += 3) {
      seed.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
  }
  return seeds;
}

void CheckRefusal(const Status& status) { TALLY_CHECK(!status.text().empty(), "refused without a reason"); }

void CheckHeader(const FrameHeader& header) {
  TALLY_CHECK(header.kind <= FrameKind::kProbe && header.role <= Role::kServer, "kind or role out of range");
  TALLY_CHECK(std::isfinite(header.weight) && header.weight >= 0, "weight out of range");
  TALLY_CHECK(std::isfinite(header.factor), "factor out of range");
  TALLY_CHECK(header.payload_bytes <= kMaxPayloadBytes, "payload out of range");
  TALLY_CHECK(header.slabs.size() <= kMaxFrameSlabs && header.contributors.size() <= kMaxFrameSlabs, "a long list");
  for (std::size_t i = 1; i < header.slabs.size(); ++i) {
    TALLY_CHECK(header.slabs[i - 1] < header.slabs[i], "slabs do not rise");
  }
  // What was read is written and read again without a change.
  std::vector<std::byte> first, second;
  EncodeHeader(header, &first);
  FrameHeader back;
  const Status status = DecodeHeader(first, &back);
  TALLY_CHECK(status.ok(), status.ToString());
  EncodeHeader(back, &second);
  TALLY_CHECK(first == second, "a header changed by writing and reading it");
  for (const FrameKind kind : {FrameKind::kHello, FrameKind::kWelcome}) {
    const Result<LinkIdentity> identity = ReadHandshake(header, kind);
    if (!identity.ok()) {
      CheckRefusal(identity.status());
      continue;
    }
    EncodeHeader(HandshakeHeader(kind, *identity), &first);
    TALLY_CHECK(DecodeHeader(first, &back).ok() && ReadHandshake(back, kind).ok(), "an identity changed by writing it");
  }
}

}  // namespace

// The stream of a TCP link: preamble, header, the rest taken as the payload of a refusal. The header is read also where
// its checksum is wrong, because a hostile peer computes a right one.
void FuzzFrame(std::span<const std::byte> input) {
  if (input.size() < kPreambleBytes) return;
  const auto preamble = input.first<kPreambleBytes>();
  std::span<const std::byte> rest = input.subspan(kPreambleBytes);
  const Result<Preamble> lengths = DecodePreamble(preamble, kMaxPayloadBytes);
  if (lengths.ok()) {
    TALLY_CHECK(lengths->header_bytes <= kMaxHeaderBytes && lengths->payload_bytes <= kMaxPayloadBytes,
                "lengths out of range");
  } else {
    CheckRefusal(lengths.status());
  }
  const std::size_t header_bytes = std::min<std::size_t>(lengths.ok() ? lengths->header_bytes : rest.size(), rest.size());
  const std::span<const std::byte> header = rest.first(header_bytes);
  (void)CheckHeaderCrc(preamble, header);
  FrameHeader decoded;
  if (const Status status = DecodeHeader(header, &decoded); !status.ok()) {
    CheckRefusal(status);
  } else {
    CheckHeader(decoded);
  }
  TALLY_CHECK(!DecodeRefusal(rest.subspan(header_bytes)).ok(), "a refusal that is none");
}

std::vector<FuzzBytes> FrameSeeds() {
  std::vector<FuzzBytes> seeds = GoldenSeeds({"frame_", "hello_", "welcome", "refusal"});
  for (const std::uint32_t slabs : {0u, 40u, 300u}) {
    FrameHeader header;
    for (std::uint32_t i = 0; i < slabs; ++i) header.slabs.push_back(3 * i);
    header.contributors.assign(slabs, 1);
    std::vector<std::byte> bytes;
    EncodeHeader(header, &bytes);
    FuzzBytes& seed = seeds.emplace_back(kPreambleBytes);
    EncodePreamble({static_cast<std::uint32_t>(bytes.size()), 0}, bytes, std::span(seed).first<kPreambleBytes>());
    seed.insert(seed.end(), bytes.begin(), bytes.end());
    Append(std::uint8_t{7}, &seed);
    for (const char c : std::string_view("why not")) Append(c, &seed);
  }
  return seeds;
}

void FuzzControl(std::span<const std::byte> input) {
  const Result<ControlMessage> message = DecodeControl(input);
  if (!message.ok()) {
    CheckRefusal(message.status());
    return;
  }
  const std::vector<std::byte> bytes = EncodeControl(*message);
  if (bytes.size() > kMaxControlBytes) return;
  const Result<ControlMessage> back = DecodeControl(bytes);
  TALLY_CHECK(back.ok(), back.status().ToString());
  TALLY_CHECK(*back == *message, "a message changed by writing and reading it");
}

std::vector<FuzzBytes> ControlSeeds() { return GoldenSeeds({"control_"}); }

// The text as a member's configuration, as flags (one a line), and its first line as each kind of number.
void FuzzConfig(std::span<const std::byte> input) {
  const std::string text = TextOf(input);
  const Result<Config> job = ParseJobConfig(text);
  if (job.ok()) {
    TALLY_CHECK(DiffJobConfig(text, text).empty(), "a text differs from itself");
  } else {
    CheckRefusal(job.status());
  }
  ConfigSources sources;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    sources.overrides.emplace_back(line);
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  const Result<LoadedConfig> loaded = LoadConfig(sources);
  if (loaded.ok()) {
    const Result<Config> back = ParseJobConfig(loaded->job_text);
    TALLY_CHECK(back.ok(), loaded->job_text + back.status().ToString());
    TALLY_CHECK(DiffJobConfig(loaded->job_text, loaded->job_text).empty(), "a canonical text differs from itself");
  } else {
    CheckRefusal(loaded.status());
  }
  const std::string_view first = sources.overrides.empty() ? std::string_view() : sources.overrides.front();
  if (const auto bytes = ParseBytes(first); !bytes.ok()) CheckRefusal(bytes.status());
  const auto rate = ParseRate(first);
  if (rate.ok()) {
    TALLY_CHECK(std::isfinite(*rate) && *rate >= 0, "a rate out of range");
  } else {
    CheckRefusal(rate.status());
  }
  const auto duration = ParseDuration(first);
  if (duration.ok()) {
    TALLY_CHECK(duration->count() >= 0, "a duration out of range");
  } else {
    CheckRefusal(duration.status());
  }
}

std::vector<FuzzBytes> ConfigSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const char* file : {"job.toml", "server.toml"}) {
    seeds.push_back(BytesOf(ReadFile(std::string(TALLY_SOURCE_DIR "/deploy/") + file)));
  }
  seeds.push_back(BytesOf("[compression]\ncodec = \"topk\"\nratio = 0.5\nexclude = [\"*.bias\", \"a?c\"]\n"));
  seeds.push_back(BytesOf("job.workers=4\naggregation.mode=ring\ncompression.exclude=a,b\nlink.rate=1gbit\n"));
  for (const char* number : {"25MiB", "1.5GB", "2.5gbit", "200ms", "1e300", "18446744073709551616", "-1s", ""}) {
    seeds.push_back(BytesOf(number));
  }
  return seeds;
}

}  // namespace tally
