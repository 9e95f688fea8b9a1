// The side of the engine that callers see: what they hand over and what they wait for. Any thread but the loop's.
#include <cfenv>
#include <ctime>
#include <future>
#include <limits>
#include <thread>
#include <utility>

#include "common/utf8.h"
#include "worker/engine.h"

namespace tally {
namespace {

constexpr Nanos kFlushBound = std::chrono::seconds(2);
constexpr Nanos kLetGoBound = std::chrono::seconds(30);
constexpr std::size_t kMaxReason = 512;  // bytes of a text by the program
constexpr Nanos kPoll = std::chrono::milliseconds(2);
constexpr Nanos kSpeakUp = std::chrono::seconds(5);
constexpr GroupId kMeetingGroup{std::numeric_limits<std::uint32_t>::max()};  // of memory that is no group's

// Sums keep denormals and round to nearest whatever the caller's thread has set, as those of the engine's thread do.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&callers_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t callers_;
};

}  // namespace

void Engine::Post(std::function<void()> task) { loop_.Post(std::move(task)); }

std::string Engine::Ask(std::function<std::string()> question) {
  auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> future = answer->get_future();
  Post([answer, question = std::move(question)] { answer->set_value(question()); });
  if (future.wait_for(kFlushBound) != std::future_status::ready) return "the engine is busy";
  return future.get();
}

Status Engine::OnLoop(std::function<Status()> task, const char* what) {
  const auto done = std::make_shared<Completion>();
  Post([done, task = std::move(task)] { done->Complete(task()); });
  return Wait(*done, [what] { return std::string(what); }, nullptr);
}

Status Engine::Wait(Completion& completion, const std::function<std::string()>& what, GroupRuntime* group) {
  const Nanos timeout = loaded_.config.step.timeout;
  const auto describe = [&what, group, this] {
    return group == nullptr ? what() : what() + ": " + Ask([group] { return group->Describe(); });
  };
  Status status;
  const auto speak_up = [this, &describe] { logger_->Info("waiting", {{"for", describe()}}); };
  if (completion.Wait(timeout, speak_up, &status)) return status;
  const Status late = Timeout(RankName() + ": " + describe() + "; nothing within " +
                              std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
                              " ms (step.timeout)");
  // The step cannot be left half done: the job ends, and every other rank is told.
  Post([this, late] { Fail(late); });
  // Not before the engine has let go of the caller's memory.
  (void)completion.Wait(kLetGoBound, [] {}, &status);
  return late;
}

Result<GroupRuntime*> Engine::Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  if (failed_) return failure();
  auto declaration = std::make_shared<Declaration>();
  declaration->name = options.name;
  declaration->own.assign(tensors.begin(), tensors.end());
  DeclareMessage message;
  message.group = options.name;
  message.tensors = declaration->own;
  message.buckets = options.buckets;
  message.first_step = options.first_step;
  if (const std::size_t bytes = EncodeControl(message).size(); bytes > kMaxControlBytes) {
    return InvalidArgument("group " + options.name + ": its declaration takes " + std::to_string(bytes) +
                           " bytes, at most " + std::to_string(kMaxControlBytes) +
                           " are sent: use shorter tensor names, several groups, or buckets by cap");
  }
  Post([this, declaration, message] {
    if (failed_) {
      declaration->completion.Complete(failure());
      return;
    }
    declarations_.push_back(declaration);
    membership_->Send(message);
  });
  const auto what = [&options] { return "the declaration of group " + options.name + " by all ranks"; };
  TALLY_RETURN_IF_ERROR(Wait(declaration->completion, what, nullptr));
  return declaration->group;
}

// Tasks that a warm step posts hold two pointers: a std::function keeps those without memory of its own.

