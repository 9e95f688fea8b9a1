// Launcher: starts processes on this machine, reads their output, waits for them and leaves nothing behind.
// Used by run, demo, compare and bench (local_job.h builds a whole job of servers and workers on it).
// Thread: one, from construction to destruction (a child dies with the thread that started it).
// Each child leads its own process group, is killed by the kernel if this thread dies, and has /dev/null as stdin.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/status.h"

namespace tally::cli {

struct ProcessSpec {
  std::string label;                               // "rank 2", "server 0"; used in messages
  std::vector<std::string> command;                // program (looked up in the PATH of `environment`) and arguments
  std::map<std::string, std::string> environment;  // the whole of it
  std::string directory;                           // empty = this process's
};

struct ProcessState {
  std::string label;
  pid_t pid = 0;
  bool running = true;
  bool ended_by_us = false;  // it was still running when the launcher began to end it
  bool follows = false;      // its exit code, unless 2, tells how the others fared (Launcher::Follow)
  int exit_code = 0;         // of a process that exited
  int signal = 0;            // that killed it, 0 = it exited by itself
  Nanos ran_for{};
  double cpu_s = 0;              // user + system, of it and its waited-for children; set at its end
  std::uint64_t peak_rss_kb = 0; // set at its end

  bool failed() const {
    const bool own = exit_code != 0 && (!follows || exit_code == ExitCode(StatusKind::kInvalidArgument));
    return !running && !ended_by_us && (own || signal != 0);
  }
  // As shells have it: exit code, or 128 + signal.
  int ShellCode() const { return signal != 0 ? 128 + signal : exit_code; }
  // "rank 2 (pid 4711) exited with code 3", "… was killed by SIGSEGV", "… is running".
  std::string Describe() const;
};

struct LauncherOptions {
  // Between SIGTERM and SIGKILL when processes are ended.
  Nanos grace = std::chrono::seconds(5);
  // Called for each line (no newline; at most 64 KiB, longer ones come in parts) that process number `process` wrote to
  // stdout or stderr. Empty: children write to our own stdout and stderr.
  std::function<void(std::size_t process, bool is_stderr, std::string_view line)> on_line;
  // Take SIGINT, SIGTERM, SIGHUP (unless ignored), SIGQUIT and SIGPIPE (our output's reader is gone) while the launcher
  // lives: every child gets SIGINT for SIGINT, SIGTERM for the others, and the wait ends.
  bool forward_signals = true;
};

class Launcher {
 public:
  explicit Launcher(LauncherOptions options = {});
  ~Launcher();  // ends what is still running: SIGTERM, grace, SIGKILL, reaped
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Starts a process and returns its number (0, 1, …). Errors: kInvalidArgument (no such program, not executable),
  // kUnavailable (fork, pipe; errno).
  Result<std::size_t> Spawn(const ProcessSpec& spec);

  // From now on an exit code of that process is no failure: it ends with the others and repeats what they came to. A
  // signal that kills it is one.
  void Follow(std::size_t number);

  // Delivers output and notices ends until `done()`. Errors: kTimeout ("what" in the text); the failure of the first
  // process that failed (kPeerLost), or the signal we got (kUnavailable); nothing is ended by this call.
  Status WaitUntil(const std::function<bool()>& done, Nanos timeout, std::string_view what);

  // Waits until every process of `numbers` has ended well. On the first failure of any process, on a signal or at the
  // time-out it ends all processes and returns that error as WaitUntil has it.
  Status WaitFor(const std::vector<std::size_t>& numbers, Nanos timeout, std::string_view what);

  // Delivers output and notices ends until no process runs or `at_most` has passed; failures do not end it.
  void WaitAllEnded(Nanos at_most);

  // Sends `signal` to the process groups of all running processes (one process: `number`).
  void SignalAll(int signal);
  void Signal(std::size_t number, int signal);
  // SIGTERM to all, `grace`, SIGKILL to their groups; returns when all are reaped. A second SIGINT shortens the grace.
  void EndAll();

  const ProcessState& process(std::size_t number) const;
  std::size_t size() const;
  std::vector<ProcessState> processes() const;
  // The number of the first process that failed, in order of time; -1 if none.
  int first_failure() const;
  // The signal that ended the wait; 0 if none.
  int received_signal() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tally::cli
