#include "worker/agent/attached.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <utility>

#include "common/transport/unix_sockets.h"
#include "common/version.h"

namespace tally::agent {
namespace {

constexpr Nanos kConnectBound = std::chrono::seconds(10);  // both may be started together
constexpr Nanos kRetry = std::chrono::milliseconds(20);
constexpr Nanos kEndBound = std::chrono::seconds(2);
constexpr Nanos kSlack = std::chrono::seconds(45);  // beyond the engine's own bound, whose error says more

std::string Milliseconds(Nanos time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) + " ms";
}

// What lies at a place. Errors: kCorrupt if it is not all inside.
template <typename T>
Result<std::span<T>> At(std::span<const Mapping> regions, const Place& place, std::uint64_t elements) {
  if (elements == 0) return std::span<T>();
  const std::uint64_t bytes = elements * sizeof(T);
  if (place.region >= regions.size() || place.offset % alignof(T) != 0 ||
      place.offset > regions[place.region].bytes().size() ||
      bytes > regions[place.region].bytes().size() - place.offset) {
    return Corrupt("tally-worker says that " + std::to_string(bytes) + " bytes lie at " +
                   std::to_string(place.offset) + " of memory " + std::to_string(place.region) +
                   ", which has not so many");
  }
  return std::span<T>(reinterpret_cast<T*>(regions[place.region].bytes().data() + place.offset), elements);
}

// Settings whose files are found from wherever tally-worker was started.
Config WithAbsolutePaths(Config config) {
  for (std::string* const path : {&config.job.secret_file, &config.topology.file, &config.topology.matrix}) {
    std::error_code error;  // where it cannot be told what is meant it stays as it is
    if (const auto absolute = std::filesystem::absolute(*path, error); !path->empty() && !error) *path = absolute;
  }
  return config;
}

std::vector<std::byte> Copy(const AttachedBackend::Answer& answer) {
  if (answer.memory.empty()) return {};
  const std::span<std::byte> bytes = answer.memory.front().bytes();
  return {bytes.begin(), bytes.end()};
}

}  // namespace

// ---- groups
// ----------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<AttachedGroup>> AttachedGroup::Make(AttachedBackend* backend, std::uint32_t number,
                                                           std::span<const TensorSpec> tensors,
                                                           const Declared& declared, std::vector<Mapping> memory) {
  std::unique_ptr<AttachedGroup> group(new AttachedGroup(backend, number));
  group->regions_ = std::move(memory);
  group->shape_ = {declared.id, declared.step, {tensors.begin(), tensors.end()}, declared.buckets};
  if (declared.tensors.size() != tensors.size()) return Corrupt("tally-worker declared another number of tensors");
  for (const auto& bucket : declared.buckets) {
    const auto outside = [&](std::uint32_t tensor) { return tensor >= tensors.size(); };
    if (std::ranges::any_of(bucket, outside))
      return Corrupt("tally-worker's buckets hold tensors that were not declared");
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::uint64_t elements = tensors[t].elements.value;
    const TensorPlaces& places = declared.tensors[t];
    TensorMemory& to = group->memory_.emplace_back();
    TALLY_ASSIGN_OR_RETURN(to.output, At<float>(group->regions_, places.output, elements));
    if (tensors[t].dtype == DType::kFloat32) {
      TALLY_ASSIGN_OR_RETURN(to.input, At<float>(group->regions_, places.input, elements));
    } else {
      TALLY_ASSIGN_OR_RETURN(to.input16, At<std::uint16_t>(group->regions_, places.input, elements));
      TALLY_ASSIGN_OR_RETURN(to.output16, At<std::uint16_t>(group->regions_, places.output16, elements));
    }
  }
  group->external_.resize(tensors.size());
  group->kept_.resize(tensors.size());
  group->residuals_.resize(tensors.size());
  group->tickets_.resize(declared.buckets.size());
  return group;
}

