#include "tests/support/cluster.h"

#include <ostream>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/check.h"
#include "tests/support/slowdown.h"

namespace tally::test {
namespace {

// Binds a free loopback port without listening: nobody else is given it, and rank 0, which sets SO_REUSEADDR as we do,
// can still bind it.
int HoldPort(std::uint16_t* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  TALLY_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0, "no free port");
  TALLY_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0, "getsockname");
  *port = ntohs(address.sin_port);
  return fd;
}

std::vector<std::string> BaseSettings() {
  return {"job.name=test",
          "membership.heartbeat=250ms",
          "membership.dead=" + Seconds(10),  // a busy machine stops for a few; fault_test has its own, shorter one
          "membership.join_timeout=" + Seconds(20),
          "step.timeout=" + Seconds(20),
          "log.level=error",
          "compression.min_compress_bytes=0"};
}

}  // namespace

TestCluster::TestCluster(ClusterOptions options) : options_(std::move(options)) {
  Config::Log log;
  log.level = "error";
  auto logger = Logger::Make(log);
  TALLY_CHECK(logger.ok(), logger.status().text());
  logger_ = std::move(logger).value();
  for (std::uint32_t s = 0; s < options_.servers; ++s) {
    ConfigSources sources;
    sources.own_server = true;
    sources.overrides = BaseSettings();
    sources.overrides.insert(sources.overrides.end(), options_.settings.begin(), options_.settings.end());
    sources.overrides.push_back("server.index=" + std::to_string(s));
    sources.overrides.push_back("server.listen=tcp://127.0.0.1:0");
    if (s > 0) sources.overrides.push_back("servers.addresses=" + addresses_.front());
    auto config = LoadConfig(sources);
    TALLY_CHECK(config.ok(), config.status().text());
    auto server = Server::Start(config->config, logger_.get());
    TALLY_CHECK(server.ok(), server.status().text());
    addresses_.push_back((*server)->control_address());
    servers_.push_back(std::move(server).value());
  }
  if (options_.servers > 0) {
    coordinator_ = addresses_.front();
  } else {
    std::uint16_t port = 0;
    held_port_ = HoldPort(&port);
    coordinator_ = "tcp://127.0.0.1:" + std::to_string(port);
  }
}

TestCluster::~TestCluster() {
  if (held_port_ >= 0) close(held_port_);
}

std::vector<std::string> TestCluster::WorkerSettings(std::uint32_t rank) const {
  std::vector<std::string> settings = BaseSettings();
  settings.push_back("job.workers=" + std::to_string(options_.workers));
  settings.push_back("worker.rank=" + std::to_string(rank));
  settings.push_back("coordinator.address=" + coordinator_);
  if (!addresses_.empty()) {
    std::string list;
    for (const std::string& address : addresses_) list += (list.empty() ? "" : ",") + address;
    settings.push_back("servers.addresses=" + list);
  }
  const std::uint32_t nodes = options_.nodes == 0 && options_.dealt ? 3 : options_.nodes;
  if (nodes != 0) settings.push_back("topology.node=n" + std::to_string(rank % nodes));
  if (options_.dealt) settings.push_back("topology.switch=s/l" + std::to_string(rank % nodes % 2));
  for (const std::string& setting : options_.settings) settings.push_back(setting);
  if (options_.rank_settings) {
    for (const std::string& setting : options_.rank_settings(rank)) settings.push_back(setting);
  }
  return settings;
}

Result<LoadedConfig> TestCluster::WorkerConfig(std::uint32_t rank) {
  ConfigSources sources;
  sources.overrides = WorkerSettings(rank);
  return LoadConfig(sources);
}

std::vector<Status> TestCluster::Run(const Body& body) {
  std::vector<Status> statuses(options_.workers);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < options_.workers; ++rank) {
    threads.emplace_back([&, rank] {
      const auto run = [&]() -> Status {
        TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, WorkerConfig(rank));
        TALLY_ASSIGN_OR_RETURN(auto client, Client::Join(config));
        TALLY_RETURN_IF_ERROR(body(*client, rank));
        return client->Leave();
      };
      statuses[rank] = run();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void PrintTo(const JobSetting& setting, std::ostream* out) { *out << setting.name; }

float ExactGradient(std::uint32_t rank, std::uint64_t step, std::uint32_t tensor, std::size_t element) {
  return static_cast<float>((element * 31 + rank * 17 + step * 5 + tensor * 7) % 16'001) / 64.0F - 125.0F;
}

std::string Failures(const std::vector<Status>& statuses) {
  std::string text;
  for (std::size_t rank = 0; rank < statuses.size(); ++rank) {
    if (!statuses[rank].ok()) text += "rank " + std::to_string(rank) + ": " + statuses[rank].ToString() + "\n";
  }
  return text;
}

float IntValue(std::uint32_t worker, std::uint64_t element) {
  return static_cast<float>(worker + 1) * (static_cast<float>(7 * element % 251) - 125);
}

float IntSum(std::uint32_t workers, std::uint64_t element) {
  return static_cast<float>(workers * (workers + 1) / 2) * (static_cast<float>(7 * element % 251) - 125);
}

}  // namespace tally::test