Result<Ticket> Engine::Submit(GroupRuntime* group, std::uint32_t bucket, StepWeight weight) {
  if (failed_) return failure();
  std::shared_ptr<TicketState>& state = group->tickets[bucket];
  if (state == nullptr || state.use_count() != 1) {
    state = std::make_shared<TicketState>();
    state->engine = this;
    state->group = group;
    state->bucket = bucket;
  }
  state->completion.Reset();
  state->weight = weight;
  Post([this, raw = state.get()] {
    if (failed_) {
      raw->completion.Complete(failure());
    } else {
      raw->group->Submit(raw->bucket);
    }
  });
  Ticket ticket;
  ticket.state_ = state;
  return ticket;
}

Status Engine::WaitTicket(TicketState* ticket) {
  return Wait(ticket->completion, [ticket] { return "bucket " + std::to_string(ticket->bucket); }, ticket->group);
}

Result<StepResult> Engine::EndStep(GroupRuntime* group, Vote vote, StepWeight weight, float loss_scale) {
  if (failed_) return failure();
  StepEnding& ending = group->ending;
  ending.completion.Reset();
  ending.vote = vote;
  ending.weight = weight;
  ending.loss_scale = loss_scale;
  Post([this, group] {
    if (failed_) {
      group->ending.completion.Complete(failure());
    } else {
      group->EndStep();
    }
  });
  TALLY_RETURN_IF_ERROR(Wait(ending.completion, [] { return std::string("the end of the step"); }, group));
  return std::move(ending.result);
}

Result<SavedState> Engine::Save(GroupRuntime* group) {
  const auto saved = std::make_shared<SavedState>();
  TALLY_RETURN_IF_ERROR(OnLoop(
      [this, group, saved] {
        const GroupTables& tables = group->tables();
        const OwnerHost& host = *owner_host_;
        *saved = group->Save({tables.message.epoch, workers_, rank(), Arrangement()}, host.owner(tables.message.group));
        return Status::Ok();
      },
      "the state of a group"));
  return std::move(*saved);
}

Status Engine::Restore(GroupRuntime* group, SavedState state) {
  if (failed_) return failure();
  const auto saved = std::make_shared<const SavedState>(std::move(state));
  return OnLoop(
      [this, group, saved] {
        const GroupTables& tables = group->tables();
        const ResidualOrigin origin{tables.message.epoch, workers_, rank(), Arrangement()};
        return group->Restore(*saved, origin, owner_host_->owner(tables.message.group));
      },
      "reading back the state of a group");
}

Status Engine::AllReduce(std::span<float> data, ReduceOp op) {
  if (failed_) return failure();
  TALLY_RETURN_IF_ERROR(MeetNode());
  const CollectiveShape shape{data.size(), DType::kFloat32, op, ++last_call_};
  if (on_node_ != nullptr) {
    const DefaultFloatingPoint mode;
    on_node_call_ = shape;
    return EndOnNode(on_node_->AllReduce(data, data, shape));
  }
  TALLY_ASSIGN_OR_RETURN(GroupRuntime * group, CollectiveGroup(shape));
  return RunCollective(group, shape, data);
}

Status Engine::AllReduce(GroupRuntime* buffer, ReduceOp op) {
  if (failed_) return failure();
  const std::span<float> input = buffer->arena_input(0);
  const CollectiveShape shape{input.size(), DType::kFloat32, op, ++last_call_};
  if (on_node_ == nullptr || !buffer->all_share) return RunCollective(buffer, shape, {});
  const DefaultFloatingPoint mode;
  on_node_call_ = shape;
  const std::uint32_t number = buffer->tables().message.group.value;
  return EndOnNode(on_node_->AllReduceShared(buffer->node_inputs, {buffer->result(0), input.size()}, shape, number));
}

