// How fast is one link? GB/s and CPU seconds per GB (of both ends) over loopback between two processes, for tcp and
// zmq, against a plain loop of sendmsg and recvmsg with the same framing, interleaved. Data is not zero and walks a
// buffer larger than the caches. Median (minimum maximum) over the rounds.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "common/allocator.h"
#include "common/transport/link.h"

namespace tally {
namespace {

constexpr std::size_t kWalkBytes = std::size_t{128} << 20;
constexpr std::size_t kWindowBytes = std::size_t{8} << 20;  // the default credit
constexpr std::size_t kPlainHeadBytes = 256;                // about that of a frame

struct Plan {
  std::size_t frame_bytes = 0;
  std::uint64_t warm_frames = 0;
  std::uint64_t frames = 0;
  std::uint32_t socket_buffer_bytes = 0;
};

struct Outcome {
  double seconds = 0;
  double cpu_seconds = 0;
};

void Require(bool condition, const char* what) {
  if (condition) return;
  std::perror(what);
  std::_Exit(1);
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double Seconds() { return 1e-9 * static_cast<double>(SteadyClock().Now().time_since_epoch().count()); }

// The buffer that the sender walks through.
class Walk {
 public:
  explicit Walk(std::size_t frame_bytes) : frame_bytes_(frame_bytes), data_(kWalkBytes / 8) {
    std::uint64_t state = 1;
    for (std::uint64_t& word : data_) word = (state = state * 6364136223846793005U + 1442695040888963407U) | 1;
  }
  std::span<const std::byte> Frame(std::uint64_t index) const {
    return std::as_bytes(std::span(data_)).subspan(index % (kWalkBytes / frame_bytes_) * frame_bytes_, frame_bytes_);
  }

 private:
  const std::size_t frame_bytes_;
  std::vector<std::uint64_t> data_;
};

// ---- a plain loop ----

void TransferAll(int fd, iovec* pieces, std::size_t count, ssize_t (*call)(int, msghdr*)) {
  while (count > 0) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    const ssize_t moved = call(fd, &message);
    Require(moved > 0, "plain loop");
    auto left = static_cast<std::size_t>(moved);
    for (; count > 0 && left >= pieces->iov_len; ++pieces, --count) left -= pieces->iov_len;
    if (count > 0) *pieces = {static_cast<char*>(pieces->iov_base) + left, pieces->iov_len - left};
  }
}

void PlainSend(const Plan& plan, std::uint16_t port, Outcome* outcome) {
  const Walk walk(plan.frame_bytes);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Require(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0, "connect");
  std::array<std::byte, kPlainHeadBytes> head{};
  char ack = 0;
  const auto send = [&](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t i = first; i < first + count; ++i) {
      const auto payload = walk.Frame(i);
      iovec pieces[2] = {{head.data(), head.size()}, {const_cast<std::byte*>(payload.data()), payload.size()}};
      TransferAll(fd, pieces, 2, [](int to_fd, msghdr* m) { return sendmsg(to_fd, m, MSG_NOSIGNAL); });
    }
    Require(recv(fd, &ack, 1, 0) == 1, "acknowledgement");
  };
  send(0, plan.warm_frames);
  outcome->cpu_seconds = -CpuSeconds();
  outcome->seconds = -Seconds();
  send(plan.warm_frames, plan.frames);
  outcome->seconds += Seconds();
  outcome->cpu_seconds += CpuSeconds();
  close(fd);
}

void PlainReceive(const Plan& plan, int port_pipe, Outcome* outcome) {
  const int listening = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  Require(bind(listening, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0 && listen(listening, 1) == 0 &&
              getsockname(listening, reinterpret_cast<sockaddr*>(&at), &bytes) == 0,
          "listen");
  const std::uint16_t port = ntohs(at.sin_port);
  Require(write(port_pipe, &port, sizeof port) == sizeof port, "pipe");
  const int fd = accept(listening, nullptr, nullptr);
  std::array<std::byte, kPlainHeadBytes> head{};
  std::vector<std::byte> payload(plan.frame_bytes);
  const auto receive = [&](std::uint64_t count) {
    const auto call = [](int from, msghdr* m) { return recvmsg(from, m, 0); };
    iovec first{head.data(), head.size()};
    TransferAll(fd, &first, 1, call);
    for (std::uint64_t i = 0; i < count; ++i) {
      iovec pieces[2] = {{payload.data(), payload.size()}, {head.data(), head.size()}};
      TransferAll(fd, pieces, i + 1 < count ? 2 : 1, call);  // with the next frame's head
    }
    Require(send(fd, "k", 1, MSG_NOSIGNAL) == 1, "acknowledgement");
  };
  receive(plan.warm_frames);
  outcome->cpu_seconds = -CpuSeconds();
  receive(plan.frames);
  outcome->cpu_seconds += CpuSeconds();
}

// ---- links ----

LinkOptions Options(const Plan& plan, bool crc) {
  LinkOptions options;
  options.payload_crc = crc;
  options.socket_buffer_bytes = plan.socket_buffer_bytes;
  return options;
}

std::unique_ptr<Transport> Make(const std::string& name, EventLoop* loop, BufferPool* pool,
                                const LinkOptions& options) {
  auto made = MakeTransport(name, loop, pool, options);
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::_Exit(1);
  }
  return std::move(made).value();
}

// Keeps a window of frames queued; every acknowledgement ends a phase.
class Sender final : public LinkHandler {
 public:
  Sender(const Plan& plan, EventLoop* loop, Outcome* outcome)
      : plan_(plan), walk_(plan.frame_bytes), loop_(loop), outcome_(outcome) {}

