#include "worker/cli/link_probe.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "common/transport/link.h"
#include "common/transport/unix_sockets.h"

namespace tally::cli {
namespace {

constexpr Nanos kSilence = std::chrono::seconds(10);
constexpr std::size_t kSmall = 64, kLarge = 256 << 10;
constexpr std::uint64_t kWindow = 16;  // large frames on the way
constexpr Nanos kPingTime = std::chrono::milliseconds(200);
constexpr std::size_t kLeastPings = 20;

// What a probe asks for, in FrameHeader::step.
enum Ask : std::uint64_t { kWhere = 1, kEcho = 2, kSink = 3, kWhereInMemory = 4 };

LinkIdentity Identity(Role role) {
  LinkIdentity identity;
  identity.job_hash = 0x50524F4245;  // no job's but by chance
  identity.role = role;
  identity.incarnation = 1;
  return identity;
}

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Result<std::unique_ptr<Transport>> Make(const char* name, EventLoop* loop, BufferPool* pool) {
  LinkOptions options;
  options.payload_crc = false;
  return MakeTransport(name, loop, pool, options);
}

class Responder final : public ProbeResponder, public Acceptor, public LinkHandler {
 public:
  Status Begin(const std::string& host, std::uint16_t port) {
    TALLY_ASSIGN_OR_RETURN(tcp_, Make("tcp", &loop_, &pool_));
    TALLY_ASSIGN_OR_RETURN(zmq_, Make("zmq", &loop_, &pool_));
    TALLY_ASSIGN_OR_RETURN(endpoint_, tcp_->Listen("tcp://" + host + ":" + std::to_string(port), Identity(Role::kServer), this));
    TALLY_ASSIGN_OR_RETURN(zmq_endpoint_, zmq_->Listen("zmq://" + host + ":0", Identity(Role::kServer), this));
    TALLY_ASSIGN_OR_RETURN(shm_, Make("shm", &loop_, &pool_));
    TALLY_ASSIGN_OR_RETURN(shm_endpoint_, shm_->Listen(FreshShmEndpoint(), Identity(Role::kServer), this));
    return Status::Ok();
  }
  ~Responder() override { links_.clear(); }

  std::string endpoint() const override { return endpoint_; }

  Status Serve(Nanos limit) override {
    const EventLoop::TimerId timer = loop_.After(limit, [this] { loop_.Stop(); });
    loop_.Run();
    loop_.Cancel(timer);
    return measured_ || stopped_ ? Status::Ok() : Timeout("nobody measured within the time that --listen waits");
  }

  void ServeAll(Nanos limit) override {
    serve_all_ = true;
    (void)Serve(limit);
  }

  void Stop() override {
    stopped_ = true;
    loop_.Stop();
  }

  Status OnHello(const LinkIdentity&) override {
    return links_.size() < kMaxLinks ? Status::Ok() : Unavailable("too many probes at once");
  }
  void OnAccepted(std::unique_ptr<Link> link) override {
    link->handler = this;
    links_.push_back(std::move(link));
  }
  void OnFrame(Link& link, Frame& frame) override {
    measured_ = true;
    FrameHeader answer;
    answer.kind = FrameKind::kReply;
    answer.step = frame.header.step;
    if (frame.header.step.value == kEcho) {
      const std::span<const std::byte> payload = frame.payload;
      (void)link.Send(answer, payload, std::move(frame.hold).IntoRelease());
    } else if (frame.header.step.value == kWhere || frame.header.step.value == kWhereInMemory) {
      const std::string& where = frame.header.step.value == kWhere ? zmq_endpoint_ : shm_endpoint_;
      (void)link.Send(answer, std::as_bytes(std::span(where)), {});
    } else {
      (void)link.Send(answer, {}, {});
    }
  }
  void OnClosed(Link& link, const Status&) override {
    std::erase_if(links_, [&](const auto& held) { return held.get() == &link; });
    if (links_.empty() && measured_ && !serve_all_) loop_.Stop();
  }

 private:
  static constexpr std::size_t kMaxLinks = 16;
  EventLoop loop_;
  BufferPool pool_;
  std::unique_ptr<Transport> tcp_, zmq_, shm_;
  std::vector<std::unique_ptr<Link>> links_;
  std::string endpoint_, zmq_endpoint_, shm_endpoint_;
  bool measured_ = false, serve_all_ = false;
  std::atomic<bool> stopped_ = false;
};

// The measuring side of one link.
class Prober final : public LinkHandler {
 public:
  explicit Prober(const char* transport) : name_(transport) {}
  ~Prober() override { link_.reset(); }

