// tally-worker when training processes, it itself, or strangers misbehave: others are told who, nobody hangs, nothing
// is left, and what is not concerned goes on.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "common/transport/unix_sockets.h"
#include "common/version.h"
#include "tests/support/node_daemon.h"
#include "tests/support/slowdown.h"
#include "worker/agent/channel.h"
#include "worker/cli/local_ports.h"

namespace tally::test {
namespace {

constexpr std::chrono::seconds Patience(int seconds) { return std::chrono::seconds(seconds * kSlowdown); }

// Step workers that attach to a daemon, each to its own if there are several, and come back where they are told to.
class Job {
 public:
  Job(std::uint32_t workers, std::vector<const NodeDaemon*> daemons, std::vector<std::string> command,
      std::map<std::string, std::string> settings = {})
      : command_(std::move(command)), ports_(cli::LocalPorts::Reserve().value()), launcher_(Options()) {
    command_.insert(command_.begin(), TALLY_STEP_WORKER);
    environment_ = ProcessEnvironment();
    environment_.insert({{"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", std::to_string(ports_.master())},
                         {"TALLY_WORKER_ATTACH", "agent"},
                         {"TALLY_MEMBERSHIP_HEARTBEAT", "250ms"},
                         {"TALLY_MEMBERSHIP_DEAD", Seconds(3)},
                         {"TALLY_MEMBERSHIP_JOIN_TIMEOUT", Seconds(20)},
                         {"TALLY_STEP_TIMEOUT", Seconds(20)},
                         {"TALLY_AGGREGATION_MODE", "ring"}});
    for (const auto& [name, value] : settings) environment_[name] = value;
    environment_["WORLD_SIZE"] = std::to_string(workers);
    for (std::uint32_t rank = 0; rank < workers; ++rank) Spawn(rank, *daemons[rank % daemons.size()]);
  }

  // Returns the process' number, that of its rank for the first ones.
  std::size_t Spawn(std::uint32_t rank, const NodeDaemon& daemon) {
    cli::ProcessSpec spec{"rank " + std::to_string(rank), command_, environment_, {}};
    spec.environment["RANK"] = std::to_string(rank);
    spec.environment["TALLY_WORKER_AGENT"] = daemon.name();
    return launcher_.Spawn(spec).value();
  }