Status Engine::Collective(CollectiveShape shape, const std::byte* in, std::byte* out) {
  if (failed_) return failure();
  shape.call = ++last_call_;
  CollectiveCall& call = standalone_->call;
  call.completion.Reset();
  call.shape = shape;
  call.in = in;
  call.out = out;
  Post([this] {
    CollectiveCall& begun = standalone_->call;
    if (!failed_) NoteCall(rank(), begun.shape);
    if (failed_) {
      begun.completion.Complete(failure());
    } else {
      standalone_->Begin();
    }
  });
  const auto what = [this] { return Ask([this] { return standalone_->Describe(); }); };
  return Wait(call.completion, what, nullptr);
}

// An error that this rank alone may know of ends the job.
Status Engine::EndOnNode(Status status) {
  if (status.ok() || failed_) return failed_ ? failure() : status;
  const Status told = status.WithContext(RankName());
  Post([this, told] { Fail(told); });
  return told;
}

// Before the first collective of a job on one node. All ranks or none go without the engine.
Status Engine::MeetNode() {
  if (std::exchange(met_node_, true) || !nodes_.shared() || nodes_.count() != 1) return Status::Ok();
  const std::uint64_t bytes = NodeCollective::StagingBytes(workers_);
  auto staging = Arena::Make("tally-staging", bytes), meeting = Arena::Make("tally-meeting", bytes);
  const bool first = rank_on_node() == 0, have = staging.ok() && meeting.ok();
  if (have) {
    staging_ = std::move(staging).value();
    meeting_ = std::move(meeting).value();
    const auto done = std::make_shared<Completion>();
    Post([this, done, first] {
      node_share_ = MakeNodeShare(kMeetingGroup);
      node_share_->Begin(&staging_, first ? &meeting_ : nullptr, ShareBound(), [done] { done->Complete(Status::Ok()); });
    });
    TALLY_RETURN_IF_ERROR(Wait(*done, [] { return std::string("the node's shared memory"); }, nullptr));
  }
  TALLY_ASSIGN_OR_RETURN(const bool all, Unanimous(have && node_share_->complete()));
  if (!all) return Status::Ok();
  if (!first) meeting_ = Arena();
  NodeCollective::Options options;
  options.self = rank_on_node();
  options.ranks = workers_;
  options.spin = loaded_.config.worker.spin;
  options.timeout = loaded_.config.step.timeout;
  options.alive = [this, told = Nanos{0}, noted = std::uint64_t{0}](Nanos waited) mutable {
    if (failed_) return failure();
    // Ranks that are in a call of the engine's would not meet this one in memory.
    if (std::exchange(noted, on_node_call_.call) != on_node_call_.call) {
      Post([this, shape = on_node_call_] {
        if (!failed_) NoteCall(rank(), shape);
      });
    }
    if (waited < told) told = Nanos{0};  // another wait
    if (waited - told >= kSpeakUp) {
      told = waited;
      logger_->Info("waiting", {{"for", "all ranks of the node to come to a collective call"}});
    }
    // A rank that has left in good order will not come; it need not be missed, if it has done its part.
    if (!someone_left_ || waited < loaded_.config.membership.dead) return Status::Ok();
    const std::lock_guard lock(failure_mutex_);
    return Unavailable(who_left_);
  };
  on_node_ = std::make_unique<NodeCollective>(options, OnNode(*node_share_, staging_.bytes()),
                                              first ? meeting_.bytes() : node_share_->results().bytes());
  return Status::Ok();
}

// Of all ranks of the node, in order.
std::vector<std::span<std::byte>> Engine::OnNode(NodeShare& share, std::span<std::byte> own) const {
  std::vector<std::span<std::byte>> all;
  for (NodeShare::Peer& peer : share.peers()) all.push_back(peer.inputs.bytes());
  all.insert(all.begin() + rank_on_node(), own);
  return all;
}

// Whether every rank says so. All call it at the same point.
Result<bool> Engine::Unanimous(bool mine) {
  float yes = mine ? 1 : 0;
  TALLY_RETURN_IF_ERROR(AllReduce(std::span(&yes, 1), ReduceOp::kSum));
  return yes == static_cast<float>(workers_);
}

