#include "worker/cli/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "common/check.h"
#include "common/transport/sockets.h"

namespace tally::cli {
namespace {

constexpr std::size_t kMaxLine = 64 << 10;
constexpr int kPollMs = 20;  // how late a condition that only `done()` sees (a file) may be noticed
constexpr Nanos kLongest = std::chrono::hours(24 * 365);

std::string Errno(std::string_view what) { return std::string(what) + ": " + std::strerror(errno); }

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

struct Pipe {
  UniqueFd read, write;
};

Result<Pipe> MakePipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Unavailable(Errno("pipe"));
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

bool IsProgram(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

Result<std::string> FindProgram(const ProcessSpec& spec) {
  if (spec.command.empty() || spec.command[0].empty()) return InvalidArgument(spec.label + ": no program given");
  const std::string& name = spec.command[0];
  if (name.find('/') != std::string::npos) {
    if (IsProgram(name)) return name;
    return InvalidArgument(spec.label + ": " + name + " is not an executable file");
  }
  const auto path = spec.environment.find("PATH");
  std::string_view rest = "/usr/local/bin:/usr/bin:/bin";
  if (path != spec.environment.end()) rest = path->second;
  while (!rest.empty()) {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    const std::string candidate = std::string(rest.substr(0, colon)) + "/" + name;
    if (IsProgram(candidate)) return candidate;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  return InvalidArgument(spec.label + ": no program '" + name + "' in PATH");
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// One of a child's two output streams, cut into lines.
struct Stream {
  UniqueFd fd;
  std::string partial;
};

struct Child {
  ProcessState state;
  TimePoint started;
  UniqueFd pidfd;
  std::array<Stream, 2> streams;
};

}  // namespace

std::string ProcessState::Describe() const {
  const std::string who = label + " (pid " + std::to_string(pid) + ")";
  if (running) return who + " is running";
  const char* by_us = ended_by_us ? ", ended with the job" : "";
  if (signal != 0) return who + " was killed by " + SignalName(signal) + by_us;
  return who + " exited with code " + std::to_string(exit_code) + by_us;
}

struct Launcher::Impl {
  LauncherOptions options;
  std::vector<std::unique_ptr<Child>> children;
  int first_failure = -1;
  int received_signal = 0;
  UniqueFd signal_fd;
  sigset_t old_mask{};

  TimePoint Now() const { return std::chrono::steady_clock::now(); }

  bool AnyRunning() const {
    return std::any_of(children.begin(), children.end(), [](const auto& c) { return c->state.running; });
  }

  void TakeSignals() {
    sigset_t ours;
    sigemptyset(&ours);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGPIPE}) sigaddset(&ours, signal);
    struct sigaction hang_up {};
    sigaction(SIGHUP, nullptr, &hang_up);
    if (hang_up.sa_handler != SIG_IGN) sigaddset(&ours, SIGHUP);  // ignored: we run under nohup
    pthread_sigmask(SIG_BLOCK, &ours, &old_mask);
    signal_fd = UniqueFd(signalfd(-1, &ours, SFD_NONBLOCK | SFD_CLOEXEC));
  }

  void GiveSignalsBack() {
    if (signal_fd.get() < 0) return;
    pthread_sigmask(SIG_SETMASK, &old_mask, nullptr);
  }

  // In the child, between fork and exec: async-signal-safe calls only. Returns only if it failed.
  void Become(const std::string& program, char* const* argv, char* const* envp, const std::string& directory,
              pid_t parent, int out, int err) const {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    for (int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0) return;
    if (out >= 0 && dup2(out, STDOUT_FILENO) < 0) return;
    if (err >= 0 && dup2(err, STDERR_FILENO) < 0) return;
    if (!directory.empty() && chdir(directory.c_str()) != 0) return;
    execve(program.c_str(), argv, envp);
  }

  Result<std::size_t> Spawn(const ProcessSpec& spec) {
    TALLY_ASSIGN_OR_RETURN(const std::string program, FindProgram(spec));
    std::vector<std::string> arguments = spec.command;
    std::vector<std::string> variables;
    for (const auto& [name, value] : spec.environment) variables.push_back(name + "=" + value);
    const std::vector<char*> argv = Pointers(arguments);
    const std::vector<char*> envp = Pointers(variables);

    auto child = std::make_unique<Child>();
    std::array<Pipe, 2> outputs;
    if (options.on_line) {
      for (Pipe& pipe : outputs) {
        TALLY_ASSIGN_OR_RETURN(pipe, MakePipe());
        fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
      }
    }
    TALLY_ASSIGN_OR_RETURN(Pipe failure, MakePipe());

    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return Unavailable(Errno(spec.label + ": fork"));
    if (pid == 0) {
      Become(program, argv.data(), envp.data(), spec.directory, parent, outputs[0].write.get(),
             outputs[1].write.get());
      const int error = errno;
      [[maybe_unused]] const ssize_t n = write(failure.write.get(), &error, sizeof error);
      _exit(127);
    }
    setpgid(pid, pid);  // the child does so too: whoever comes first; signals must never miss the group
    failure.write = UniqueFd();
    int error = 0;
    ssize_t got = 0;
    do got = read(failure.read.get(), &error, sizeof error);
    while (got < 0 && errno == EINTR);
    if (got == static_cast<ssize_t>(sizeof error)) {
      waitpid(pid, nullptr, 0);
      return InvalidArgument(spec.label + ": cannot run " + program + ": " + std::strerror(error));
    }
    child->state.label = spec.label;
    child->state.pid = pid;
    child->started = Now();
    child->pidfd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    for (std::size_t i = 0; i < 2; ++i) child->streams[i].fd = std::move(outputs[i].read);
    children.push_back(std::move(child));
    return children.size() - 1;
  }

  void Emit(std::size_t number, std::size_t stream, std::string_view bytes) {
    std::string& partial = children[number]->streams[stream].partial;
    partial += bytes;
    std::size_t begin = 0;
    while (begin < partial.size()) {
      std::size_t end = partial.find('\n', begin);
      const bool whole = end != std::string::npos;
      if (!whole && partial.size() - begin < kMaxLine) break;
      end = std::min({end, begin + kMaxLine, partial.size()});
      options.on_line(number, stream == 1, std::string_view(partial).substr(begin, end - begin));
      begin = end < partial.size() && partial[end] == '\n' ? end + 1 : end;
    }
    partial.erase(0, begin);
  }

  // Reads what is there. At the end of the stream (or of the process, `last`) the unfinished line goes out too.
  void ReadStream(std::size_t number, std::size_t stream, bool last) {
    Stream& from = children[number]->streams[stream];
    std::array<char, 16384> buffer;
    while (from.fd.get() >= 0) {
      const ssize_t n = read(from.fd.get(), buffer.data(), buffer.size());
      if (n > 0) {
        Emit(number, stream, {buffer.data(), static_cast<std::size_t>(n)});
        continue;
      }
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN && !last) return;
      from.fd = UniqueFd();
      if (!from.partial.empty()) Emit(number, stream, "\n");
    }
  }