void AttachedGroup::SetInput(std::uint32_t tensor, const void* numbers) {
  const TensorMemory& own = memory_[tensor];
  const bool ours = numbers == own.input.data() || numbers == own.input16.data();
  external_[tensor] = ours ? nullptr : numbers;
}

void AttachedGroup::Keep(std::uint32_t tensor) {
  kept_[tensor] = true;
  (void)backend_->Tell(agent::Keep{number_, tensor});  // a failure shows where the step ends
}

Result<std::shared_ptr<TicketState>> AttachedGroup::Submit(std::uint32_t bucket, StepWeight weight) {
  for (const std::uint32_t t : shape_.buckets[bucket]) {
    if (external_[t] == nullptr || kept_[t] || shape_.tensors[t].elements.value == 0) continue;
    const TensorMemory& own = memory_[t];
    if (own.input16.empty()) {
      std::memcpy(own.input.data(), external_[t], own.input.size_bytes());
    } else {
      std::memcpy(own.input16.data(), external_[t], own.input16.size_bytes());
    }
  }
  std::shared_ptr<TicketState> ticket;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<TicketState>& state = tickets_[bucket];
    if (state == nullptr || state.use_count() != 1) state = std::make_shared<TicketState>();
    state->host = this;
    state->bucket = bucket;
    state->step = shape_.step;
    state->completion.Reset();
    ticket = state;
  }
  TALLY_RETURN_IF_ERROR(backend_->Tell(agent::Submit{number_, bucket, weight, learning_rate_}));
  return ticket;
}

Result<StepResult> AttachedGroup::EndStep(Vote vote, StepWeight weight, float loss_scale) {
  const agent::EndStep question{number_, vote, weight, learning_rate_, loss_scale};
  TALLY_ASSIGN_OR_RETURN(AttachedBackend::Answer answer, backend_->Ask<StepEnd>(question));
  auto& end = std::get<StepEnd>(answer.message);
  shape_.step = StepId(end.step.value + 1);
  std::fill(kept_.begin(), kept_.end(), false);
  backend_->NoteStepEnd();
  return StepResult{end.step, end.outcome, std::move(end.reason)};
}

Status AttachedGroup::WaitTicket(TicketState* ticket) {
  const std::string what = "bucket " + std::to_string(ticket->bucket) + " of tally-worker";
  const auto speak_up = [&] { backend_->logger().Info("waiting", {{"for", what}}); };
  Status status;
  if (ticket->completion.Wait(backend_->config().step.timeout, speak_up, &status)) return status;
  // tally-worker's engine knows what is missing, and ends the job.
  TALLY_RETURN_IF_ERROR(backend_->Tell(GiveUp{number_, ticket->bucket, ticket->step}));
  if (ticket->completion.Wait(kSlack, speak_up, &status)) return status;
  return Timeout(what + ": nothing within " + Milliseconds(backend_->config().step.timeout + kSlack));
}

void AttachedGroup::OnBucketEnd(std::uint32_t bucket, const Status& status) {
  const std::lock_guard lock(mutex_);
  if (bucket < tickets_.size() && tickets_[bucket] != nullptr) tickets_[bucket]->completion.Complete(status);
}

void AttachedGroup::FailAll(const Status& why) {
  const std::lock_guard lock(mutex_);
  for (const auto& ticket : tickets_) {
    if (ticket != nullptr) ticket->completion.Complete(why);
  }
}

std::span<const float> AttachedGroup::Residual(std::uint32_t tensor) {
  Result<AttachedBackend::Answer> answer = backend_->Ask<Reply>(agent::Residual{number_, tensor});
  std::vector<float>& numbers = residuals_[tensor];
  numbers.clear();
  if (!answer.ok()) return numbers;
  const std::vector<std::byte> bytes = Copy(*answer);
  numbers.resize(bytes.size() / sizeof(float));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));
  return numbers;
}