Result<GroupRuntime*> Engine::MakeBuffer(std::size_t elements) {
  if (failed_) return failure();
  TALLY_RETURN_IF_ERROR(MeetNode());
  TALLY_ASSIGN_OR_RETURN(GroupRuntime * group, DeclareCollective("buffer", elements));
  TALLY_RETURN_IF_ERROR(group->MakeMemory());
  if (on_node_ == nullptr || elements == 0) return group;
  NodeShare& share = *group->share();
  TALLY_ASSIGN_OR_RETURN(group->all_share, Unanimous(share.complete()));
  if (!group->all_share) return group;
  for (const std::span<std::byte> input : OnNode(share, std::as_writable_bytes(group->arena_input(0)))) {
    group->node_inputs.push_back(reinterpret_cast<const float*>(input.data()));
  }
  return group;
}

Status Engine::RunCollective(GroupRuntime* group, const CollectiveShape& shape, std::span<float> data) {
  StepEnding& ending = group->ending;
  ending.completion.Reset();
  ending.weight = {};
  if (shape.op == ReduceOp::kSum && rank().value != 0) ending.weight.declared = 0;
  ending.data = data;
  ending.collective = shape;
  Post([this, group] {
    if (!failed_) NoteCall(rank(), group->ending.collective);
    if (failed_) {
      group->ending.completion.Complete(failure());
    } else {
      group->RunCollective();
    }
  });
  const auto what = [&shape] { return "all-reduce of " + std::to_string(shape.elements) + " elements"; };
  return Wait(ending.completion, what, group);
}

Result<GroupRuntime*> Engine::CollectiveGroup(const CollectiveShape& shape) {
  GroupRuntime*& group = collectives_[{shape.elements, static_cast<int>(shape.op)}];
  if (group != nullptr) return group;
  // Noted before the declaration, which waits for ranks that may be in another call.
  Post([this, shape] {
    if (!failed_) NoteCall(rank(), shape);
  });
  TALLY_ASSIGN_OR_RETURN(group, DeclareCollective(shape.op == ReduceOp::kSum ? "sum" : "mean", shape.elements));
  return group;
}

Result<GroupRuntime*> Engine::DeclareCollective(const char* kind, std::uint64_t elements) {
  GroupOptions options;
  options.name = std::string(kCollectivePrefix) + std::to_string(++collective_groups_);
  const TensorSpec tensor{kind, ElementCount(elements), DType::kFloat32};
  return Declare(std::span(&tensor, 1), options);
}

void Engine::NoteCall(Rank rank, const CollectiveShape& shape) {
  if (const Status status = calls_.Note(rank, shape); !status.ok()) Fail(status);
}

void Engine::Abort(const std::string& reason) {
  Post([this, reason] { Fail(Unavailable("aborted by its program: " + std::string(Utf8Prefix(reason, kMaxReason)))); });
}

Status Engine::Leave() {
  if (std::exchange(left_, true) || !thread_.joinable()) return Status::Ok();
  const auto done = std::make_shared<Completion>();
  const Status reason = failure();
  Post([this, done, reason] {
    leaving_ = true;
    const Status gone = Unavailable(RankName() + " has left the job");
    {
      std::lock_guard lock(failure_mutex_);
      if (failure_.ok()) failure_ = gone;
    }
    failed_ = true;
    CompleteAll(gone);
    membership_->Leave(reason.ok() ? "done" : reason.text(), [done] { done->Complete(Status::Ok()); });
  });
  Status ignored;
  (void)done->Wait(kFlushBound, [] {}, &ignored);
  // Peers may still need what we have queued, and without servers the other ranks need our coordinator to say goodbye.
  const auto bound = [&](Nanos limit, const std::function<bool()>& finished, const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    auto spoken = begin;
    while (true) {
      const std::string answer = Ask([finished] { return std::string(finished() ? "yes" : "no"); });
      const auto now = std::chrono::steady_clock::now();
      if (answer == "yes" || now - begin > limit) return;
      if (now - spoken > std::chrono::seconds(5)) {
        logger_->Info(what);
        spoken = now;
      }
      std::this_thread::sleep_for(kPoll);
    }
  };
  if (reason.ok()) bound(kFlushBound, [this] { return links_->queued_bytes() == 0; }, "leaving: frames are still queued");
  Post([this] { membership_->Close(); });
  if (coordinator_host_ != nullptr) {
    bound(reason.ok() ? loaded_.config.membership.dead : kFlushBound,
          [this] {
            const Coordinator::Phase phase = coordinator_host_->coordinator().phase();
            return phase == Coordinator::Phase::kIdle || phase == Coordinator::Phase::kGathering;
          },
          "leaving: waiting for the other ranks to leave, as this one coordinates");
  }
  Post([this] { links_->CloseAll(); });
  (void)Ask([] { return std::string(); });
  return Status::Ok();
}