  Status Connect(const std::string& endpoint) {
    TALLY_ASSIGN_OR_RETURN(transport_, Make(name_, &loop_, &pool_));
    Status status = Timeout("no link to " + endpoint);
    transport_->Connect(endpoint, Identity(Role::kWorker), [&](Result<std::unique_ptr<Link>> made) {
      status = made.status();
      if (made.ok()) {
        link_ = std::move(made).value();
        link_->handler = this;
      }
      loop_.Stop();
    });
    TALLY_RETURN_IF_ERROR(RunLoop());
    return status;
  }

  // The text that the responder answers to `ask`.
  Result<std::string> Where(Ask ask) {
    std::string text;
    on_answer_ = [&](Frame& frame) {
      text.assign(reinterpret_cast<const char*>(frame.payload.data()), frame.payload.size());
      loop_.Stop();
    };
    TALLY_RETURN_IF_ERROR(Send(ask, {}));
    TALLY_RETURN_IF_ERROR(RunLoop());
    return text;
  }

  // Median of half the time there and back; and CPU time of this process for a frame.
  Result<double> Alpha(double* cpu_s) {
    std::vector<double> halves;
    const double cpu_before = ProcessCpuSeconds();
    const std::vector<std::byte> small(kSmall);
    const TimePoint begin = loop_.Now();
    TimePoint sent = begin;
    on_answer_ = [&](Frame&) {
      const TimePoint now = loop_.Now();
      halves.push_back(std::chrono::duration<double>(now - sent).count() / 2);
      if (now - begin >= kPingTime && halves.size() >= kLeastPings) return loop_.Stop();
      sent = now;
      Note(Send(kEcho, small));
    };
    TALLY_RETURN_IF_ERROR(Send(kEcho, small));
    TALLY_RETURN_IF_ERROR(RunLoop());
    *cpu_s = (ProcessCpuSeconds() - cpu_before) / static_cast<double>(2 * halves.size());
    const auto middle = halves.begin() + static_cast<std::ptrdiff_t>(halves.size() / 2);
    std::nth_element(halves.begin(), middle, halves.end());
    return *middle;
  }

  // Payload bytes per second while a window of large frames is on the way; kEcho: in each direction. And CPU time of
  // this process for one of them and its answer.
  Result<double> Rate(Ask ask, Nanos time, double* cpu_s) {
    const double cpu_before = ProcessCpuSeconds();
    const std::vector<std::byte> large(kLarge, std::byte{1});
    std::uint64_t answered = 0, on_the_way = 0, counted = 0;
    std::optional<TimePoint> counting;
    TimePoint begin = loop_.Now(), last = begin;
    on_answer_ = [&](Frame&) {
      last = loop_.Now();
      --on_the_way;
      ++answered;
      if (counting.has_value()) ++counted;
      // What the sockets take at once is on its way before anything is counted.
      if (!counting.has_value() && answered >= kWindow && last - begin >= time / 10) counting = last;
      const bool done = counting.has_value() && last - *counting >= time && counted >= kWindow;
      if (done && on_the_way == 0) return loop_.Stop();
      if (done) return;
      Note(Send(ask, large));
      ++on_the_way;
    };
    const auto finish = [&]() -> Status {
      for (; on_the_way < kWindow; ++on_the_way) TALLY_RETURN_IF_ERROR(Send(ask, large));
      return RunLoop();
    };
    const Status status = finish();
    on_answer_ = nullptr;
    TALLY_RETURN_IF_ERROR(status);
    *cpu_s = (ProcessCpuSeconds() - cpu_before) / static_cast<double>(answered);
    return static_cast<double>(counted * kLarge) / std::chrono::duration<double>(last - *counting).count();
  }

  void OnFrame(Link&, Frame& frame) override {
    heard_ = loop_.Now();
    if (on_answer_) on_answer_(frame);
  }
  void OnClosed(Link& link, const Status& why) override {
    Note(why.WithContext(link.Describe()));
  }

 private:
  Status Send(Ask ask, std::span<const std::byte> payload) {
    FrameHeader header;
    header.step = StepId{ask};
    return link_->Send(header, payload, {});
  }
  void Note(const Status& status) {
    if (status.ok()) return;
    failure_ = status;
    loop_.Stop();
  }
  // Until somebody stops the loop, or nothing was heard for long.
  Status RunLoop() {
    heard_ = loop_.Now();
    loop_.Restart();
    Watch();
    loop_.Run();
    loop_.Cancel(watch_);
    return failure_;
  }
  void Watch() {
    watch_ = loop_.After(std::chrono::seconds(1), [this] {
      if (loop_.Now() - heard_ > kSilence) return Note(Timeout("nothing was heard of the other side for 10 s"));
      Watch();
    });
  }

