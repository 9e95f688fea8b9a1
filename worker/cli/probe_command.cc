// tally probe: what the model's numbers are on this machine and to a peer: cost of a round, bytes per second of a link,
// of memory, of codecs; in a few seconds.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/human.h"
#include "common/reduce/reduce.h"
#include "common/transport/link.h"
#include "common/transport/local_address.h"
#include "worker/cli/free_cores.h"
#include "worker/cli/link_probe.h"
#include "worker/cli/options.h"
#include "worker/cli/table.h"

namespace tally::cli {
namespace {

struct ProbeOptions {
  std::string to, listen;
  std::string time = "400ms", wait = "10min";
  ConfigOptions config;
  JsonOption json;
};

constexpr std::size_t kNumbers = std::size_t{16} << 20;  // 64 MiB, beyond the caches
constexpr int kPasses = 5;

// fp32 bytes per second of the best pass: others were disturbed.
template <typename Body>
double BytesPerSecond(const Body& body) {
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, static_cast<double>(kNumbers * sizeof(float)) / took.count());
  }
  return best;
}

void MeasureMemory(Probe* probe) {
  std::vector<float> from(kNumbers, 1.0F), to(kNumbers, 0.0F);
  probe->copy_bytes_per_s =
      BytesPerSecond([&] { std::memcpy(to.data(), from.data(), kNumbers * sizeof(float)); });
  probe->add_bytes_per_s = BytesPerSecond([&] { AddInto(to.data(), from.data(), kNumbers); });
}

// "host:port" as --to and --listen take it; off loopback only with --insecure, as nothing here proves who speaks.
Result<EndpointParts> ParsePlace(const char* option, const std::string& text, bool insecure) {
  auto parts = ParseEndpoint("tcp://" + text);
  if (!parts.ok()) return InvalidArgument(std::string(option) + " " + text + ": expected HOST:PORT, such as 10.0.0.2:7171");
  if (!insecure && !IsLoopbackAddress(parts->host)) {
    return InvalidArgument(std::string(option) + " " + text + ": is not loopback, and probes carry no keys; in a trusted " +
                           "network add --insecure");
  }
  return parts;
}

void PrintProbe(const Probe& probe, Console& console) {
  const auto right = Table::Align::kRight;
  const auto gigabytes = [](double bytes_per_s) { return Fixed(bytes_per_s / 1e9, 3); };
  Table links({{"link"}, {"alpha", right}, {"one way GB/s", right}, {"both ways GB/s", right}, {"Gbit/s", right},
               {"CPU a frame", right}, {"CPU s/GB", right}});
  for (const LinkRates& link : probe.links) {
    links.AddRow({link.transport + (probe.peer.empty() ? ", loopback" : " to " + probe.peer), HumanSeconds(link.alpha_s),
                  gigabytes(link.one_way_bytes_per_s), gigabytes(link.both_ways_bytes_per_s),
                  Fixed(link.both_ways_bytes_per_s * 8e-9, 2), HumanSeconds(link.cpu.frame_s),
                  Fixed(link.cpu.byte_s * 1e9, 2)});
  }
  console.Print(links.Text());
  Table memory({{"memory, one core"}, {"GB/s of fp32", right}});
  memory.AddRow({"copy", gigabytes(probe.copy_bytes_per_s)});
  memory.AddRow({"add", gigabytes(probe.add_bytes_per_s)});
  console.Print(memory.Text());
  console.Print("cores that are free: " + Fixed(probe.cores, 1) + "\n");
  Table codecs({{"codec, one core"}, {"bytes/number", right}, {"encode GB/s", right}, {"decode GB/s", right},
                {"decode and add GB/s", right}});
  for (const CodecCost& codec : probe.codecs) {
    const auto speed = [&](double seconds) { return gigabytes(sizeof(float) / seconds); };
    codecs.AddRow({std::string(codec.codec), Fixed(codec.bytes, 3), speed(codec.encode_s), speed(codec.decode_s),
                   speed(codec.decode_add_s)});
  }
  std::string text = codecs.Text();
  text.pop_back();
  console.Print(text);
}