  // Until a process has said `what` so many times.
  testing::AssertionResult Says(std::size_t process, const std::string& what, int times = 1) {
    const auto said = [&] {
      int count = 0;
      for (std::size_t at = text[process].find(what); at != std::string::npos; at = text[process].find(what, at + 1))
        ++count;
      return count >= times;
    };
    // A process that fails is part of these tests: look again.
    const auto deadline = std::chrono::steady_clock::now() + Patience(40);
    while (!said() && std::chrono::steady_clock::now() < deadline) {
      launcher_.WaitAllEnded(std::chrono::milliseconds(10));
    }
    if (said()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << process << " did not say " << what << ":\n" << text[process];
  }
  testing::AssertionResult Ends(std::size_t process, int exit_code) {
    const auto deadline = std::chrono::steady_clock::now() + Patience(60);
    while (state(process).running && std::chrono::steady_clock::now() < deadline) {
      launcher_.WaitAllEnded(std::chrono::milliseconds(10));
    }
    if (!state(process).running && state(process).signal == 0 && state(process).exit_code == exit_code) {
      return testing::AssertionSuccess();
    }
    return testing::AssertionFailure() << state(process).Describe() << ", expected code " << exit_code << ":\n"
                                       << text[process];
  }
  // It has ended, and its error names `who`.
  testing::AssertionResult Blames(std::size_t process, const std::string& who, int exit_code = 4) {
    if (const auto ended = Ends(process, exit_code); !ended) return ended;
    if (text[process].find(who) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << process << " does not name " << who << ":\n" << text[process];
  }
  ~Job() {
    for (const auto& [process, said] : text) {
      const std::size_t child = said.find("child ");
      if (child != std::string::npos) kill(std::atoi(said.c_str() + child + 6), SIGKILL);
    }
  }

  void Wait(std::chrono::milliseconds time) { launcher_.WaitAllEnded(time); }
  void Kill(std::size_t process, int signal = SIGKILL) { launcher_.Signal(process, signal); }
  const cli::ProcessState& state(std::size_t process) { return launcher_.process(process); }
  std::string Name(std::size_t process) { return "training process " + std::to_string(state(process).pid); }

  std::map<std::size_t, std::string> text;

 private:
  cli::LauncherOptions Options() {
    cli::LauncherOptions options;
    options.forward_signals = false;
    options.on_line = [this](std::size_t process, bool, std::string_view line) {
      text[process] += std::string(line) + "\n";
    };
    return options;
  }
  std::vector<std::string> command_;
  std::map<std::string, std::string> environment_;
  cli::LocalPorts ports_;
  cli::Launcher launcher_;
};

struct Setting {
  const char* name;
  std::map<std::string, std::string> settings;
};
class AgentFault : public testing::TestWithParam<Setting> {};

TEST_P(AgentFault, ADeathWithinAStepNamesTheProcessToTheOthers) {
  NodeDaemon daemon;
  Job job(3, {&daemon}, {"100000", "1", "hang"}, GetParam().settings);
  ASSERT_TRUE(job.Says(1, "hanging"));
  job.Kill(1);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_TRUE(job.Blames(rank, job.Name(1) + " died in the middle of step 2 of group default"));
    EXPECT_TRUE(job.Blames(rank, "rank 1"));
  }
}

TEST_P(AgentFault, ADeathAtAnyMomentIsAnErrorForTheOthersOrNone) {
  NodeDaemon daemon;
  std::random_device device;
  const unsigned seed = device();
  RecordProperty("seed", std::to_string(seed));
  std::map<std::string, std::string> settings = GetParam().settings;
  settings["TALLY_WORKER_RETURN_WITHIN"] = "500ms";
  Job job(3, {&daemon}, {"100000", "1"}, settings);
  ASSERT_TRUE(job.Says(1, "step ", 3));
  usleep(static_cast<useconds_t>(std::mt19937(seed)() % 20000));
  job.Kill(1);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}})
    EXPECT_TRUE(job.Blames(rank, job.Name(1))) << "seed " << seed;
}

TEST_P(AgentFault, AProcessThatIsKilledBetweenStepsComesBackAndNobodyNotices) {
  NodeDaemon daemon;
  Job job(3, {&daemon}, {"20", "1", "pause"}, GetParam().settings);
  ASSERT_TRUE(job.Says(1, "pausing"));
  job.Kill(1);
  const std::size_t next = job.Spawn(1, daemon);
  for (const std::size_t process : {std::size_t{0}, std::size_t{2}, next}) EXPECT_TRUE(job.Ends(process, 0));
  EXPECT_EQ(job.text[next].find("step 1\n"), std::string::npos) << "it went on where the other was\n"
                                                                << job.text[next];
  EXPECT_NE(job.text[next].find("step 2\n"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Modes, AgentFault,
                         testing::Values(Setting{"ring", {}}, Setting{"direct", {{"TALLY_COMPRESSION_CODEC", "fp16"}}},
                                         Setting{"hierarchical", {{"TALLY_AGGREGATION_MODE", "hierarchical"}}}),
                         [](const auto& param) { return std::string(param.param.name); });

TEST(AgentFaults, OneWhoDoesNotComeBackIsMissed) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"20", "1", "pause"}, {{"TALLY_WORKER_RETURN_WITHIN", "300ms"}});
  ASSERT_TRUE(job.Says(1, "pausing"));
  job.Kill(1);
  EXPECT_TRUE(job.Blames(0, job.Name(1) + " is gone and none came back within 300 ms (worker.return_within)"));
}

