#include "worker/cli/cluster_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "common/config/nearest.h"
#include "common/config/toml_reader.h"
#include "common/config/value_kind.h"
#include "common/utf8.h"
#include "worker/cli/model_question.h"

namespace tally::cli {
namespace {

constexpr std::uint32_t kMaxHostWorkers = 1024;
constexpr std::size_t kMaxSizes = 64;

std::string ParseInto(std::string_view text, double* bytes_per_s) {
  const Result<double> rate = ParseByteRate(text);
  if (rate.ok()) *bytes_per_s = *rate;
  return rate.ok() ? "" : rate.status().text();
}

std::string ParseSizes(std::string_view text, std::vector<std::uint32_t>* sizes) {
  std::vector<std::string> items;
  if (std::string wrong = List().Parse(text, &items); !wrong.empty()) return wrong;
  if (items.empty() || items.size() > kMaxSizes) return "expected 1 to " + std::to_string(kMaxSizes) + " numbers";
  sizes->clear();
  for (const std::string& item : items) {
    std::uint32_t size = 0;
    if (std::string wrong = Count(1, kMaxClusterWorkers).Parse(item, &size); !wrong.empty()) return wrong;
    sizes->push_back(size);
  }
  std::sort(sizes->begin(), sizes->end());
  sizes->erase(std::unique(sizes->begin(), sizes->end()), sizes->end());
  return "";
}

struct ClusterKey {
  std::string_view name;
  std::string (*parse)(std::string_view text, ClusterFile* file);  // what was expected, "" if it was set
};

constexpr ClusterKey kClusterKeys[] = {
    {"hosts.workers",
     [](std::string_view t, ClusterFile* f) { return Count(1, kMaxHostWorkers).Parse(t, &f->workers_per_host); }},
    {"hosts.nic", [](std::string_view t, ClusterFile* f) { return ParseInto(t, &f->nic_bytes_per_s); }},
    {"hosts.inside", [](std::string_view t, ClusterFile* f) { return ParseInto(t, &f->inside_bytes_per_s); }},
    {"hosts.alpha", [](std::string_view t, ClusterFile* f) { return Duration("0s", "10s").Parse(t, &f->alpha); }},
    {"hosts.inside_alpha",
     [](std::string_view t, ClusterFile* f) { return Duration("0s", "10s").Parse(t, &f->inside_alpha); }},
    {"hosts.slow",
     [](std::string_view t, ClusterFile* f) { return Count(0, kMaxClusterWorkers).Parse(t, &f->slow_hosts); }},
    {"hosts.slow_nic", [](std::string_view t, ClusterFile* f) { return ParseInto(t, &f->slow_nic_bytes_per_s); }},
    {"network.leaf_hosts",
     [](std::string_view t, ClusterFile* f) { return Count(0, kMaxClusterWorkers).Parse(t, &f->leaf_hosts); }},
    {"network.oversubscription",
     [](std::string_view t, ClusterFile* f) { return Decimal(1, 1000).Parse(t, &f->oversubscription); }},
    {"servers.count",
     [](std::string_view t, ClusterFile* f) { return Count(0, kMaxClusterWorkers).Parse(t, &f->servers); }},
    {"servers.workers_per_server",
     [](std::string_view t, ClusterFile* f) { return Count(1, kMaxClusterWorkers).Parse(t, &f->workers_per_server); }},
    {"servers.colocated", [](std::string_view t, ClusterFile* f) { return Flag().Parse(t, &f->colocated); }},
    {"servers.nic", [](std::string_view t, ClusterFile* f) { return ParseInto(t, &f->server_nic_bytes_per_s); }},
    {"gradient.bytes",
     [](std::string_view t, ClusterFile* f) { return Bytes(4, std::uint64_t{1} << 42).Parse(t, &f->bytes); }},
    {"gradient.codec",
     [](std::string_view t, ClusterFile* f) {
       bool linear = false;
       const Result<Ratios> ratios = CodecRatios(std::string(t), 1, &linear);
       if (ratios.ok()) f->codec = t;
       return ratios.ok() ? std::string() : ratios.status().text();
     }},
    {"sweep.workers", [](std::string_view t, ClusterFile* f) { return ParseSizes(t, &f->workers); }},
};

std::string UnknownClusterKey(const std::string& name) {
  std::vector<std::string> names;
  for (const ClusterKey& key : kClusterKeys) names.emplace_back(key.name);
  return "a cluster file has no " + QuotedToml(Utf8Prefix(name, 128)) + DidYouMean(name, names);
}

// What is each valid but does not go together.
void CheckWhole(const ClusterFile& file, const std::string& name, std::vector<std::string>* errors) {
  if (file.workers.empty()) errors->push_back(name + ": sweep.workers is missing: the numbers of workers, as [8, 64]");
  if (file.servers > 0 && file.workers_per_server > 0) {
    errors->push_back(name + ": servers.count and servers.workers_per_server exclude each other");
  }
  if ((file.slow_hosts > 0) != (file.slow_nic_bytes_per_s > 0)) {
    errors->push_back(name + ": hosts.slow and hosts.slow_nic need each other");
  }
  for (const std::uint32_t workers : file.workers) {
    if (const Status status = CheckCluster(file.At(workers)); !status.ok()) {
      errors->push_back(name + ": with " + std::to_string(workers) + " workers: " + status.text());
    }
  }
}

}  // namespace

std::uint32_t ClusterFile::ServersFor(std::uint32_t worker_count) const {
  return workers_per_server == 0 ? servers : (worker_count - 1) / workers_per_server + 1;
}

Cluster ClusterFile::At(std::uint32_t worker_count) const {
  const auto seconds = [](Nanos time) { return std::chrono::duration<double>(time).count(); };
  Cluster cluster;
  cluster.workers = worker_count;
  cluster.workers_per_host = workers_per_host;
  cluster.servers = ServersFor(worker_count);
  cluster.servers_colocated = colocated;
  cluster.nic_bytes_per_s = nic_bytes_per_s;
  cluster.server_nic_bytes_per_s = server_nic_bytes_per_s;
  const std::uint32_t hosts = (worker_count - 1) / workers_per_host + 1;
  cluster.other_nics_bytes_per_s.assign(std::min(slow_hosts, hosts), slow_nic_bytes_per_s);
  cluster.inside_bytes_per_s = inside_bytes_per_s;
  cluster.alpha_s = seconds(alpha);
  cluster.inside_alpha_s = seconds(inside_alpha);
  cluster.leaf_hosts = leaf_hosts;
  cluster.oversubscription = oversubscription;
  return cluster;
}

Result<ClusterFile> ParseClusterFile(std::string_view text, std::string_view name) {
  std::vector<FileSetting> settings;
  std::vector<std::string> errors;
  ReadToml(text, name, &settings, &errors);
  ClusterFile file;
  for (const FileSetting& setting : settings) {
    const std::string full = setting.section + "." + setting.key;
    const auto key = std::ranges::find(kClusterKeys, full, &ClusterKey::name);
    const std::string wrong =
        key == std::end(kClusterKeys) ? UnknownClusterKey(full) : key->parse(setting.text, &file);
    if (wrong.empty()) continue;
    errors.push_back(setting.place + ": " + (key == std::end(kClusterKeys) ? wrong : full + ": " + wrong));
  }
  if (errors.empty()) CheckWhole(file, std::string(name), &errors);
  if (errors.empty()) return file;
  std::string all;
  for (const std::string& error : errors) all += (all.empty() ? "" : "\n") + error;
  return InvalidArgument(std::move(all));
}

Result<ClusterFile> ReadClusterFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad() || (in.gcount() == 0 && errno != 0)) {
    return InvalidArgument("--cluster " + path + ": " + std::strerror(errno));
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  return ParseClusterFile(text, path);
}

}  // namespace tally::cli
