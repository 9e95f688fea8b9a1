// Config: every setting of a job and of one process, typed. Sources, weakest first: defaults, the job's TOML file,
// launcher variables (rank, world, coordinator), environment TALLY_SECTION_KEY, flags "section.key=value".
// The keys are one table (keys.inc: section, key, kind, scope, hot, help); the struct below is what the rest reads.
// Where to add a key: one line in keys.inc and one field with its default here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace tally {

enum class Mode : std::uint8_t { kPs, kRing, kHierarchical, kHybrid, kAuto };
enum class LocalStages : std::uint8_t { kAuto, kOn, kOff };
enum class LogFormat : std::uint8_t { kLogfmt, kJson };

struct Config {
  struct Job {
    std::string name = "tally";   // job scope
    std::uint32_t workers = 0;    // job scope; 0 = from the launcher
    std::string secret_file;      // process scope
  } job;
  struct Aggregation {             // job scope
    Mode mode = Mode::kPs;         // with no servers configured the default is ring
    Mode between = Mode::kRing;    // hierarchical: what runs between nodes; with servers configured the default is ps
    std::string schedule = "ring";  // mode ring
    LocalStages local = LocalStages::kAuto;
    bool deterministic = true;
  } aggregation;
  struct Compression {             // job scope
    std::string codec = "none";
    bool error_feedback = true;
    double ratio = 0.01;           // topk, dgc, randomk: fraction kept, in (0, 1]
    std::uint64_t min_compress_bytes = 65536;
    std::vector<std::string> exclude;  // tensor name patterns (* and ?)
    std::string rounding = "auto";     // nearest_even | stochastic | auto (= nearest with feedback, else stochastic)
    std::string ef_lr_correction = "none";  // none | ratio (= residuals follow the learning rate)
    std::string scale = "pow2";        // pow2 | absmax
    std::string topk_values = "fp32";  // fp32 | fp16
    std::string reply = "same";        // topk, dgc: same | union
    std::string randomk_scale = "auto";  // none | stratum | auto (= none with feedback, else stratum)
    double dgc_momentum = 0.9;           // [0, 1)
    bool dgc_nesterov = false;
    double dgc_clip = 0;                 // largest gradient norm times sqrt(N); 0 = none
    std::uint32_t powersgd_rank = 4;     // 1..32
    double powersgd_rate = 2;            // least compression rate of a matrix
    std::optional<std::uint64_t> start_step;  // first step that is compressed; none = 10 for powersgd, else 0
    std::vector<double> warmup;          // topk, dgc: ratios before `ratio`, warmup_steps each
    std::uint64_t warmup_steps = 0;
    std::uint64_t seed = 1;
  } compression;
  struct Bucket {                  // job scope
    std::uint64_t cap_bytes = 25u << 20;
  } bucket;
  struct Servers {
    std::vector<std::string> addresses;  // job scope: control addresses, the first coordinates
    std::string transport = "zmq";       // job scope: data links between workers and servers, zmq | tcp
  } servers;
  struct Topology {                // process scope
    std::string node;              // empty = of boot id and network namespace
    double nic_rate_bits = 0;      // 0 = link.rate, else what the system says
    std::string switch_path;       // switches above this machine, "spine1/leaf3"; empty = topology.file, SLURM's
    std::string file;              // says so of `host` (common/topology/own_place.h)
    std::string host;              // empty = SLURMD_NODENAME, else the host's own name
    std::vector<std::string> labels = {"topology.kubernetes.io/region", "topology.kubernetes.io/zone"};
    std::string matrix;            // file of bandwidths between hosts (common/topology/bandwidth_matrix.h)
    std::string pin = "auto";      // cores of the thread that moves bytes: auto | none | "0-3,8"
  } topology;
  struct Worker {                  // process scope
    std::uint32_t rank = 0;
    std::uint32_t local_rank = 0;
    bool rank_set = false;         // some source gave it
    std::string bind;              // where data links bind; empty = the address that reaches the coordinator
    Nanos spin{0};
    std::string attach = "embedded";  // embedded | agent (= the node's tally-worker runs the engine)
    std::string agent;             // where that listens; empty = by user and job
  } worker;
  struct Coordinator {
    std::string address;           // process scope; empty = first server, else MASTER_ADDR:MASTER_PORT+1
  } coordinator;
  struct Server {                  // process scope, tally-server only
    std::uint32_t index = 0;
    std::string listen = "tcp://127.0.0.1:7070";
    std::string data_bind;         // empty = the host of `listen`
    std::uint32_t data_endpoints = 1;
    std::uint64_t memory_cap_bytes = 0;  // 0 = half of the machine's
    bool exit_when_done = false;   // end after the first job ended
    std::string report;            // file for counters as JSON at exit
  } server;
  struct LinkSettings {
    std::string transport = "tcp";      // job scope: data links between workers, tcp | zmq
    bool shm = true;                    // process scope
    double rate_bits = 0;               // process scope; 0 = unpaced
    std::string nic;                    // process scope; name shared by processes on one emulated NIC
    std::uint32_t connections = 0;      // job scope, per neighbour; 0 = measured as the job starts
    std::string payload_crc = "auto";   // job scope: auto | on | off
    std::uint64_t socket_buffer_bytes = 0;
    std::uint64_t frame_bytes = 262144; // job scope: payload that small slabs are packed to
    std::uint64_t egress_bytes = 512u << 10;  // process scope
    std::uint64_t credit_bytes = 4u << 20;  // job scope: per worker and group, over all owners
  } link;
  struct Membership {
    Nanos heartbeat = std::chrono::seconds(1);      // job scope
    Nanos dead = std::chrono::seconds(10);          // job scope
    Nanos join_timeout = std::chrono::seconds(120); // process scope
  } membership;
  struct Step {
    Nanos timeout = std::chrono::seconds(120);      // job scope: any wait on a step or collective
  } step;
  struct Network {
    bool insecure = false;         // process scope: allow addresses off loopback without keys
    std::vector<std::string> interfaces;  // process scope: where data links bind (common/transport/interfaces.h)
  } network;
  struct Log {                     // process scope
    std::string level = "info";    // hot: changed by SIGHUP
    LogFormat format = LogFormat::kLogfmt;
    std::string file;              // empty = stderr
  } log;
};

