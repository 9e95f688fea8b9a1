// Bytes from outside that say where something is: files of SLURM, Kubernetes and NCCL, notes of links in memory.
#include <cmath>
#include <string>
#include <string_view>

#include "common/check.h"
#include "common/config/config.h"
#include "common/schedule/topology.h"
#include "common/topology/nccl_topology.h"
#include "common/topology/own_place.h"
#include "common/topology/switch_map.h"
#include "common/transport/shm_notes.h"
#include "tests/fuzz/target.h"

namespace tally {
namespace {

std::string TextOf(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

FuzzBytes BytesOf(std::string_view text) {
  FuzzBytes bytes;
  for (const char c : text) bytes.push_back(static_cast<std::byte>(c));
  return bytes;
}

void CheckRefusal(const Status& status) { TALLY_CHECK(!status.text().empty(), "refused without a reason"); }

void CheckMap(const Result<SwitchMap>& map) {
  if (!map.ok()) return CheckRefusal(map.status());
  TALLY_CHECK(map->size() <= kMaxTopologyHosts, "too many hosts");
  for (const auto& [host, path] : *map) TALLY_CHECK(!host.empty() && CheckSwitchPath(path).ok(), host + ": " + path);
}

}  // namespace

// As each of the formats, and as whatever its first words say; as a host list; as SLURM's two variables, a line each.
void FuzzSwitches(std::span<const std::byte> input) {
  const std::string text = TextOf(input);
  CheckMap(ParseTopologyConf(text));
  CheckMap(ParseTopologyYaml(text));
  const Result<std::string> path = SwitchPathIn(text, "tux1", {"zone", "rack"});
  if (path.ok()) {
    TALLY_CHECK(CheckSwitchPath(*path).ok(), *path);
  } else {
    CheckRefusal(path.status());
  }
  const Result<std::vector<std::string>> hosts = ExpandHostList(text);
  if (hosts.ok()) {
    TALLY_CHECK(hosts->size() <= kMaxTopologyHosts, "too many hosts");
  } else {
    CheckRefusal(hosts.status());
  }
  const std::size_t line = std::min(text.find('\n'), text.size());
  const std::string_view rest = std::string_view(text).substr(std::min(line + 1, text.size()));
  const std::string own = SwitchPathOfAddress(std::string_view(text).substr(0, line), rest);
  TALLY_CHECK(CheckSwitchPath(own).ok(), own);
}

std::vector<FuzzBytes> SwitchesSeeds() {
  std::vector<FuzzBytes> seeds;
  for (const std::string_view text :
       {"# two leaves\nSwitchName=s0 Nodes=tux[0-2]\nSwitchName=s1 Nodes=tux[09-11,14] LinkSpeed=1\n"
        "SwitchName=top Switches=s[0-1]\n",
        "---\n- topology: default\n  cluster_default: true\n  tree:\n    switches:\n      - switch: top\n"
        "        children: s0\n      - switch: s0\n        nodes: tux[0-2]\n",
        "# labels\r\napp=\"train\"\nzone=\"z1\"\nrack=\"r7\"\n", "node[01-03,7],x", "s0.s4.tux1\nswitch.switch.node",
        ""}) {
    seeds.push_back(BytesOf(text));
  }
  return seeds;
}

void FuzzNccl(std::span<const std::byte> input) {
  const Result<std::vector<NcclNic>> nics = ParseNcclTopology(TextOf(input));
  if (!nics.ok()) return CheckRefusal(nics.status());
  for (const NcclNic& nic : *nics) {
    TALLY_CHECK(std::isfinite(nic.bytes_per_s) && nic.bytes_per_s >= 0, "a rate out of range");
  }
}

std::vector<FuzzBytes> NcclSeeds() {
  return {BytesOf("<?xml version=\"1.0\"?>\n<system version=\"1\">\n <cpu numaid=\"0\" arch=\"x86_64\">\n"
                  "  <pci busid=\"0000:01:00.0\" class=\"0x020000\">\n   <nic>\n"
                  "    <net name=\"mlx5_0\" dev=\"0\" speed=\"100000\" port=\"1\"/>\n"
                  "   </nic>\n  </pci>\n </cpu>\n</system>\n"),
          BytesOf("<!-- none --><system version='1'><cpu numaid='1'/></system>"), BytesOf("")};
}

// First the sizes of payload and region, then a note's or a return's bytes.
void FuzzShmNote(std::span<const std::byte> input) {
  FuzzInput in(input);
  const auto bytes = in.Take<std::uint64_t>();
  FuzzBytes region(in.Take<std::uint16_t>());
  std::vector<std::byte> back;
  const Result<MemoryNote> note = DecodeMemoryNote(in.rest());
  if (note.ok()) {
    EncodeMemoryNote(*note, &back);
    TALLY_CHECK(DecodeMemoryNote(back).value() == *note, "a note changed by writing and reading it");
    const auto place = PlaceOf(*note, bytes, region);
    if (place.ok()) {
      TALLY_CHECK(place->size() == bytes, "a payload of another size");
      TALLY_CHECK(place->data() >= region.data() && place->data() + bytes <= region.data() + region.size(), "outside");
    } else {
      CheckRefusal(place.status());
    }
  } else {
    CheckRefusal(note.status());
  }
  std::vector<std::uint32_t> numbers, again;
  const Status status = DecodeMemoryReturns(in.rest(), &numbers);
  if (!status.ok()) return CheckRefusal(status);
  EncodeMemoryReturns(numbers, &back);
  TALLY_CHECK(DecodeMemoryReturns(back, &again).ok() && again == numbers, "returns changed by writing them");
}

std::vector<FuzzBytes> ShmNoteSeeds() {
  std::vector<FuzzBytes> seeds;
  const auto add = [&seeds](std::uint64_t bytes, std::uint16_t region, const std::vector<std::byte>& message) {
    FuzzBytes& seed = seeds.emplace_back();
    Append(bytes, &seed);
    Append(region, &seed);
    seed.insert(seed.end(), message.begin(), message.end());
  };
  std::vector<std::byte> message;
  for (const MemoryNote& note : {MemoryNote{3, 1, 4096, 65536}, MemoryNote{0, 0, ~std::uint64_t{0} - 7, 65536}}) {
    EncodeMemoryNote(note, &message);
    add(16, 8192, message);
  }
  EncodeMemoryReturns(std::vector<std::uint32_t>{7, 0, 4294967295}, &message);
  add(0, 0, message);
  return seeds;
}

}  // namespace tally