TEST(AgentFaults, OneWhoGoesAfterStandaloneCallsCannotComeBack) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"20", "1", "call"});
  ASSERT_TRUE(job.Says(1, "pausing"));
  job.Kill(1);
  EXPECT_TRUE(job.Blames(0, job.Name(1) + " died in the middle of standalone calls"));
}

TEST(AgentFaults, ARestartIntoAJobThatFailsGetsANewOne) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"20", "1", "pause"});
  ASSERT_TRUE(job.Says(1, "pausing"));
  ASSERT_TRUE(job.Says(0, "waiting")) << "it is in the step, and says so after 5 s";
  job.Kill(1);  // its place is vacant
  job.Kill(0);  // the job fails
  while (job.state(0).running) job.Wait(std::chrono::milliseconds(10));
  const std::size_t one = job.Spawn(1, daemon), zero = job.Spawn(0, daemon);
  // Rank 1 comes to a job of its own, whose second step is another one than that it was to come back for.
  ASSERT_TRUE(job.Says(one, "pausing"));
  EXPECT_NE(job.text[one].find("step 1\n"), std::string::npos) << job.text[one];
  job.Kill(one);
  const std::size_t back = job.Spawn(1, daemon);
  for (const std::size_t process : {zero, back}) EXPECT_TRUE(job.Ends(process, 0));
}

TEST(AgentFaults, AVacantSeatIsNotForAJobOfTheSameName) {
  NodeDaemon daemon;
  Job first(2, {&daemon}, {"20", "1", "pause"}), second(2, {&daemon}, {"20", "1", "pause"});
  ASSERT_TRUE(first.Says(1, "pausing"));
  ASSERT_TRUE(second.Says(1, "pausing"));
  first.Kill(1);
  Job third(2, {&daemon}, {"20", "1"});
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_TRUE(third.Ends(rank, 0));
    EXPECT_NE(third.text[rank].find("step 0\n"), std::string::npos) << "it is in another job\n" << third.text[rank];
  }
  second.Kill(1);
  const std::size_t first_back = first.Spawn(1, daemon), second_back = second.Spawn(1, daemon);
  for (const std::size_t process : {std::size_t{0}, first_back}) EXPECT_TRUE(first.Ends(process, 0));
  for (const std::size_t process : {std::size_t{0}, second_back}) EXPECT_TRUE(second.Ends(process, 0));
}

TEST(AgentFaults, AStandaloneCallThatLosesItsProcessFailsForAll) {
  NodeDaemon daemon;
  Job job(3, {&daemon}, {"100000", "0", "collectives"}, {{"TALLY_WORKER_RETURN_WITHIN", "500ms"}});
  ASSERT_TRUE(job.Says(2, "step ", 3));
  job.Kill(2);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) EXPECT_TRUE(job.Blames(rank, job.Name(2)));
}

TEST(AgentFaults, AProcessThatIsStoppedIsNamedWhenTheStepRunsOut) {
  NodeDaemon daemon;
  Job job(3, {&daemon}, {"100000", "1", "pause"}, {{"TALLY_STEP_TIMEOUT", Seconds(2)}});
  ASSERT_TRUE(job.Says(1, "pausing"));
  job.Kill(1, SIGSTOP);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) EXPECT_TRUE(job.Ends(rank, 3)) << job.text[rank];
  const auto names = [&](std::size_t rank) {
    return job.text[rank].find("rank 1 (") != std::string::npos ||
           job.text[rank].find("from rank 1") != std::string::npos ||
           job.text[rank].find("position 1") != std::string::npos;
  };
  EXPECT_TRUE(names(0) || names(2)) << job.text[0] << job.text[2];
  job.Kill(1, SIGCONT);
}

