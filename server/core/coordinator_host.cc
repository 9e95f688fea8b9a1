#include "server/core/coordinator_host.h"

#include <exception>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "common/transport/wire_speed.h"
#include "compress/advisor.h"
#include "server/core/membership.h"

namespace tally {
namespace {
constexpr Nanos kTick = std::chrono::milliseconds(50);
constexpr Nanos kSilence = std::chrono::seconds(10);  // from hello to the first message
constexpr std::size_t kMaxConnections = 8192;         // twice the members that a job may have
}

CoordinatorHost::CoordinatorHost(EventLoop* loop, Logger* logger, double rate_bits, CoordinatorOptions options)
    : loop_(loop), logger_(logger), rate_bits_(rate_bits), options_(std::move(options)), rejections_(logger) {
  options_.on_plan = [this](const PlanNotes& plan) {
    logger_->Info("group planned", {{"group", plan.group},
                                    {"exchange", plan.exchange},
                                    {"shares", plan.shares},
                                    {"busiest_nic_ms", plan.bytes_s * 1e3},
                                    {"why", plan.reason.empty() ? "as configured" : plan.reason}});
  };
  options_.on_matrix = [this](const Result<MatrixOrder>& order) {
    if (!order.ok()) return logger_->Warn("positions do not follow topology.matrix", {{"why", order.status().text()}});
    logger_->Info("positions follow topology.matrix", {{"slowest_edge", order->least}, {"by_nodes", order->least_before}});
  };
  options_.advise_codec = [this](const Config& job, std::uint32_t workers) { return AdviseCodec(job, workers); };
}

CoordinatorHost::~CoordinatorHost() {
  *alive_ = false;
  if (tick_timer_ != 0) loop_->Cancel(tick_timer_);
}

Result<std::string> CoordinatorHost::Listen(Transport* control, std::string_view endpoint, Role lives_in) {
  LinkIdentity self;
  self.role = lives_in;
  self.incarnation = options_.incarnation;
  self.control = true;
  TALLY_ASSIGN_OR_RETURN(options_.listening_on, control->Listen(endpoint, self, this));
  coordinator_ = std::make_unique<Coordinator>(options_);
  Tick();
  return options_.listening_on;
}

// Measures on a thread of its own while the members gather; the loop waits for it only where all declare at once.
CoordinatorOptions::Advice CoordinatorHost::AdviseCodec(const Config& job, std::uint32_t workers) {
  const Result<EndpointParts> where = ParseEndpoint(options_.listening_on);
  const WireSpeed wire = SpeedOfWire(rate_bits_, where.ok() ? where->host : "");
  const Result<ModeExpansion> mode = ExpandMode(job);
  AdviceQuestion question;
  question.bytes_per_s = wire.bytes_per_s;
  question.workers = workers;
  question.servers = static_cast<std::uint32_t>(job.servers.addresses.size());
  question.server_shares = mode.ok() && mode->server_shares;
  question.worker_shares = mode.ok() && mode->worker_shares;
  const auto none = [this](const std::exception& why) {
    logger_->Warn("codec auto stands for none", {{"why", std::string("measuring the codecs failed: ") + why.what()}});
    return AutoCodecs{};
  };
  // Without a thread or memory to measure with the job runs nevertheless.
  std::shared_ptr<std::future<std::vector<CodecCost>>> costs;
  try {
    costs = std::make_shared<std::future<std::vector<CodecCost>>>(std::async(
        std::launch::async, [options = job.compression] { return MeasureCodecCosts(options, SteadyClock()); }));
  } catch (const std::exception& why) {
    return [codecs = none(why)] { return codecs; };
  }
  return [this, question, wire, costs, none] {
    try {
      AutoAdvice advice = AdviseCodecs(question, costs->get());
      logger_->Info("codec auto", {{"codec", advice.codecs.fp32},
                                   {"codec_of_fp16", advice.codecs.fp16},
                                   {"codec_of_bf16", advice.codecs.bf16},
                                   {"why", advice.reason},
                                   {"nic_mbit", wire.bytes_per_s * 8e-6},
                                   {"nic", wire.source},
                                   {"workers", question.workers},
                                   {"servers", question.servers}});
      return std::move(advice.codecs);
    } catch (const std::exception& why) {
      return none(why);
    }
  };
}

ConnectionId CoordinatorHost::IdOf(const Link& link) { return reinterpret_cast<ConnectionId>(link.context); }

Status CoordinatorHost::OnHello(const LinkIdentity& peer) {
  if (!peer.control) {
    return InvalidArgument("this is a control address (" + options_.listening_on + "); data links go elsewhere");
  }
  if (links_.size() >= kMaxConnections) return Unavailable("too many control connections");
  return Status::Ok();
}

void CoordinatorHost::OnAccepted(std::unique_ptr<Link> link) {
  const ConnectionId id = next_id_++;
  link->context = reinterpret_cast<void*>(id);
  link->handler = this;
  links_[id] = std::move(link);
  silent_[id] = loop_->Now();
}

void CoordinatorHost::OnRejected(const Status& why) { rejections_.Note(why, loop_->Now()); }

void CoordinatorHost::OnFrame(Link& link, Frame& frame) {
  const ConnectionId id = IdOf(link);
  silent_.erase(id);
  Result<ControlMessage> message = DecodeControl(frame.payload);
  if (message.ok()) {
    coordinator_->OnMessage(id, message.value(), loop_->Now());
  } else if (message.status().kind() != StatusKind::kUnsupported) {
    rejections_.Note(message.status().WithContext("from " + link.Describe()), loop_->Now());
    coordinator_->OnDisconnect(id, message.status(), loop_->Now());
    CloseSoon(id);
  }
  Flush();
}

void CoordinatorHost::OnClosed(Link& link, const Status& why) {
  const ConnectionId id = IdOf(link);
  coordinator_->OnDisconnect(id, why, loop_->Now());
  links_.erase(id);
  silent_.erase(id);
  Flush();
}

// Destroying a link inside its own callback chain is avoided by going through the loop once.
void CoordinatorHost::CloseSoon(ConnectionId id) {
  loop_->Post([this, id, alive = alive_] {
    if (*alive) links_.erase(id);
  });
}

void CoordinatorHost::Flush() {
  // A send's end may come back here; it then finds nothing to do.
  std::vector<CoordinatorOutput> outputs = std::exchange(outputs_, {});
  coordinator_->Take(&outputs);
  for (CoordinatorOutput& output : outputs) {
    const auto found = links_.find(output.to);
    if (found == links_.end()) continue;
    if (const auto* refused = std::get_if<RefusedMessage>(&output.message)) {
      logger_->Warn("refused", {{"from", found->second->Describe()}, {"why", refused->failure.text}});
    }
    std::function<void()> written;
    if (output.close_after) written = [this, id = output.to, alive = alive_] {
      if (*alive) CloseSoon(id);
    };
    (void)sender_.Send(*found->second, output.message, std::move(written));
  }
  outputs.clear();
  outputs_ = std::move(outputs);
}

void CoordinatorHost::Tick() {
  const TimePoint now = loop_->Now();
  std::erase_if(silent_, [&](const auto& entry) {
    if (now - entry.second < kSilence) return false;
    const auto link = links_.find(entry.first);
    if (link != links_.end()) {
      rejections_.Note(Timeout("nothing came from " + link->second->Describe() + " after its hello"), now);
      links_.erase(link);
    }
    return true;
  });
  coordinator_->OnTick(now);
  Flush();
  tick_timer_ = loop_->After(kTick, [this] { Tick(); });
}

}  // namespace tally