Result<std::vector<std::byte>> AttachedGroup::ExportState() {
  TALLY_ASSIGN_OR_RETURN(const AttachedBackend::Answer answer, backend_->Ask<Reply>(agent::ExportState{number_}));
  return Copy(answer);
}

Status AttachedGroup::ImportState(std::span<const std::byte> state) {
  TALLY_ASSIGN_OR_RETURN(const Arena memory, Arena::Make("tally-state", state.size()));
  std::ranges::copy(state, memory.bytes().begin());
  return backend_->AskWith(memory, agent::ImportState{number_});
}

// ---- the connection
// --------------------------------------------------------------------------------------------------

AttachedBackend::AttachedBackend(const Config& config, std::unique_ptr<Logger> logger)
    : config_(config), logger_(std::move(logger)) {}

Result<std::unique_ptr<Backend>> AttachedBackend::Start(const LoadedConfig& config) {
  TALLY_ASSIGN_OR_RETURN(std::unique_ptr<Logger> logger, Logger::Make(config.config.log));
  logger->SetContext({{"job", config.config.job.name}, {"rank", config.config.worker.rank}});
  std::unique_ptr<AttachedBackend> backend(new AttachedBackend(config.config, std::move(logger)));
  TALLY_RETURN_IF_ERROR(backend->Connect());
  backend->thread_ = std::thread([raw = backend.get()] { raw->Hear(); });
  const Attach attach{kProtocol, kVersion, ProcessText(WithAbsolutePaths(config.config))};
  // One that died in this place while it joined may have to be waited for, too.
  TALLY_ASSIGN_OR_RETURN(Answer answer,
                         backend->Ask<agent::Attached>(attach, 2 * config.config.membership.join_timeout + kSlack));
  backend->about_ = std::get<agent::Attached>(std::move(answer.message));
  backend->logger_->Info("attached", {{"to", backend->peer_}, {"exchange", backend->about_.description}});
  return std::unique_ptr<Backend>(std::move(backend));
}

AttachedBackend::~AttachedBackend() { (void)Leave(); }

Status AttachedBackend::Connect() {
  const std::string name = SocketName(config_.worker.agent);
  sockaddr_un address;
  const socklen_t length = UnixAddress(name, &address);
  const auto deadline = std::chrono::steady_clock::now() + std::min(kConnectBound, config_.membership.join_timeout);
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  while (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    const int error = errno;
    if (std::chrono::steady_clock::now() >= deadline) {
      return Unavailable(
          "no tally-worker listens on local socket " + name + " (" + ErrnoText(error) +
          "): start it on this node as this user, set worker.agent to its socket, or worker.attach to embedded");
    }
    std::this_thread::sleep_for(kRetry);
  }
  TALLY_RETURN_IF_ERROR(CheckSameUser(fd.get()).WithContext("tally-worker at local socket " + name));
  peer_ = "tally-worker (process " + std::to_string(PeerProcess(fd.get())) + ", local socket " + name + ")";
  channel_ = std::make_unique<Channel>(std::move(fd), [this] { wake_.Wake(); });
  return Status::Ok();
}