TEST(AgentFaults, AStoppedProcessThatGoesOnInTimeIsNoFault) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"40", "5"});
  ASSERT_TRUE(job.Says(1, "step ", 5));
  job.Kill(1, SIGSTOP);
  job.Wait(std::chrono::milliseconds(700));
  EXPECT_TRUE(job.state(0).running) << "it did not wait\n" << job.text[0];
  job.Kill(1, SIGCONT);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) EXPECT_TRUE(job.Ends(rank, 0));
}

TEST(AgentFaults, ADaemonThatIsKilledEndsItsProcessesAtOnceAndTheOthersByName) {
  NodeDaemon first, second;
  Job job(2, {&first, &second}, {"100000", "1"});
  ASSERT_TRUE(job.Says(1, "step ", 3));
  const auto killed = std::chrono::steady_clock::now();
  second.launcher().SignalAll(SIGKILL);
  EXPECT_TRUE(job.Blames(
      1, "tally-worker (process " + std::to_string(second.pid()) + ", local socket " + second.name() + ") has gone"));
  EXPECT_TRUE(job.Blames(0, "rank 1 ("));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, Patience(15)) << "the bound is 3 s (membership.dead)";
  second.launcher().WaitAllEnded(Patience(5));
  std::ifstream sockets("/proc/net/unix");
  std::stringstream all;
  all << sockets.rdbuf();
  EXPECT_NE(all.str().find(first.name()), std::string::npos);
  EXPECT_EQ(all.str().find(second.name()), std::string::npos) << "left behind";
}

TEST(AgentFaults, ADaemonThatIsStoppedIsMissedByName) {
  NodeDaemon first, second;
  Job job(2, {&first, &second}, {"100000", "1"});
  ASSERT_TRUE(job.Says(1, "step ", 3));
  second.launcher().SignalAll(SIGSTOP);
  EXPECT_TRUE(job.Blames(0, "rank 1 ("));
  second.launcher().SignalAll(SIGKILL);
  EXPECT_TRUE(job.Blames(1, "has gone"));
}

// Of the daemon and of the engines that run in it.
TEST(AgentFaults, AHangUpChangesTheLevelOfRunningJobsLogs) {
  std::string file = testing::TempDir() + "tally-worker-XXXXXX";
  const UniqueFd made(mkstemp(file.data()));
  ASSERT_GE(made.get(), 0);
  const auto set = [&](const char* level) { std::ofstream(file) << "[log]\nlevel = \"" << level << "\"\n"; };
  set("off");
  NodeDaemon daemon({}, file);
  Job job(2, {&daemon}, {"100000", "1", "hang"});
  ASSERT_TRUE(job.Says(1, "hanging"));
  set("info");
  daemon.launcher().SignalAll(SIGHUP);
  const auto says = [&](const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + Patience(20);
    while (daemon.said().find(what) == std::string::npos && std::chrono::steady_clock::now() < deadline) {
      daemon.launcher().WaitAllEnded(std::chrono::milliseconds(10));
    }
    return daemon.said().find(what) != std::string::npos;
  };
  EXPECT_TRUE(says("reloaded")) << daemon.said();
  job.Kill(1);
  EXPECT_TRUE(job.Blames(0, job.Name(1)));
  EXPECT_TRUE(says("job failed")) << "no engine said so:\n" << daemon.said();
  unlink(file.c_str());
}

TEST(AgentFaults, ADaemonThatIsAskedToStopSaysSoToAll) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"100000", "1"});
  ASSERT_TRUE(job.Says(1, "step ", 3));
  daemon.launcher().SignalAll(SIGTERM);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_TRUE(job.Blames(rank, "the node's tally-worker was asked to stop", 1));
  }
  daemon.launcher().WaitAllEnded(Patience(40));
  EXPECT_EQ(daemon.launcher().process(0).exit_code, 0) << daemon.said();
  EXPECT_FALSE(daemon.launcher().process(0).running);
}