  // Reaps the child if it has ended. Returns true if it failed.
  bool Reap(std::size_t number) {
    Child& child = *children[number];
    if (!child.state.running) return false;
    // Seen, but not reaped: the pid, and so the group's number, cannot be taken by others while its rest is killed.
    siginfo_t info{};
    const int seen = waitid(P_PID, static_cast<id_t>(child.state.pid), &info, WEXITED | WNOHANG | WNOWAIT);
    if (seen != 0 || info.si_pid == 0) return false;
    kill(-child.state.pid, SIGKILL);
    for (std::size_t stream = 0; stream < 2; ++stream) ReadStream(number, stream, true);
    int status = 0;
    rusage usage{};
    wait4(child.state.pid, &status, 0, &usage);
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    child.state.running = false;
    child.state.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    child.state.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    child.state.ran_for = Now() - child.started;
    child.state.cpu_s = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    child.state.peak_rss_kb = static_cast<std::uint64_t>(usage.ru_maxrss);
    child.pidfd = UniqueFd();
    return child.state.failed();
  }

  void ReapAll() {
    const int before = first_failure;
    for (std::size_t i = 0; i < children.size(); ++i) {
      if (!Reap(i) || before >= 0) continue;
      // Of several that are found at once, one that only lost its peer is not the first cause.
      const bool better = first_failure < 0 ||
                          (children[static_cast<std::size_t>(first_failure)]->state.exit_code ==
                               ExitCode(StatusKind::kPeerLost) &&
                           children[i]->state.exit_code != ExitCode(StatusKind::kPeerLost));
      if (better) first_failure = static_cast<int>(i);
    }
  }

  // Waits at most `timeout` (and kPollMs) for output, ends and signals, and handles them.
  void Pump(Nanos timeout) {
    std::vector<pollfd> polled{{signal_fd.get(), POLLIN, 0}};
    std::vector<std::pair<std::size_t, std::size_t>> sources;  // child, stream of polled[i + 1]; stream 2 = its end
    for (std::size_t i = 0; i < children.size(); ++i) {
      const Child& child = *children[i];
      const std::array<int, 3> fds = {child.streams[0].fd.get(), child.streams[1].fd.get(), child.pidfd.get()};
      for (std::size_t s = 0; s < fds.size(); ++s) {
        if (fds[s] < 0) continue;
        polled.push_back({fds[s], POLLIN, 0});
        sources.emplace_back(i, s);
      }
    }
    const auto wait_ms = std::chrono::ceil<std::chrono::milliseconds>(std::max(timeout, Nanos::zero())).count();
    poll(polled.data(), polled.size(), static_cast<int>(std::min<std::int64_t>(wait_ms, kPollMs)));
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const auto [number, stream] = sources[i];
      if (polled[i + 1].revents != 0 && stream < 2) ReadStream(number, stream, false);
    }
    ReapAll();
    signalfd_siginfo info{};
    while (signal_fd.get() >= 0 && read(signal_fd.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const bool again = received_signal != 0;
      const int signal = static_cast<int>(info.ssi_signo);
      if (again && signal == SIGPIPE) continue;  // each further line that nobody reads
      received_signal = signal;
      // Only what people and schedulers send means the same to a child: a server reloads at SIGHUP, SIGQUIT dumps core.
      SignalAll(again ? SIGKILL : signal == SIGINT ? SIGINT : SIGTERM);
    }
  }