  void Start(std::unique_ptr<Link> link) {
    link_ = std::move(link);
    link_->handler = this;
    header_.slabs = {0};
    end_ = plan_.warm_frames;
    Fill();
  }
  void OnFrame(Link&, Frame&) override {
    if (end_ == plan_.warm_frames) {
      outcome_->cpu_seconds = -CpuSeconds();
      outcome_->seconds = -Seconds();
      end_ += plan_.frames;
      Fill();
      return;
    }
    outcome_->seconds += Seconds();
    outcome_->cpu_seconds += CpuSeconds();
    loop_->Stop();
  }
  void OnClosed(Link&, const Status& why) override {
    std::fprintf(stderr, "%s\n", why.ToString().c_str());
    std::_Exit(1);
  }

 private:
  void Fill() {
    while (next_ < end_ && (queued_ == 0 || (queued_ + 1) * plan_.frame_bytes <= kWindowBytes)) {
      ++queued_;
      (void)link_->Send(header_, walk_.Frame(next_++), {[](void* self, std::uint64_t) {
                                                          auto* const sender = static_cast<Sender*>(self);
                                                          --sender->queued_;
                                                          sender->Fill();
                                                        },
                                                        this, 0});
    }
  }

  const Plan plan_;
  const Walk walk_;
  EventLoop* const loop_;
  Outcome* const outcome_;
  std::unique_ptr<Link> link_;
  FrameHeader header_;
  std::uint64_t next_ = 0, end_ = 0, queued_ = 0;
};

void LinkSend(const std::string& name, bool crc, const Plan& plan, const std::string& endpoint, Outcome* outcome) {
  EventLoop loop;
  BufferPool pool;
  Sender sender(plan, &loop, outcome);
  const auto transport = Make(name, &loop, &pool, Options(plan, crc));
  transport->Connect(endpoint, {}, [&](Result<std::unique_ptr<Link>> link) { sender.Start(std::move(link).value()); });
  loop.Run();
}

class Receiver final : public LinkHandler, public Acceptor {
 public:
  Receiver(const Plan& plan, EventLoop* loop, Outcome* outcome) : plan_(plan), loop_(loop), outcome_(outcome) {}

  Status OnHello(const LinkIdentity&) override { return Status::Ok(); }
  void OnAccepted(std::unique_ptr<Link> link) override {
    link_ = std::move(link);
    link_->handler = this;
  }
  void OnFrame(Link& link, Frame& frame) override {
    Require(frame.payload.size() == plan_.frame_bytes && (frame.payload[0] & std::byte{1}) != std::byte{0}, "frame");
    ++frames_;
    if (frames_ == plan_.warm_frames) {
      outcome_->cpu_seconds = -CpuSeconds();
      (void)link.Send({}, {}, {});
    } else if (frames_ == plan_.warm_frames + plan_.frames) {
      outcome_->cpu_seconds += CpuSeconds();
      (void)link.Send({}, {}, {});
    }
  }
  void OnClosed(Link&, const Status&) override { loop_->Stop(); }