TEST(AgentFaults, TwoJobsShareADaemonAndOnesEndIsNotTheOthers) {
  NodeDaemon daemon;
  Job first(2, {&daemon}, {"200", "1"}, {{"TALLY_JOB_NAME", "first"}});
  Job second(2, {&daemon}, {"100000", "1"}, {{"TALLY_JOB_NAME", "second"}, {"TALLY_WORKER_RETURN_WITHIN", "100ms"}});
  ASSERT_TRUE(second.Says(1, "step ", 3));
  second.Kill(1);
  EXPECT_TRUE(second.Blames(0, second.Name(1)));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) EXPECT_TRUE(first.Ends(rank, 0));
}

// ---- strangers
// -------------------------------------------------------------------------------------------------------

UniqueFd Connect(const NodeDaemon& daemon) {
  sockaddr_un address;
  const socklen_t length = UnixAddress(daemon.name(), &address);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  for (int tries = 0; connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0; ++tries) {
    EXPECT_LT(tries, 1000);
    usleep(10000);
  }
  return fd;
}

// What the daemon answers before it closes, if it does.
Result<agent::Message> Answer(agent::Channel& channel) {
  pollfd wait{channel.fd(), POLLIN, 0};
  if (poll(&wait, 1, 20'000 * kSlowdown) == 0) return Timeout("no answer");
  TALLY_ASSIGN_OR_RETURN(agent::Channel::Received received, channel.Receive());
  return std::move(received.message);
}

Status Refusal(const NodeDaemon& daemon, const agent::Message& question) {
  agent::Channel channel(Connect(daemon), [] {});
  TALLY_RETURN_IF_ERROR(channel.Send(question));
  TALLY_ASSIGN_OR_RETURN(const agent::Message answer, Answer(channel));
  const auto* reply = std::get_if<agent::Reply>(&answer);
  if (reply == nullptr) return Internal("not refused");
  const Status status = reply->status();
  EXPECT_EQ(Answer(channel).status().kind(), StatusKind::kUnavailable) << "it stays open";
  return status;
}

TEST(AgentFaults, AnotherVersionIsRefusedWithBothNamed) {
  NodeDaemon daemon;
  const Status status = Refusal(daemon, agent::Attach{agent::kProtocol + 1, "9.9", ""});
  EXPECT_EQ(status.kind(), StatusKind::kMismatch);
  EXPECT_NE(status.text().find(std::string("version ") + kVersion), std::string::npos) << status.text();
  EXPECT_NE(status.text().find("version 9.9 (protocol 2)"), std::string::npos) << status.text();
}

TEST(AgentFaults, SettingsThatAreNoneAreRefused) {
  NodeDaemon daemon;
  const Status status = Refusal(daemon, agent::Attach{agent::kProtocol, kVersion, "[job]\nworkers = \"many\"\n"});
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  EXPECT_NE(status.text().find("job.workers"), std::string::npos) << status.text();
  EXPECT_EQ(Refusal(daemon, agent::Leave{}).kind(), StatusKind::kCorrupt) << "before it has a seat";
}

TEST(AgentFaults, GarbageOnTheSocketChangesNothing) {
  NodeDaemon daemon;
  Job job(2, {&daemon}, {"150", "2"});
  ASSERT_TRUE(job.Says(1, "step ", 3));
  std::mt19937 random(11);
  std::vector<UniqueFd> silent;
  for (int round = 0; round < 60; ++round) {
    UniqueFd fd = Connect(daemon);
    std::vector<std::byte> bytes(random() % 20000);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    if (round % 3 == 0) {  // a good envelope with a bit turned, or a part of it
      bytes = agent::Encode(agent::Attach{agent::kProtocol, kVersion, std::string(200, 'x')});
      bytes[random() % bytes.size()] ^= std::byte{16};
      bytes.resize(bytes.size() - random() % 2 * 8);
    }
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (round % 2 == 0) silent.push_back(std::move(fd));
  }
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) EXPECT_TRUE(job.Ends(rank, 0));
}

// Neither a spinning loop nor a log that fills up; whoever knocked meanwhile is let in.
TEST(AgentFaults, WithoutDescriptorsConnectionsWait) {
  NodeDaemon daemon;
  (void)Refusal(daemon, agent::Leave{});  // it listens
  rlimit usual{}, none{};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &usual), 0);
  none = {4, usual.rlim_max};
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  agent::Channel channel(Connect(daemon), [] {});
  const auto told = [&] {
    std::size_t count = 0, at = 0;
    for (; (at = daemon.said().find("connections have to wait", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const auto deadline = std::chrono::steady_clock::now() + Patience(20);
  while (told() < 2 && std::chrono::steady_clock::now() < deadline) {
    daemon.launcher().WaitAllEnded(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(told(), 2U) << daemon.said();  // once a second
  ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &usual, nullptr), 0);
  ASSERT_TRUE(channel.Send(agent::Leave{}).ok());
  const auto answer = Answer(channel);
  EXPECT_TRUE(answer.ok() && std::holds_alternative<agent::Reply>(*answer)) << answer.status().text();
}

// One process of one rank that keeps to no rule once it is attached. `after` it is turned out and may come back.
class Rogue : public testing::Test {
 protected:
  NodeDaemon daemon;
  agent::Attach hello() {
    ConfigSources sources;
    sources.overrides = {"job.workers=1", "worker.rank=0", "worker.return_within=10s"};
    return {agent::kProtocol, kVersion, ProcessText(LoadConfig(sources)->config)};
  }
  void Attach(agent::Channel& channel) {
    ASSERT_TRUE(channel.Send(hello()).ok());
    const auto answer = Answer(channel);
    ASSERT_TRUE(answer.ok()) << answer.status().text();
    ASSERT_TRUE(std::holds_alternative<agent::Attached>(*answer)) << std::get<agent::Reply>(*answer).text;
  }
};

TEST_F(Rogue, IsTurnedOutForMessagesThatMakeNoSenseAndMayComeBack) {
  const std::vector<agent::Message> wrong = {agent::Submit{0, 0, {}, 0}, agent::Keep{3, 0},
                                             agent::GiveUp{1, 1, {}},        agent::BucketEnd{0, 0, agent::Reply()},
                                             agent::Attached{},          hello()};
  for (const agent::Message& message : wrong) {
    agent::Channel channel(Connect(daemon), [] {});
    Attach(channel);
    ASSERT_TRUE(channel.Send(message).ok());
    const auto answer = Answer(channel);
    ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Reply>(*answer)) << message.index();
    EXPECT_NE(std::get<agent::Reply>(*answer).kind, StatusKind::kOk);
    EXPECT_EQ(Answer(channel).status().kind(), StatusKind::kUnavailable) << message.index();
  }
}

TEST_F(Rogue, GetsErrorsForQuestionsThatHaveNoAnswer) {
  agent::Channel channel(Connect(daemon), [] {});
  Attach(channel);
  CollectiveShape huge{std::uint64_t{1} << 50, DType::kInt64, ReduceOp::kSum}, far{4, DType::kInt64, ReduceOp::kSum};
  CollectiveShape of_bits{4, DType::kFloat32, ReduceOp::kXor}, lacking{1000, DType::kFloat32, ReduceOp::kSum};
  far.kind = CollectiveKind::kBroadcast;
  far.root = 9;
  DeclareMessage twice{"g", {{"w", ElementCount(4), DType::kFloat32}}, {}, {}};
  const std::vector<agent::Message> wrong = {agent::EndStep{},           agent::Collective{huge},
                                             agent::Collective{far},     agent::Collective{of_bits},
                                             agent::Collective{lacking}, agent::ReduceBuffer{},
                                             agent::ExportState{},       agent::ImportState{7},
                                             agent::Residual{},          agent::MakeBuffer{std::uint64_t{1} << 60}};
  for (const agent::Message& message : wrong) {
    ASSERT_TRUE(channel.Send(message).ok());
    const auto answer = Answer(channel);
    ASSERT_TRUE(answer.ok()) << message.index();
    ASSERT_TRUE(std::holds_alternative<agent::Reply>(*answer)) << message.index();
    EXPECT_EQ(std::get<agent::Reply>(*answer).kind, StatusKind::kInvalidArgument) << message.index();
  }
  // It can still be served.
  ASSERT_TRUE(channel.Send(twice).ok());
  auto answer = Answer(channel);
  while (answer.ok() && std::holds_alternative<agent::Memory>(*answer)) answer = Answer(channel);
  ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Declared>(*answer));
  ASSERT_TRUE(channel.Send(twice).ok());
  answer = Answer(channel);
  ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Reply>(*answer));
  EXPECT_EQ(std::get<agent::Reply>(*answer).kind, StatusKind::kInvalidArgument);
}

