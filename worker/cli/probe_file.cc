#include "worker/cli/probe_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/codec.h"

namespace tally::cli {
namespace {

using Json = nlohmann::json;

// May throw Json::exception; a number that no measurement gives is told apart by `fault`.
double Measured(const Json& object, const char* key, std::string* fault) {
  const double value = object.at(key).get<double>();
  if (!(std::isfinite(value) && value > 0)) *fault = std::string(key) + ": expected more than 0";
  return value;
}

// 0 where a file of an earlier version does not say.
double Cost(const Json& object, const char* key, std::string* fault) {
  const double value = object.value(key, 0.0);
  if (!(std::isfinite(value) && value >= 0)) *fault = std::string(key) + ": expected 0 or more";
  return value;
}

Probe FromJson(const Json& json, std::string* fault) {
  Probe probe;
  if (const Json& peer = json.at("peer"); !peer.is_null()) probe.peer = peer.get<std::string>();
  for (const Json& link : json.at("links")) {
    probe.links.push_back({link.at("transport").get<std::string>(), Measured(link, "alpha_s", fault),
                           Measured(link, "one_way_bytes_per_s", fault), Measured(link, "both_ways_bytes_per_s", fault),
                           {Cost(link, "frame_cpu_s", fault), Cost(link, "byte_cpu_s", fault)}});
  }
  if (probe.links.empty()) *fault = "links: expected at least one";
  probe.copy_bytes_per_s = Measured(json, "copy_bytes_per_s", fault);
  probe.add_bytes_per_s = Measured(json, "add_bytes_per_s", fault);
  if (json.contains("cores")) probe.cores = Measured(json, "cores", fault);
  for (const Json& codec : json.at("codecs")) {
    const auto name = codec.at("codec").get<std::string>();
    const auto known = std::ranges::find(Codecs(), name, &CodecEntry::name);
    if (known == Codecs().end()) continue;  // of another version
    probe.codecs.push_back({known->name, Measured(codec, "bytes_per_element", fault), Measured(codec, "encode_s", fault),
                            Measured(codec, "decode_s", fault), Measured(codec, "decode_add_s", fault)});
  }
  return probe;
}

}  // namespace

const LinkRates& Probe::link(std::string_view transport) const {
  const auto found = std::ranges::find(links, transport, &LinkRates::transport);
  return found == links.end() ? links.front() : *found;
}

Json ToJson(const Probe& probe) {
  Json links = Json::array(), codecs = Json::array();
  for (const LinkRates& link : probe.links) {
    links.push_back({{"transport", link.transport},
                     {"alpha_s", link.alpha_s},
                     {"one_way_bytes_per_s", link.one_way_bytes_per_s},
                     {"both_ways_bytes_per_s", link.both_ways_bytes_per_s},
                     {"frame_cpu_s", link.cpu.frame_s},
                     {"byte_cpu_s", link.cpu.byte_s}});
  }
  for (const CodecCost& codec : probe.codecs) {
    codecs.push_back({{"codec", codec.codec},
                      {"bytes_per_element", codec.bytes},
                      {"encode_s", codec.encode_s},
                      {"decode_s", codec.decode_s},
                      {"decode_add_s", codec.decode_add_s}});
  }
  return {{"peer", probe.peer.empty() ? Json(nullptr) : Json(probe.peer)},
          {"links", links},
          {"copy_bytes_per_s", probe.copy_bytes_per_s},
          {"add_bytes_per_s", probe.add_bytes_per_s},
          {"codecs", codecs},
          {"cores", probe.cores}};
}

Result<Probe> ReadProbe(const std::string& path) {
  const auto fail = [&](const std::string& why) {
    return InvalidArgument("--probe " + path + ": " + why + "; expected what tally probe --json writes");
  };
  std::ifstream in(path);
  if (!in) return fail("cannot be read");
  const Json json = Json::parse(in, nullptr, false);
  if (!json.is_object()) return fail("no JSON object");
  try {
    std::string fault;
    Probe probe = FromJson(json, &fault);
    if (!fault.empty()) return fail(fault);
    return probe;
  } catch (const Json::exception& error) {
    return fail(error.what());
  }
}

}  // namespace tally::cli