void AttachedBackend::Hear() {
  while (true) {
    const int events = POLLIN | (channel_->queued() ? POLLOUT : 0);
    pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {channel_->fd(), static_cast<short>(events), 0}};
    (void)poll(polled, 2, -1);  // the socket ends with tally-worker
    wake_.Clear();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    Status status;
    if ((polled[1].revents & POLLOUT) != 0) status = channel_->Flush();
    if (status.ok() && (polled[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) status = HearOne();
    if (!status.ok()) return Fail(status);
  }
}

Status AttachedBackend::HearOne() {
  Result<Channel::Received> received = channel_->Receive();
  if (received.status().kind() == StatusKind::kUnavailable) return Gone();
  if (!received.ok()) return received.status().WithContext(peer_);
  if (const auto* memory = std::get_if<Memory>(&received->message)) {
    if (memory->bytes == 0) {
      memory_.emplace_back();
      return Status::Ok();
    }
    TALLY_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Make(received->descriptor.Release(), memory->bytes, true));
    memory_.push_back(std::move(mapping));
    return Status::Ok();
  }
  const std::lock_guard lock(mutex_);
  if (const auto* end = std::get_if<BucketEnd>(&received->message)) {
    if (end->group < groups_.size()) groups_[end->group]->OnBucketEnd(end->bucket, end->reply.status());
    return Status::Ok();
  }
  if (!std::exchange(asking_, false)) {
    const auto* reply = std::get_if<Reply>(&received->message);
    return reply == nullptr ? Corrupt("an answer that was not asked for") : reply->status();  // why it goes
  }
  answer_ = {std::move(received->message), std::exchange(memory_, {})};
  answered_.Complete(Status::Ok());
  return Status::Ok();
}

Status AttachedBackend::Gone() const {
  return PeerLost(peer_ + " has gone, and with it rank " + std::to_string(config_.worker.rank));
}

void AttachedBackend::Fail(const Status& why) {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = why;
  for (const auto& group : groups_) group->FailAll(failure_);
  answered_.Complete(failure_);
  ended_.Complete(failure_);
}

Status AttachedBackend::Tell(const Message& message, int descriptor) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  const Status status = channel_->Send(message, descriptor);
  if (status.kind() != StatusKind::kUnavailable) return status;
  // It takes nothing any more. What it said before is the better reason: the hearing thread comes to it.
  Status why;
  return ended_.Wait(
             kEndBound, [] {}, &why)
             ? why
             : Gone();
}

Nanos AttachedBackend::AnswerBound() const { return config_.step.timeout + kSlack; }

Result<AttachedBackend::Answer> AttachedBackend::AskAny(const Message& question, Nanos bound) {
  const std::lock_guard one(ask_mutex_);
  answered_.Reset();
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
    asking_ = true;
  }
  const Status told = Tell(question);
  if (!told.ok() && !answered_.done()) {
    const std::lock_guard lock(mutex_);
    asking_ = false;
    return told;
  }
  Status status;
  const auto speak_up = [this] { logger_->Info("waiting", {{"for", peer_}}); };
  if (!answered_.Wait(bound, speak_up, &status)) {
    status = Timeout(peer_ + " did not answer within " + Milliseconds(bound));
    Fail(status);
  }
  if (!status.ok()) return status;
  return std::move(answer_);
}

template <typename Expected>
Result<AttachedBackend::Answer> AttachedBackend::Ask(const Message& question, Nanos bound) {
  TALLY_ASSIGN_OR_RETURN(Answer answer, AskAny(question, bound));
  if (const auto* reply = std::get_if<Reply>(&answer.message); reply != nullptr && reply->kind != StatusKind::kOk) {
    return reply->status();
  }
  if (std::holds_alternative<Expected>(answer.message)) return answer;
  return Corrupt(peer_ + " answered something else than it was asked");
}

Status AttachedBackend::AskWith(const Arena& memory, const Message& question) {
  staging_ = Arena();
  TALLY_RETURN_IF_ERROR(Tell(Memory{memory.bytes().size()}, memory.fd()));
  return Ask<Reply>(question).status();
}

void AttachedBackend::Disconnect() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (failure_.ok()) failure_ = Unavailable("rank " + std::to_string(config_.worker.rank) + " has left the job");
  }
  wake_.Wake();
  if (thread_.joinable()) thread_.join();
  for (const auto& group : groups_) group->FailAll(failure_);
  ended_.Complete(failure_);
  channel_->Close();  // children of this process may hold the socket, and other threads be about to send
}

Status AttachedBackend::Detach() {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return failure_;
  }
  if (called_) {
    return InvalidArgument(
        "a rank is given back after the end of a step, before standalone calls: the next process could not tell that "
        "they were made");
  }
  Disconnect();
  return Status::Ok();
}