TEST_F(Rogue, MemoryThatCouldShrinkIsNotMapped) {
  UniqueFd plain(memfd_create("plain", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(plain.get(), 4096), 0);
  for (const int descriptor : {plain.get(), -1}) {
    agent::Channel channel(Connect(daemon), [] {});
    Attach(channel);
    ASSERT_TRUE(channel.Send(agent::Memory{4096}, descriptor).ok());
    ASSERT_TRUE(channel.Send(agent::Collective{{16, DType::kFloat32, ReduceOp::kSum}}).ok());
    const auto answer = Answer(channel);
    ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Reply>(*answer));
    EXPECT_NE(std::get<agent::Reply>(*answer).text.find("not sealed"), std::string::npos)
        << std::get<agent::Reply>(*answer).text;
  }
}

// What an earlier message left behind is no reason for what needs no memory.
TEST_F(Rogue, ACallOfNothingNeedsNoMemory) {
  agent::Channel channel(Connect(daemon), [] {});
  Attach(channel);
  ASSERT_TRUE(channel.Send(agent::Memory{4096}).ok());
  ASSERT_TRUE(channel.Send(agent::Collective{{0, DType::kFloat32, ReduceOp::kSum}}).ok());
  auto answer = Answer(channel);
  ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Reply>(*answer));
  EXPECT_EQ(std::get<agent::Reply>(*answer).kind, StatusKind::kOk) << std::get<agent::Reply>(*answer).text;
}