// What a process was given. `environment` holds every variable (the caller passes a copy: nothing else reads it).
struct ConfigSources {
  std::string file;                                // path of the TOML file; empty = $TALLY_CONFIG, else none
  std::map<std::string, std::string> environment;
  std::vector<std::string> overrides;              // "section.key=value" from flags
  bool own_server = false;                         // for a tally-server: mode ps is fine without servers.addresses
};

// A key's effective value, as TOML writes it, and where it is from: "default", "job.toml:12", "TALLY_LINK_RATE",
// "RANK", "--set".
struct ConfigEntry {
  std::string name, value, origin, help;
  bool job_scope = false;
  bool hot = false;
};

struct LoadedConfig {
  Config config;
  std::vector<ConfigEntry> entries;  // every key, in table order
  std::string job_text;              // job-scoped keys, canonical TOML
  std::uint64_t job_digest = 0;      // XXH3 of job_text
};

// Errors: kInvalidArgument whose text holds *all* problems, one a line, each with its place (file:line, variable,
// flag), what was expected and the nearest valid name.
Result<LoadedConfig> LoadConfig(const ConfigSources& sources);

// The job-scoped keys of another member, as sent at join. Hostile input. Process-scoped keys keep their defaults.
Result<Config> ParseJobConfig(std::string_view job_text);

// One line per job key that differs, with both values; empty if none. For the error at join.
std::vector<std::string> DiffJobConfig(std::string_view job, std::string_view member);

// "25MiB", "65536", "1.5GB" -> bytes (KiB, MiB, GiB = 2^10n; kB, KB, MB, GB = 10^3n).
Result<std::uint64_t> ParseBytes(std::string_view text);
// "1gbit", "100mbit", "2.5gbit", "10kbit", "1000000" -> bits per second.
Result<double> ParseRate(std::string_view text);
// "200ms", "5s", "2min", "50us" -> nanoseconds; a bare number is refused.
Result<Nanos> ParseDuration(std::string_view text);

// This process's environment, the one place that reads it.
std::map<std::string, std::string> ProcessEnvironment();

const char* ModeName(Mode mode);

// What is said of this process's NIC: topology.nic_rate, else link.rate; 0 if nothing is.
inline double NicRateBits(const Config& config) {
  return config.topology.nic_rate_bits > 0 ? config.topology.nic_rate_bits : config.link.rate_bits;
}

}  // namespace tally