int Answer(const ProbeOptions& options, Console& console) {
  const Result<EndpointParts> place = ParsePlace("--listen", options.listen, options.config.insecure);
  if (!place.ok()) return console.Fail(place.status());
  const Result<Nanos> wait = ParseDuration(options.wait);
  if (!wait.ok()) return console.Fail(wait.status().WithContext("--wait"));
  const bool v6 = place->host.find(':') != std::string::npos;
  const auto responder = ProbeResponder::Listen(v6 ? "[" + place->host + "]" : place->host,
                                                static_cast<std::uint16_t>(std::stoul(place->port)));
  if (!responder.ok()) return console.Fail(responder.status());
  console.Note("answering one probe at " + (*responder)->endpoint().substr(6) + " (tally probe --to there)");
  const Status served = (*responder)->Serve(*wait);
  return served.ok() ? 0 : console.Fail(served.WithContext("--listen " + options.listen));
}

int RunProbe(const ProbeOptions& options, CommandContext& context) {
  Console& console = context.console;
  const Result<LoadedConfig> config = options.config.Load(context.environment);
  if (!config.ok()) return console.Fail(config.status());
  if (const Status output = options.json.Check(); !output.ok()) return console.Fail(output);
  if (!options.listen.empty()) return Answer(options, console);
  const Result<Nanos> each = ParseDuration(options.time);
  if (!each.ok()) return console.Fail(each.status().WithContext("--time"));
  if (*each < std::chrono::milliseconds(1) || *each > std::chrono::minutes(1)) {
    return console.Fail(InvalidArgument("--time " + options.time + ": expected 1ms to 1min"));
  }
  Probe probe;
  LinkProbeOptions link_options{.each = *each, .progress = [&](const std::string& text) { console.Progress(text); }};
  Result<std::vector<LinkRates>> links = std::vector<LinkRates>();
  if (options.to.empty()) {
    links = ProbeLoopback(link_options);
  } else {
    const Result<EndpointParts> place = ParsePlace("--to", options.to, options.config.insecure);
    if (!place.ok()) return console.Fail(place.status());
    probe.peer = options.to;
    links = ProbeLinks("tcp://" + options.to, link_options);
  }
  if (!links.ok()) return console.Fail(links.status().WithContext(options.to.empty() ? "loopback" : "--to " + options.to));
  probe.links = std::move(links).value();
  probe.cores = FreeCores();
  console.Progress("memory …");
  MeasureMemory(&probe);
  console.Progress("codecs …");
  probe.codecs = MeasureCodecCosts(config->config.compression, SteadyClock());
  console.EndProgress();
  if (!options.json.to_stdout()) PrintProbe(probe, console);
  if (options.json.wanted()) {
    if (const Status written = options.json.Write(ToJson(probe)); !written.ok()) return console.Fail(written);
  }
  return 0;
}

}  // namespace

Action AddProbeCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<ProbeOptions>();
  auto* to = app.add_option("--to", options->to, "Peer where tally probe --listen runs; default: loopback")
                 ->type_name("HOST:PORT");
  app.add_option("--listen", options->listen, "Answer one probe of another machine, measure nothing")
      ->type_name("HOST:PORT")->excludes(to);
  app.add_option("--time", options->time, "How long each rate of a link is measured")->capture_default_str();
  app.add_option("--wait", options->wait, "--listen: for how long")->capture_default_str();
  AddConfigOptions(app, &options->config);
  AddJsonOption(app, &options->json);
  app.footer(
      "Examples:\n"
      "  tally probe                                             this machine over loopback, its memory and codecs\n"
      "  tally probe --listen 10.0.0.2:7171 --insecure           on one machine\n"
      "  tally probe --to 10.0.0.2:7171 --insecure --json p.json on another: the link between them\n"
      "  tally plan --probe p.json --workers 8 --servers 2       what that means for a job\n"
      "Alpha: half of the time that a small frame takes there and back. Link rates are of one connection; both ways: in\n"
      "each direction, both at once, as a job uses a NIC. CPU: of one core, both ends together.");
  return [options, &context] { return RunProbe(*options, context); };
}

}  // namespace tally::cli