ClientStats Engine::Stats() {
  auto stats = std::make_shared<ClientStats>();
  const std::string answer = Ask([this, stats] {
    const LinkStats links = links_->stats();
    stats->bytes_sent = links.bytes_sent;
    stats->bytes_received = links.bytes_received;
    stats->frames_sent = links.frames_sent;
    stats->frames_received = links.frames_received;
    stats->steps_committed = committed_;
    stats->steps_skipped = skipped_;
    stats->pool_allocations = pool_.stats().allocations;
    for (const auto& [id, group] : groups_) {
      stats->saturated += group->saturated();
      stats->residual_l1 += group->feedback().L1();
      stats->residual_bytes += group->feedback().bytes() + group->velocity().bytes();
    }
    timespec cpu{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    stats->engine_cpu_s = static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9;
    return std::string();
  });
  // A late answer may still be writing to it.
  return answer.empty() ? *stats : ClientStats{};
}

std::string Engine::Expanded(const ModeExpansion& expansion) const {
  const std::string on_servers = std::to_string(servers_) + " servers over " + Over(Role::kServer);
  const std::string on_workers = std::to_string(workers_) + " workers over " + Over(Role::kWorker);
  const std::string stages = node_stages_ ? "node stages around " : "";
  if (expansion.exchange == ExchangeKind::kSchedule) {
    return stages + "schedule " + expansion.schedule + " over " + Over(Role::kWorker);
  }
  return stages + "owners on " + (!expansion.worker_shares   ? on_servers
                         : !expansion.server_shares ? on_workers
                                                    : on_servers + " and " + on_workers);
}

// "tcp", "shm", or "tcp and shm" where some of them are on this node.
std::string Engine::Over(Role role) const {
  const std::string& configured = role == Role::kServer ? loaded_.config.servers.transport : loaded_.config.link.transport;
  std::size_t peers = 0, in_memory = 0;
  for (const OwnerRef& peer : peers_) {
    if (peer.role != role) continue;
    ++peers;
    in_memory += links_->in_memory(peer) ? 1U : 0U;
  }
  return in_memory == 0 ? configured : in_memory == peers ? "shm" : configured + " and shm";
}

// What the coordinator took for a group, where that was open.
void Engine::NoteChoice(const LayoutMessage& message) {
  if (!open_) return;
  ModeExpansion taken;
  taken.exchange = message.exchange;
  taken.schedule = message.schedule;
  for (const OwnerRef& owner : message.owner_list) {
    (owner.role == Role::kServer ? taken.server_shares : taken.worker_shares) = true;
  }
  std::string text = Expanded(taken);
  logger_->Info("exchange", {{"group", message.name}, {"taken", text}});
  std::lock_guard lock(description_mutex_);
  description_ = std::move(text);
}

std::string Engine::description() const {
  std::lock_guard lock(description_mutex_);
  return description_;
}

}  // namespace tally
