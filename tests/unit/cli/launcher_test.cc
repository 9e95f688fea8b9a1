// Launcher and LocalJob with small shell programs: nothing may survive, every end is told apart.
#include "worker/cli/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "worker/cli/local_job.h"
#include "worker/cli/local_ports.h"

namespace tally::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr Nanos kLong = std::chrono::seconds(60);

ProcessSpec Shell(const std::string& label, const std::string& script) {
  ProcessSpec spec;
  spec.label = label;
  spec.command = {"sh", "-c", script};
  spec.environment = {{"PATH", "/usr/bin:/bin"}};
  return spec;
}

std::size_t Spawned(Launcher& launcher, const ProcessSpec& spec) {
  const Result<std::size_t> number = launcher.Spawn(spec);
  EXPECT_TRUE(number.ok()) << number.status().ToString();
  return number.ok() ? *number : 0;
}

// Gone, or dead and waiting to be reaped by somebody else.
bool IsDead(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(in, text);
  const std::size_t paren = text.rfind(')');
  return paren == std::string::npos || text.substr(paren + 2, 1) == "Z";
}

bool DiesSoon(pid_t pid) {
  for (int i = 0; i < 2000 && !IsDead(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return IsDead(pid);
}

LauncherOptions Lines(std::vector<std::string>* lines) {
  LauncherOptions options;
  options.grace = std::chrono::milliseconds(200);
  options.on_line = [lines](std::size_t process, bool is_stderr, std::string_view line) {
    lines->push_back(std::to_string(process) + (is_stderr ? "e " : "o ") + std::string(line));
  };
  return options;
}

TEST(Launcher, OutputComesInLines) {
  std::vector<std::string> lines;
  Launcher launcher(Lines(&lines));
  const std::size_t a = Spawned(launcher, Shell("a", "echo one; echo two >&2; printf three"));
  const std::size_t b = Spawned(launcher, Shell("b", "echo \"$X\"; read line || echo no input"));
  EXPECT_TRUE(launcher.WaitFor({a, b}, kLong, "end").ok());
  EXPECT_THAT(lines, UnorderedElementsAre("0o one", "0e two", "0o three", "1o ", "1o no input"));
  EXPECT_FALSE(launcher.process(a).failed());
}

TEST(Launcher, LongLinesComeInParts) {
  std::size_t bytes = 0, parts = 0;
  LauncherOptions options;
  options.on_line = [&](std::size_t, bool, std::string_view line) {
    EXPECT_LE(line.size(), std::size_t{64} << 10);
    bytes += line.size();
    ++parts;
  };
  Launcher launcher(options);
  const std::size_t a = Spawned(launcher, Shell("a", "head -c 200000 /dev/zero; echo; echo x"));
  EXPECT_TRUE(launcher.WaitFor({a}, kLong, "end").ok());
  EXPECT_EQ(bytes, 200001u);
  EXPECT_EQ(parts, 5u);
}

TEST(Launcher, EndsAreToldApart) {
  Launcher launcher;
  const std::size_t code = Spawned(launcher, Shell("rank 0", "exit 3"));
  EXPECT_EQ(launcher.WaitFor({code}, kLong, "end").kind(), StatusKind::kPeerLost);
  EXPECT_EQ(launcher.process(code).ShellCode(), 3);
  EXPECT_THAT(launcher.process(code).Describe(), HasSubstr("exited with code 3"));

  Launcher other;
  const std::size_t killed = Spawned(other, Shell("rank 1", "kill -SEGV $$"));
  const Status status = other.WaitFor({killed}, kLong, "end");
  EXPECT_THAT(status.text(), HasSubstr("rank 1"));
  EXPECT_THAT(status.text(), HasSubstr("was killed by SIGSEGV"));
  EXPECT_EQ(other.process(killed).ShellCode(), 128 + SIGSEGV);
  EXPECT_EQ(other.first_failure(), 0);
}

TEST(Launcher, OneFailureEndsTheOthersEvenThoseThatIgnoreIt) {
  std::vector<std::string> lines;
  Launcher launcher(Lines(&lines));
  const std::size_t deaf = Spawned(launcher, Shell("deaf", "trap '' TERM; echo ready; while :; do sleep 1; done"));
  ASSERT_TRUE(launcher.WaitUntil([&] { return !lines.empty(); }, kLong, "line").ok());
  const std::size_t polite = Spawned(launcher, Shell("polite", "sleep 100"));
  const std::size_t bad = Spawned(launcher, Shell("bad", "exit 9"));
  EXPECT_EQ(launcher.WaitFor({deaf, polite, bad}, kLong, "end").kind(), StatusKind::kPeerLost);
  EXPECT_EQ(launcher.first_failure(), static_cast<int>(bad));
  EXPECT_EQ(launcher.process(deaf).signal, SIGKILL);
  EXPECT_EQ(launcher.process(polite).signal, SIGTERM);
  EXPECT_TRUE(launcher.process(deaf).ended_by_us);
  EXPECT_FALSE(launcher.process(polite).failed());
}

TEST(Launcher, ChildrenOfChildrenGoToo) {
  std::vector<std::string> lines;
  Launcher launcher(Lines(&lines));
  const std::size_t parent = Spawned(launcher, Shell("parent", "sleep 300 & echo $!"));
  EXPECT_TRUE(launcher.WaitFor({parent}, kLong, "end").ok());
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(DiesSoon(static_cast<pid_t>(std::stoi(lines[0].substr(3)))));
}

TEST(Launcher, ChildrenDieWithTheirLauncher) {
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t launcher_process = fork();
  if (launcher_process == 0) {
    Launcher launcher;
    const pid_t child = launcher.process(Spawned(launcher, Shell("a", "trap '' TERM INT; exec sleep 300"))).pid;
    if (write(pipe_ends[1], &child, sizeof child) != static_cast<ssize_t>(sizeof child)) _exit(1);
    kill(getpid(), SIGKILL);
  }
  pid_t child = 0;
  ASSERT_EQ(read(pipe_ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  waitpid(launcher_process, nullptr, 0);
  EXPECT_TRUE(DiesSoon(child));
}

TEST(Launcher, TimeoutEndsAll) {
  LauncherOptions options;
  options.grace = std::chrono::milliseconds(100);
  Launcher launcher(options);
  const std::size_t slow = Spawned(launcher, Shell("slow", "sleep 300"));
  const Status status = launcher.WaitFor({slow}, std::chrono::milliseconds(50), "result");
  EXPECT_EQ(status.kind(), StatusKind::kTimeout);
  EXPECT_THAT(status.text(), HasSubstr("no result within"));
  EXPECT_FALSE(launcher.process(slow).running);
}

TEST(Launcher, AFollowersExitCodeIsNoFailureButItsDeathAndItsOwnFaultAre) {
  for (const char* end : {"exit 3", "exit 2", "kill -SEGV $$"}) {
    const bool died = std::string_view(end) != "exit 3";
    std::vector<std::string> lines;
    Launcher launcher(Lines(&lines));
    const std::size_t follower = Spawned(launcher, Shell("server 0", end));
    launcher.Follow(follower);
    const std::size_t worker = Spawned(launcher, Shell("rank 0", died ? "sleep 300" : "sleep 0.3; echo saved"));
    const Status status = launcher.WaitFor({worker}, kLong, "end");
    EXPECT_EQ(status.ok(), !died) << status.ToString();
    EXPECT_EQ(launcher.process(follower).ShellCode(), end == std::string_view("exit 2") ? 2 : died ? 128 + SIGSEGV : 3);
    EXPECT_EQ(launcher.first_failure(), died ? 0 : -1);
    if (!died) {
      EXPECT_THAT(lines, ::testing::Contains("1o saved"));
    }
  }
}

TEST(Launcher, SignalsArePassedOn) {
  std::vector<std::string> lines;
  Launcher launcher(Lines(&lines));
  const std::size_t child =
      Spawned(launcher, Shell("a", "trap 'echo got it; exit 0' INT; echo ready; while :; do sleep 0.05; done"));
  ASSERT_TRUE(launcher.WaitUntil([&] { return !lines.empty(); }, kLong, "line").ok());
  kill(getpid(), SIGINT);
  const Status status = launcher.WaitFor({child}, kLong, "end");
  EXPECT_THAT(status.text(), HasSubstr("interrupted by SIGINT"));
  EXPECT_EQ(launcher.received_signal(), SIGINT);
  EXPECT_THAT(lines, ::testing::Contains("0o got it"));
  EXPECT_FALSE(launcher.process(child).running);
}

TEST(Launcher, HangUpQuitAndAClosedOutputEndAllInOrder) {
  for (const int signal : {SIGHUP, SIGQUIT, SIGPIPE}) {
    std::vector<std::string> lines;
    Launcher launcher(Lines(&lines));
    const std::size_t child = Spawned(
        launcher, Shell("a", "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done"));
    ASSERT_TRUE(launcher.WaitUntil([&] { return !lines.empty(); }, kLong, "line").ok());
    raise(signal);
    EXPECT_EQ(launcher.WaitFor({child}, kLong, "end").kind(), StatusKind::kUnavailable);
    EXPECT_EQ(launcher.received_signal(), signal);
    EXPECT_THAT(lines, ::testing::Contains("0o term"));  // the shell may say "Terminated" of its sleep after it
  }
}

TEST(Launcher, ProgramsThatCannotRun) {
  Launcher launcher;
  ProcessSpec spec = Shell("rank 0", "");
  for (const char* program : {"no-such-program-here", "/nonexistent/x", "/etc/passwd", "/tmp", ""}) {
    spec.command = {program};
    const Result<std::size_t> number = launcher.Spawn(spec);
    ASSERT_FALSE(number.ok()) << program;
    EXPECT_EQ(number.status().kind(), StatusKind::kInvalidArgument);
    EXPECT_THAT(number.status().text(), HasSubstr("rank 0"));
  }
  EXPECT_EQ(launcher.size(), 0u);
}

TEST(LocalPorts, TwoInARowAndNotTheSameTwice) {
  const Result<LocalPorts> one = LocalPorts::Reserve();
  const Result<LocalPorts> two = LocalPorts::Reserve();
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->coordinator(), one->master() + 1);
  EXPECT_NE(one->coordinator(), two->coordinator());
}

class LocalJobTest : public ::testing::Test {
 protected:
  LocalJobTest() {
    directory_ = ::testing::TempDir() + "tally_job_XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    // Stands for tally-server: publishes an address, says what it was given.
    std::ofstream(directory_ + "/server") << "#!/bin/sh\n"
                                             "while [ $# -gt 0 ]; do case $1 in\n"
                                             "  --port-file) port=$2;; --index) index=$2;; --set) sets=\"$sets $2\";;\n"
                                             "esac; shift; done\n"
                                             "echo tcp://127.0.0.1:700$index > $port\n"
                                             "echo index $index$sets rank=$RANK\n";
    chmod((directory_ + "/server").c_str(), 0755);
  }
  ~LocalJobTest() override { std::filesystem::remove_all(directory_); }

  LocalJobOptions Options(const std::string& worker) {
    LocalJobOptions options;
    options.workers = 2;
    options.server_program = directory_ + "/server";
    options.worker_command = {"sh", "-c", worker};
    options.environment = {{"PATH", "/usr/bin:/bin"}, {"RANK", "77"}, {"WORLD_SIZE", "99"}};
    options.launcher = Lines(&lines_);
    return options;
  }

  std::string directory_;
  std::vector<std::string> lines_;
};

TEST_F(LocalJobTest, WorkersGetTheirPlaceAndServers) {
  LocalJobOptions options = Options("echo $RANK/$WORLD_SIZE $TALLY_SERVERS_ADDRESSES $TALLY_COMPRESSION_CODEC $EXTRA");
  options.servers = 2;
  options.overrides = {"compression.codec=int8"};
  options.server_overrides = {"link.nic=s{index}", "link.rate=1gbit"};
  options.worker_environment_extra = {{"EXTRA", "nic{rank}"}};
  LocalJob job(options);
  ASSERT_TRUE(job.Start().ok());
  EXPECT_TRUE(job.Wait(kLong).ok());
  const std::string sets = " compression.codec=int8 link.nic=s";
  EXPECT_THAT(lines_, UnorderedElementsAre(
                          "0o index 0" + sets + "0 link.rate=1gbit rank=",
                          "1o index 1" + sets + "1 link.rate=1gbit servers.addresses=tcp://127.0.0.1:7000 rank=",
                          "2o 0/2 tcp://127.0.0.1:7000,tcp://127.0.0.1:7001 int8 nic0",
                          "3o 1/2 tcp://127.0.0.1:7000,tcp://127.0.0.1:7001 int8 nic1"));
}

TEST_F(LocalJobTest, WithoutServersRankZeroCoordinates) {
  LocalJob job(Options("[ \"$TALLY_COORDINATOR_ADDRESS\" = tcp://127.0.0.1:$((MASTER_PORT + 1)) ] || exit 5"));
  ASSERT_TRUE(job.Start().ok());
  EXPECT_TRUE(job.Wait(kLong).ok());
}

TEST_F(LocalJobTest, FaultsOfTheConfigurationComeBeforeAnythingRuns) {
  LocalJobOptions options = Options("echo ran");
  options.overrides = {"compression.codec=int9"};
  LocalJob job(options);
  const Status status = job.Start();
  EXPECT_EQ(status.kind(), StatusKind::kInvalidArgument);
  EXPECT_THAT(status.text(), HasSubstr("--set: compression.codec"));
  EXPECT_TRUE(lines_.empty());
}

TEST_F(LocalJobTest, ServerThatDiesAtStartIsNamed) {
  LocalJobOptions options = Options("echo ran");
  options.servers = 1;
  options.server_program = "/bin/false";
  LocalJob job(options);
  const Status status = job.Start();
  EXPECT_EQ(status.kind(), StatusKind::kPeerLost);
  EXPECT_THAT(status.text(), HasSubstr("server 0"));
}

}  // namespace
}  // namespace tally::cli
