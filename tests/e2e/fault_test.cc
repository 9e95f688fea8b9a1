// Processes that die at any moment, strangers that send garbage, and an end that leaves nothing behind.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "common/config/config.h"
#include "tests/support/slowdown.h"
#include "worker/cli/local_job.h"

namespace tally::test {
namespace {

using cli::LocalJob;
using cli::LocalJobOptions;

constexpr std::chrono::seconds Patience(int seconds) { return std::chrono::seconds(seconds * kSlowdown); }

struct Job {
  // `dealt`: over two nodes, so that of three workers ranks 1 and 2 have each other's position.
  explicit Job(std::uint32_t workers, std::uint32_t servers, int steps, std::vector<std::string> settings = {},
               const char* calls = nullptr, bool dealt = false) {
    LocalJobOptions options;
    options.workers = workers;
    options.servers = servers;
    options.server_program = TALLY_SERVER_PROGRAM;
    options.worker_command = {TALLY_STEP_WORKER, std::to_string(steps), "2"};
    if (calls != nullptr) options.worker_command.push_back(calls);
    if (dealt) {
      const std::vector<std::string> shell = {
          "/bin/sh", "-c", "TALLY_TOPOLOGY_NODE=n$((RANK % 2)); export TALLY_TOPOLOGY_NODE; exec \"$0\" \"$@\""};
      options.worker_command.insert(options.worker_command.begin(), shell.begin(), shell.end());
    }
    options.overrides = {"membership.heartbeat=250ms", "membership.dead=" + Seconds(3), "step.timeout=" + Seconds(20),
                         "membership.join_timeout=" + Seconds(20),
                         servers > 0 ? "aggregation.mode=ps" : "aggregation.mode=ring"};
    options.overrides.insert(options.overrides.end(), settings.begin(), settings.end());
    options.environment = ProcessEnvironment();
    for (const char* launcher : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) options.environment.erase(launcher);
    options.launcher.forward_signals = false;
    options.launcher.on_line = [this](std::size_t process, bool, std::string_view line) {
      text[process] += std::string(line) + "\n";
      if (line.starts_with("step ")) ++steps_seen[process];
    };
    job = std::make_unique<LocalJob>(options);
  }