  void Signal(std::size_t number, int signal) {
    ProcessState& state = children[number]->state;
    if (!state.running) return;
    if (signal == SIGTERM || signal == SIGKILL || signal == SIGINT) state.ended_by_us = true;
    kill(-state.pid, signal);
  }

  void SignalAll(int signal) {
    for (std::size_t i = 0; i < children.size(); ++i) Signal(i, signal);
  }

  void PumpWhileRunning(Nanos at_most) {
    const TimePoint deadline = Now() + at_most;
    while (AnyRunning() && Now() < deadline) Pump(deadline - Now());
  }

  void EndAll(Nanos grace) {
    ReapAll();  // what has ended by itself keeps its own verdict
    if (received_signal == 0) SignalAll(SIGTERM);  // else they have that signal already
    PumpWhileRunning(grace);
    SignalAll(SIGKILL);
    while (AnyRunning()) Pump(std::chrono::milliseconds(kPollMs));
  }

  Status WaitUntil(const std::function<bool()>& done, Nanos timeout, std::string_view what) {
    const TimePoint deadline = Now() + std::min(timeout, kLongest);
    for (;;) {
      if (received_signal != 0) return Unavailable("interrupted by " + SignalName(received_signal));
      if (first_failure >= 0) return PeerLost(children[static_cast<std::size_t>(first_failure)]->state.Describe());
      if (done()) return Status::Ok();
      const TimePoint now = Now();
      if (now >= deadline) {
        const auto seconds = std::chrono::duration<double>(timeout).count();
        std::string text = std::to_string(seconds);
        text.erase(text.find('.') + 2);
        return Timeout("no " + std::string(what) + " within " + text + " s");
      }
      Pump(deadline - now);
    }
  }
};

Launcher::Launcher(LauncherOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  if (impl_->options.forward_signals) impl_->TakeSignals();
}

Launcher::~Launcher() {
  EndAll();
  impl_->GiveSignalsBack();
}

Result<std::size_t> Launcher::Spawn(const ProcessSpec& spec) { return impl_->Spawn(spec); }

Status Launcher::WaitUntil(const std::function<bool()>& done, Nanos timeout, std::string_view what) {
  return impl_->WaitUntil(done, timeout, what);
}

Status Launcher::WaitFor(const std::vector<std::size_t>& numbers, Nanos timeout, std::string_view what) {
  const auto all_ended = [&] {
    return std::none_of(numbers.begin(), numbers.end(), [&](std::size_t n) { return process(n).running; });
  };
  Status status = impl_->WaitUntil(all_ended, timeout, what);
  if (status.ok()) return status;
  // The peers of a process that failed notice it and say so; they get the first half of the grace for that.
  Nanos grace = impl_->options.grace;
  if (status.kind() == StatusKind::kPeerLost) {
    impl_->PumpWhileRunning(grace / 2);
    grace -= grace / 2;
  }
  impl_->EndAll(grace);
  return status;
}

void Launcher::WaitAllEnded(Nanos at_most) { impl_->PumpWhileRunning(at_most); }

void Launcher::Follow(std::size_t number) { impl_->children[number]->state.follows = true; }
void Launcher::SignalAll(int signal) { impl_->SignalAll(signal); }
void Launcher::Signal(std::size_t number, int signal) { impl_->Signal(number, signal); }
void Launcher::EndAll() { impl_->EndAll(impl_->options.grace); }

const ProcessState& Launcher::process(std::size_t number) const {
  TALLY_CHECK(number < impl_->children.size(), "no such process");
  return impl_->children[number]->state;
}

std::size_t Launcher::size() const { return impl_->children.size(); }

std::vector<ProcessState> Launcher::processes() const {
  std::vector<ProcessState> states;
  for (const auto& child : impl_->children) states.push_back(child->state);
  return states;
}

int Launcher::first_failure() const { return impl_->first_failure; }
int Launcher::received_signal() const { return impl_->received_signal; }

}  // namespace tally::cli