  const char* name_;
  EventLoop loop_;
  BufferPool pool_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Link> link_;
  std::function<void(Frame&)> on_answer_;
  TimePoint heard_{};
  EventLoop::TimerId watch_ = 0;
  Status failure_;
};

Result<LinkRates> ProbeLink(Prober& prober, const char* transport, const LinkProbeOptions& options) {
  const auto progress = [&](const char* what) {
    if (options.progress) options.progress(std::string(transport) + ": " + what + " …");
  };
  LinkRates rates{.transport = transport};
  double small_s = 0, sunk_s = 0, echoed_s = 0;
  progress("small frames there and back");
  TALLY_ASSIGN_OR_RETURN(rates.alpha_s, prober.Alpha(&small_s));
  progress("large frames one way");
  TALLY_ASSIGN_OR_RETURN(rates.one_way_bytes_per_s, prober.Rate(kSink, options.each, &sunk_s));
  progress("large frames both ways");
  TALLY_ASSIGN_OR_RETURN(rates.both_ways_bytes_per_s, prober.Rate(kEcho, options.each, &echoed_s));
  // Of a peer elsewhere only this end is seen; the other one does as much.
  const double ends = options.in_process ? 1 : 2;
  // An echoed frame differs from a sunk one in the bytes of its answer alone.
  rates.cpu = {ends * small_s, ends * std::max(0.0, echoed_s - sunk_s) / kLarge};
  return rates;
}

// The zmq endpoint that a responder tells, at the host under which it was reached.
Result<std::string> ReachableFrom(const std::string& endpoint, const std::string& told) {
  TALLY_ASSIGN_OR_RETURN(const EndpointParts reached, ParseEndpoint(endpoint));
  TALLY_ASSIGN_OR_RETURN(const EndpointParts parts, ParseEndpoint(told));
  const bool v6 = reached.host.find(':') != std::string::npos;
  return "zmq://" + (v6 ? "[" + reached.host + "]" : reached.host) + ":" + parts.port;
}

}  // namespace

Result<std::unique_ptr<ProbeResponder>> ProbeResponder::Listen(const std::string& host, std::uint16_t port) {
  auto responder = std::make_unique<Responder>();
  TALLY_RETURN_IF_ERROR(responder->Begin(host, port));
  return std::unique_ptr<ProbeResponder>(std::move(responder));
}

Result<std::vector<LinkRates>> ProbeLinks(const std::string& endpoint, const LinkProbeOptions& options) {
  std::vector<LinkRates> all;
  Prober tcp("tcp");
  TALLY_RETURN_IF_ERROR(tcp.Connect(endpoint));
  TALLY_ASSIGN_OR_RETURN(const std::string told, tcp.Where(kWhere));
  TALLY_ASSIGN_OR_RETURN(all.emplace_back(), ProbeLink(tcp, "tcp", options));
  TALLY_ASSIGN_OR_RETURN(const std::string zmq_endpoint, ReachableFrom(endpoint, told));
  Prober zmq("zmq");  // while tcp's link keeps the responder
  TALLY_RETURN_IF_ERROR(zmq.Connect(zmq_endpoint));
  TALLY_ASSIGN_OR_RETURN(all.emplace_back(), ProbeLink(zmq, "zmq", options));
  if (!options.in_process) return all;
  TALLY_ASSIGN_OR_RETURN(const std::string shm_endpoint, tcp.Where(kWhereInMemory));
  Prober shm("shm");
  TALLY_RETURN_IF_ERROR(shm.Connect(shm_endpoint));
  TALLY_ASSIGN_OR_RETURN(all.emplace_back(), ProbeLink(shm, "shm", options));
  return all;
}

Result<double> ProbeBothWays(const std::string& endpoint, Nanos time) {
  Prober tcp("tcp");
  TALLY_RETURN_IF_ERROR(tcp.Connect(endpoint));
  double cpu_s = 0;
  return tcp.Rate(kEcho, time, &cpu_s);
}

Result<std::vector<LinkRates>> ProbeLoopback(LinkProbeOptions options) {
  options.in_process = true;
  TALLY_ASSIGN_OR_RETURN(const std::unique_ptr<ProbeResponder> responder, ProbeResponder::Listen("127.0.0.1", 0));
  Status served;
  std::thread thread([&] { served = responder->Serve(std::chrono::minutes(5)); });
  auto rates = ProbeLinks(responder->endpoint(), options);
  responder->Stop();
  thread.join();
  if (rates.ok() && !served.ok()) return served;
  return rates;
}

}  // namespace tally::cli