  // Runs until process `number` has made `steps` steps.
  Status RunTo(std::size_t number, int steps) {
    return job->launcher().WaitUntil([this, number, steps] { return steps_seen[number] >= steps; },
                                     Patience(30), "steps");
  }
  bool AllWorkersEnded() {
    for (std::uint32_t rank = 0; rank < job->workers(); ++rank) {
      if (job->launcher().process(job->worker_process(rank)).running) return false;
    }
    return true;
  }
  std::map<std::size_t, std::string> text;
  std::map<std::size_t, int> steps_seen;
  std::unique_ptr<LocalJob> job;  // last: its end still delivers lines to the two above
};

// Servers, victim (-1: a server), what workers do.
enum class Doing { kSteps, kNodeSteps, kNodeCalls, kDealtSteps, kDealtNodeSteps, kCollectives };
class Kill : public testing::TestWithParam<std::tuple<std::uint32_t, int, Doing>> {};

TEST_P(Kill, EndsTheJobEverywhereNamingTheDead) {
  const auto [servers, victim, doing] = GetParam();
  std::random_device device;
  const unsigned seed = device();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<std::string> settings;
  const bool dealt = doing == Doing::kDealtSteps || doing == Doing::kDealtNodeSteps;
  const bool stages = doing == Doing::kNodeSteps || doing == Doing::kNodeCalls || doing == Doing::kDealtNodeSteps;
  if (stages) settings.push_back("aggregation.mode=hierarchical");
  const char* calls = doing == Doing::kNodeCalls ? "calls" : doing == Doing::kCollectives ? "collectives" : nullptr;
  Job job(3, servers, 100000, settings, calls, dealt);
  if (const Status started = job.job->Start(); !started.ok()) FAIL() << started.text();
  const std::size_t dead = victim < 0 ? job.job->server_process(servers - 1)
                                      : job.job->worker_process(static_cast<std::uint32_t>(victim));
  ASSERT_TRUE(job.RunTo(job.job->worker_process(0), 2).ok()) << job.text[job.job->worker_process(0)];
  usleep(static_cast<useconds_t>(random() % 20000));
  const auto killed = std::chrono::steady_clock::now();
  job.job->launcher().Signal(dead, SIGKILL);
  while (!job.AllWorkersEnded() && std::chrono::steady_clock::now() - killed < Patience(20)) {
    job.job->launcher().WaitAllEnded(std::chrono::milliseconds(20));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - killed;
  ASSERT_TRUE(job.AllWorkersEnded()) << "seed " << seed;
  EXPECT_LT(took.count(), 10 * kSlowdown) << "the bound is 3 s (membership.dead), doubled and more for a busy machine";
  std::string name = victim < 0 ? "server " + std::to_string(servers - 1) : "rank " + std::to_string(victim);
  name += " (";  // host and process follow
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::size_t process = job.job->worker_process(rank);
    if (process == dead) continue;
    const cli::ProcessState& state = job.job->launcher().process(process);
    EXPECT_EQ(state.exit_code, 4) << state.Describe() << "\n" << job.text[process];
    EXPECT_EQ(state.signal, 0) << state.Describe();
    const std::string& said = job.text[process];
    const std::size_t at = said.find(name);
    ASSERT_NE(at, std::string::npos) << "rank " << rank << ":\n" << said;
    const std::string pid = "pid " + std::to_string(job.job->launcher().process(dead).pid) + ")";
    EXPECT_LT(said.find(pid, at), said.find(')', at)) << "not the one that died:\n" << said;
  }
}

INSTANTIATE_TEST_SUITE_P(Members, Kill,
                         testing::Values(std::tuple(0U, 2, Doing::kSteps), std::tuple(0U, 0, Doing::kSteps),
                                         std::tuple(2U, 1, Doing::kSteps), std::tuple(2U, 0, Doing::kSteps),
                                         std::tuple(2U, -1, Doing::kSteps), std::tuple(1U, -1, Doing::kSteps),
                                         std::tuple(0U, 0, Doing::kNodeSteps), std::tuple(0U, 2, Doing::kNodeSteps),
                                         std::tuple(0U, 0, Doing::kNodeCalls), std::tuple(0U, 1, Doing::kNodeCalls),
                                         std::tuple(1U, 2, Doing::kNodeCalls), std::tuple(0U, 1, Doing::kDealtSteps),
                                         std::tuple(0U, 2, Doing::kDealtSteps), std::tuple(2U, 1, Doing::kDealtSteps),
                                         std::tuple(0U, 1, Doing::kDealtNodeSteps),
                                         std::tuple(0U, 2, Doing::kDealtNodeSteps),
                                         std::tuple(1U, 2, Doing::kDealtNodeSteps),
                                         std::tuple(0U, 1, Doing::kCollectives), std::tuple(0U, 0, Doing::kCollectives),
                                         std::tuple(1U, 2, Doing::kCollectives)));

TEST(Job, RunsToItsEndAndLeavesNothing) {
  for (const std::uint32_t servers : {0U, 2U}) {
    Job job(3, servers, 10, {"link.rate=10gbit", "link.nic=leave-nothing-" + std::to_string(getpid())});
    if (const Status started = job.job->Start(); !started.ok()) FAIL() << started.text();
    const Status status = job.job->Wait(Patience(30));
    EXPECT_TRUE(status.ok()) << status.text() << job.text[servers];
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(job.steps_seen[job.job->worker_process(rank)], 10);
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().string().find("leave-nothing-" + std::to_string(getpid())), std::string::npos) << entry.path();
  }
}

TEST(Job, TerminatingEverythingLeavesNoProcess) {
  Job job(3, 2, 100000);
  if (const Status started = job.job->Start(); !started.ok()) FAIL() << started.text();
  ASSERT_TRUE(job.RunTo(job.job->worker_process(2), 2).ok());
  std::vector<pid_t> pids;
  for (const auto& process : job.job->launcher().processes()) pids.push_back(process.pid);
  job.job->launcher().SignalAll(SIGTERM);
  job.job->launcher().WaitAllEnded(Patience(15));
  const auto ended = [&] {
    for (const auto& process : job.job->launcher().processes()) {
      if (process.running) return false;
    }
    return true;
  };
  EXPECT_TRUE(ended());
  for (std::uint32_t server = 0; server < 2; ++server) {
    const auto& state = job.job->launcher().process(job.job->server_process(server));
    // One that hears of the other's end long before it is asked itself ends with a job that failed.
    const bool heard = job.text[server].find("was asked to stop\n") != std::string::npos;
    EXPECT_TRUE(state.exit_code == 0 || (state.exit_code == 1 && heard)) << state.Describe() << job.text[server];
  }
  for (const pid_t pid : pids) EXPECT_NE(kill(pid, 0), 0) << pid;
}

TEST(Job, AServerThatEndsWithItsJobSaysHowTheJobEnded) {
  for (const bool killed : {false, true}) {
    Job job(2, 2, killed ? 100000 : 10, {"server.exit_when_done=true"});
    if (const Status started = job.job->Start(); !started.ok()) FAIL() << started.text();
    if (killed) {
      ASSERT_TRUE(job.RunTo(job.job->worker_process(0), 2).ok());
      job.job->launcher().Signal(job.job->worker_process(1), SIGKILL);
    }
    job.job->launcher().WaitAllEnded(Patience(30));
    for (std::uint32_t server = 0; server < 2; ++server) {
      const auto& state = job.job->launcher().process(job.job->server_process(server));
      EXPECT_EQ(state.exit_code, killed ? 4 : 0) << state.Describe() << job.text[server];
      EXPECT_EQ(job.text[server].find("rank 1 (") != std::string::npos, killed) << job.text[server];
    }
  }
}

// All TCP ports on which `pid` listens.
std::vector<std::uint16_t> ListeningPorts(pid_t pid) {
  std::map<std::string, bool> inodes;
  std::error_code ignored;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(fd, ignored).string();
    if (target.starts_with("socket:[")) inodes[target.substr(8, target.size() - 9)] = true;
  }
  std::ifstream table("/proc/" + std::to_string(pid) + "/net/tcp");
  std::string line;
  std::vector<std::uint16_t> ports;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
    if (state == "0A" && inodes.contains(inode)) {
      ports.push_back(static_cast<std::uint16_t>(std::stoul(local.substr(local.find(':') + 1), nullptr, 16)));
    }
  }
  return ports;
}