 private:
  const Plan plan_;
  EventLoop* const loop_;
  Outcome* const outcome_;
  std::unique_ptr<Link> link_;
  std::uint64_t frames_ = 0;
};

void LinkReceive(const std::string& name, bool crc, const Plan& plan, int endpoint_pipe, Outcome* outcome) {
  EventLoop loop;
  BufferPool pool;
  Receiver receiver(plan, &loop, outcome);
  const auto transport = Make(name, &loop, &pool, Options(plan, crc));
  const std::string endpoint = transport->Listen(name + "://127.0.0.1:0", {}, &receiver).value();
  Require(write(endpoint_pipe, endpoint.data(), endpoint.size()) == static_cast<ssize_t>(endpoint.size()), "pipe");
  loop.Run();
}

// ---- one run: two processes ----

template <typename Body>
pid_t Fork(int result_fd, const Body& body) {
  const pid_t child = fork();
  Require(child >= 0, "fork");
  if (child > 0) return child;
  Outcome outcome;
  body(&outcome);
  Require(write(result_fd, &outcome, sizeof outcome) == sizeof outcome, "pipe");
  std::_Exit(0);
}

// `link`: "plain", or a transport's name, with "+crc" for checked payloads.
Outcome Run(const std::string& link, const Plan& plan) {
  const bool plain = link == "plain";
  const bool crc = link.ends_with("+crc");
  const std::string transport = link.substr(0, link.find('+'));
  int address[2];
  int results[2];
  Require(pipe(address) == 0 && pipe(results) == 0, "pipe");
  const pid_t receiver = Fork(results[1], [&](Outcome* outcome) {
    if (plain) return PlainReceive(plan, address[1], outcome);
    LinkReceive(transport, crc, plan, address[1], outcome);
  });
  char text[128] = {};
  const ssize_t bytes = read(address[0], text, sizeof text - 1);
  Require(bytes > 0, "address of the receiver");
  const pid_t sender = Fork(results[1], [&](Outcome* outcome) {
    if (!plain) return LinkSend(transport, crc, plan, text, outcome);
    std::uint16_t port = 0;
    std::memcpy(&port, text, sizeof port);
    PlainSend(plan, port, outcome);
  });
  Outcome sum;
  for (const pid_t child : {sender, receiver}) {
    int state = 0;
    Require(waitpid(child, &state, 0) == child && state == 0, "a process of the benchmark failed");
    Outcome part;
    Require(read(results[0], &part, sizeof part) == sizeof part, "pipe");
    sum.seconds += part.seconds;
    sum.cpu_seconds += part.cpu_seconds;
  }
  for (const int fd : {address[0], address[1], results[0], results[1]}) close(fd);
  return sum;
}

int Main(int argc, char** argv) {
  std::vector<std::size_t> sizes = {64, 256, 1024, 4096};
  std::uint64_t megabytes = 1024;
  int rounds = 7;
  std::uint32_t socket_buffer_bytes = 0;
  std::vector<std::string> links = {"plain", "tcp", "tcp+crc", "zmq", "zmq+crc"};
  CLI::App app("Throughput of one link over loopback");
  app.add_option("--kib", sizes, "frame sizes in KiB")->delimiter(',');
  app.add_option("--mib", megabytes, "MiB sent per sample")->capture_default_str();
  app.add_option("--rounds", rounds, "samples per variant")->capture_default_str();
  app.add_option("--socket-buffer", socket_buffer_bytes, "bytes, 0 = the system's choice")->capture_default_str();
  app.add_option("--links", links, "which to compare; the first is the measure")->delimiter(',')->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  std::printf("%8s %-8s %22s %14s %9s\n", "frame", "link", "GB/s median (min max)", "CPU s/GB", "of first");
  for (const std::size_t kib : sizes) {
    Plan plan;
    plan.frame_bytes = kib << 10;
    plan.warm_frames = std::max<std::uint64_t>(16, (std::uint64_t{128} << 20) / plan.frame_bytes);
    plan.frames = (megabytes << 20) / plan.frame_bytes;
    plan.socket_buffer_bytes = socket_buffer_bytes;
    std::vector<std::vector<double>> speed(links.size()), cpu(links.size());
    const double gigabytes = 1e-9 * static_cast<double>(plan.frames * plan.frame_bytes);
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t v = 0; v < links.size(); ++v) {
        const Outcome outcome = Run(links[v], plan);
        speed[v].push_back(gigabytes / outcome.seconds);
        cpu[v].push_back(outcome.cpu_seconds / gigabytes);
      }
    }
    double first = 0;
    for (std::size_t v = 0; v < links.size(); ++v) {
      std::ranges::sort(speed[v]);
      std::ranges::sort(cpu[v]);
      const double median = speed[v][speed[v].size() / 2];
      if (v == 0) first = median;
      std::printf("%5zu KiB %-8s %8.2f (%.2f %.2f) %14.3f %8.0f%%\n", kib, links[v].c_str(), median,
                  speed[v].front(), speed[v].back(), cpu[v][cpu[v].size() / 2], 100 * median / first);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace tally

int main(int argc, char** argv) {
  tally::KeepLargeBlocks();
  return tally::Main(argc, argv);
}