Status AttachedBackend::Leave() {
  {
    const std::lock_guard lock(mutex_);
    if (channel_ == nullptr || stopping_) return Status::Ok();
  }
  const bool attached = about_.workers != 0;
  // While others are in the job, the rank that leads it stays.
  if (attached) (void)Ask<Reply>(agent::Leave{}, config_.membership.dead + kSlack);
  Disconnect();
  return Status::Ok();
}

// ---- what a client asks for
// ------------------------------------------------------------------------------------------

Result<GroupBackend*> AttachedBackend::Declare(std::span<const TensorSpec> tensors, const GroupOptions& options) {
  const DeclareMessage question{options.name, {tensors.begin(), tensors.end()}, options.buckets, options.first_step};
  TALLY_ASSIGN_OR_RETURN(Answer answer, Ask<Declared>(question));
  const auto& declared = std::get<Declared>(answer.message);
  about_.description = declared.description;
  const auto number = static_cast<std::uint32_t>(groups_.size());
  TALLY_ASSIGN_OR_RETURN(auto group, AttachedGroup::Make(this, number, tensors, declared, std::move(answer.memory)));
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
  return groups_.back().get();
}

Status AttachedBackend::AllReduce(std::span<float> data, ReduceOp op) {
  CollectiveShape shape;
  shape.elements = data.size();
  shape.op = op;
  auto* const bytes = reinterpret_cast<std::byte*>(data.data());
  return Collective(shape, bytes, bytes);
}

Status AttachedBackend::Collective(const CollectiveShape& shape, const std::byte* in, std::byte* out) {
  const Extent extent = ExtentOf(shape, about_.workers);
  if (staging_.bytes().size() < extent.bytes()) {
    Result<Arena> made = Arena::Make("tally-staging", extent.bytes());
    if (!made.ok()) {
      NoteRefusal(made.status());  // the other ranks wait for this one
      return made.status();
    }
    staging_ = std::move(made).value();
    TALLY_RETURN_IF_ERROR(Tell(Memory{extent.bytes()}, staging_.fd()));
  }
  std::byte* const staging = staging_.bytes().data();
  if (extent.in_bytes != 0) std::memcpy(staging, in, extent.in_bytes);
  TALLY_RETURN_IF_ERROR(Ask<Reply>(agent::Collective{shape}).status());
  called_ = true;
  if (extent.out_bytes != 0) std::memcpy(out, staging + extent.out_offset, extent.out_bytes);
  return Status::Ok();
}

void AttachedBackend::NoteRefusal(const Status& why) {
  called_ = true;
  (void)Tell(agent::Refused{why.text()});
}

Result<Backend::BufferMemory> AttachedBackend::MakeBuffer(std::size_t elements) {
  TALLY_ASSIGN_OR_RETURN(Answer answer, Ask<Buffer>(agent::MakeBuffer{elements}));
  const auto& places = std::get<Buffer>(answer.message);
  BufferMemory memory;
  memory.number = static_cast<std::uint32_t>(buffers_.size());
  TALLY_ASSIGN_OR_RETURN(memory.input, At<float>(answer.memory, places.input, elements));
  TALLY_ASSIGN_OR_RETURN(memory.output, At<float>(answer.memory, places.output, elements));
  buffers_.push_back(std::move(answer.memory));
  return memory;
}

Status AttachedBackend::AllReduce(std::uint32_t buffer, ReduceOp op) {
  TALLY_RETURN_IF_ERROR(Ask<Reply>(ReduceBuffer{buffer, op}).status());
  called_ = true;
  return Status::Ok();
}

ClientStats AttachedBackend::Stats() {
  const Result<Answer> answer = Ask<agent::Stats>(AskStats{});
  return answer.ok() ? std::get<agent::Stats>(answer->message).stats : ClientStats{};
}

}  // namespace tally::agent