void SendTo(std::uint16_t port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval patience{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    (void)send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char answer[256];
    (void)recv(fd, answer, sizeof answer, 0);
  }
  close(fd);
}

class Garbage : public testing::TestWithParam<std::uint32_t> {};  // servers

TEST_P(Garbage, OnEveryPortDoesNotDisturbTheJob) {
  Job job(3, GetParam(), 400);
  if (const Status started = job.job->Start(); !started.ok()) FAIL() << started.text();
  ASSERT_TRUE(job.RunTo(job.job->worker_process(1), 2).ok());
  std::mt19937 random(7);
  std::string noise(5000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  // An honest magic with an enormous length, a fragment, an HTTP request, a pickle, noise.
  const std::vector<std::string> messages = {std::string("TLLY\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16), "T",
                                             "GET / HTTP/1.0\r\n\r\n", std::string("\x80\x04\x95\x00", 4), noise,
                                             std::string(200000, '\xff')};
  std::vector<std::uint16_t> ports;  // all of them first: the job may end meanwhile
  for (const auto& process : job.job->launcher().processes()) {
    for (const std::uint16_t port : ListeningPorts(process.pid)) ports.push_back(port);
  }
  for (const std::uint16_t port : ports) {
    for (const std::string& message : messages) SendTo(port, message);
  }
  EXPECT_GE(ports.size(), 3U) << "the job's listeners were not found";
  const Status status = job.job->Wait(Patience(60));
  std::string everything;
  for (const auto& [process, lines] : job.text) everything += lines.substr(0, 2000);
  EXPECT_TRUE(status.ok()) << status.text() << "\n" << everything;
  EXPECT_NE(job.text[0].find("connection turned away\" why=\"from 127.0.0.1:"), std::string::npos) << everything;
  for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(job.steps_seen[job.job->worker_process(rank)], 400);
}

INSTANTIATE_TEST_SUITE_P(Servers, Garbage, testing::Values(0U, 2U));

}  // namespace
}  // namespace tally::test