TEST_F(Rogue, IsSaidToBeTurnedOutAndNotToHaveDied) {
  agent::Channel channel(Connect(daemon), [] {});
  Attach(channel);
  ASSERT_TRUE(channel.Send(DeclareMessage{"g", {{"w", ElementCount(4), DType::kFloat32}}, {}, {}}).ok());
  auto answer = Answer(channel);
  while (answer.ok() && std::holds_alternative<agent::Memory>(*answer)) answer = Answer(channel);
  ASSERT_TRUE(answer.ok() && std::holds_alternative<agent::Declared>(*answer));
  ASSERT_TRUE(channel.Send(agent::GiveUp{0, 0, StepId(5)}).ok());  // of no step that is open: not heard
  ASSERT_TRUE(channel.Send(agent::Submit{0, 0, {}, 0}).ok());
  ASSERT_TRUE(channel.Send(agent::Keep{0, 7}).ok());
  const auto said = [&] {
    daemon.launcher().WaitAllEnded(std::chrono::milliseconds(10));
    return daemon.said().find("turned out in the middle of step 0 of group g: tensor 7") != std::string::npos;
  };
  const auto deadline = std::chrono::steady_clock::now() + Patience(20);
  while (!said() && std::chrono::steady_clock::now() < deadline) {
  }
  EXPECT_TRUE(said()) << daemon.said();
  EXPECT_EQ(daemon.said().find("died"), std::string::npos) << daemon.said();
}

}  // namespace
}  // namespace tally::test
