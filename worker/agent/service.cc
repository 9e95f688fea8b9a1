#include "worker/agent/service.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

namespace tally::agent {
namespace {

constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

using Region = GroupRuntime::Region;

Place PlaceIn(std::span<const Region> regions, const void* numbers) {
  const auto* const at = static_cast<const std::byte*>(numbers);
  for (std::uint32_t r = 0; r < regions.size(); ++r) {
    const std::span<std::byte> bytes = regions[r].bytes;
    if (at >= bytes.data() && at < bytes.data() + bytes.size())
      return {r, static_cast<std::uint64_t>(at - bytes.data())};
  }
  return {};  // of an empty tensor
}

Status SendRegions(Session& session, std::span<const Region> regions) {
  for (const Region& region : regions) {
    TALLY_RETURN_IF_ERROR(session.channel().Send(Memory{region.bytes.size()}, region.descriptor));
  }
  return Status::Ok();
}

Result<Message> SendBytes(Session& session, std::span<const std::byte> bytes) {
  TALLY_ASSIGN_OR_RETURN(const Arena arena, Arena::Make("tally-state", bytes.size()));
  std::ranges::copy(bytes, arena.bytes().begin());
  TALLY_RETURN_IF_ERROR(session.channel().Send(Memory{bytes.size()}, arena.fd()));
  return Message(Reply());
}

// The inputs of a group that an earlier process has left, as a new one's are.
void Clear(EmbeddedGroup& group) {
  for (std::uint32_t t = 0; t < group.shape().tensors.size(); ++t) {
    std::ranges::fill(group.memory(t).input, 0.0F);
    std::ranges::fill(group.memory(t).input16, std::uint16_t{0});
  }
}

// A call of the engine that other ranks take part in.
template <typename Make>
auto Call(Session& session, Engine& engine, const std::string& what, Make make) -> decltype(make()) {
  if (!session.BeginCall(&engine, what)) return session.Lost(what);
  auto result = make();
  session.EndCall();
  return result;
}

}  // namespace

Service::Service(EmbeddedBackend* backend, const Config& config)
    : backend_(backend),
      memory_cap_(config.worker.memory_cap_bytes),
      lossy_(config.compression.codec != "none" && config.compression.error_feedback) {}

Service::End Service::Serve(const std::shared_ptr<Session>& session) {
  groups_.clear();
  buffers_ = 0;
  memory_ = Mapping();
  memory_status_ = Status::Ok();
  left_ = false;
  came_back_ = stepped_;
  for (const auto& group : backend_->groups()) group->Reset();
  Status status = session->channel().Send(
      agent::Attached{backend_->workers(), backend_->servers(), backend_->local_rank(), backend_->epoch(), backend_->Describe()});
  while (status.ok() && !left_) {
    Result<Channel::Received> received = session->channel().Receive();
    status = received.ok() ? Handle(session, std::move(received).value()) : received.status();
  }
  if (!status.ok()) (void)session->channel().Send(Reply(status));  // it made no sense, or tally-worker stops
  session->Gone();
  session->channel().Close();
  memory_ = Mapping();
  if (left_) return {true, Status::Ok(), Status::Ok()};
  const bool gone = status.kind() == StatusKind::kUnavailable;  // it, or tally-worker's patience
  const Status turned_out = gone ? Status::Ok() : status;
  return {false, turned_out, Lost(*session, turned_out)};
}

// Between steps the next process takes this one's place. Standalone calls have no place: it could not tell which of
// them were made.
Status Service::Lost(const Session& session, const Status& turned_out) const {
  const auto lost = [&](const std::string& what) {
    if (turned_out.ok()) return session.Lost(what);
    return PeerLost(session.name() + " was turned out in the middle of " + what + ": " + turned_out.text());
  };
  for (const Attached& attached : groups_) {
    if (!attached.open) continue;
    const GroupShape& shape = attached.group->shape();
    return lost("step " + std::to_string(shape.step.value) + " of group " + attached.group->name());
  }
  return called_ ? lost("standalone calls, where none can take its place before a step ends") : Status::Ok();
}

Status Service::CheckMayCall() const {
  if (!came_back_) return Status::Ok();
  return InvalidArgument(
      "a standalone call by a training process that came back to its rank: the other ranks would take it for one that "
      "they make now. Leave out the calls that prepare the first step if a group's step is not 0, and end a step first");
}

std::uint64_t Service::MemoryOf(const DeclareMessage& message) const {
  std::uint64_t bytes = 0;
  for (const TensorSpec& tensor : message.tensors) {
    const bool half = tensor.dtype != DType::kFloat32;
    // Input and output, both in 16 bits, and the residual as it was and as the open step makes it.
    const std::uint64_t each = 8U + (half ? 4U : 0U) + (lossy_ || half ? 8U : 0U);
    if (tensor.elements.value > kMaxElements) return UINT64_MAX;
    bytes += tensor.elements.value * each;
    if (bytes > kMaxElements * 32) return UINT64_MAX;
  }
  return bytes;
}

Status Service::Handle(const std::shared_ptr<Session>& session, Channel::Received received) {
  if (std::holds_alternative<Memory>(received.message)) {
    TakeMemory(std::move(received));
    return Status::Ok();
  }
  return std::visit(
      [&](const auto& message) -> Status {
        using M = std::decay_t<decltype(message)>;
        if constexpr (std::is_same_v<M, Submit>) {
          return Handle(session, message);
        } else if constexpr (requires { Handle(message); }) {
          return Handle(message);
        } else if constexpr (requires { Answer(*session, message); }) {
          Result<Message> answer = Answer(*session, message);
          return session->channel().Send(answer.ok() ? *answer : Message(Reply(answer.status())));
        } else {
          return Corrupt(session->name() + " sent a message that is tally-worker's to send");
        }
      },
      received.message);
}

void Service::TakeMemory(Channel::Received received) {
  const std::uint64_t bytes = std::get<Memory>(received.message).bytes;
  memory_ = Mapping();
  memory_status_ = Status::Ok();
  if (bytes == 0) return;
  memory_status_ =
      bytes > memory_cap_ - charged_
          ? InvalidArgument("memory of " + std::to_string(bytes) + " bytes: of " + std::to_string(memory_cap_) +
                            " bytes (worker.memory_cap of tally-worker) " + std::to_string(charged_) + " are taken")
          : Status::Ok();
  if (!memory_status_.ok()) return;
  Result<Mapping> mapping = Mapping::Make(received.descriptor.Release(), bytes, true);
  memory_status_ = mapping.status();
  if (mapping.ok()) memory_ = std::move(mapping).value();
}

Status Service::Charge(std::uint64_t bytes) {
  if (bytes <= memory_cap_ - charged_) {
    charged_ += bytes;
    return Status::Ok();
  }
  const Status status =
      InvalidArgument("needs " + std::to_string(bytes) + " bytes, but of " + std::to_string(memory_cap_) +
                      " bytes (worker.memory_cap of tally-worker) " + std::to_string(charged_) + " are taken");
  engine().Abort(status);  // the other ranks wait for this one
  return status;
}

Result<Service::Attached*> Service::Find(std::uint32_t group, bool closed) {
  if (group >= groups_.size()) {
    return InvalidArgument("group " + std::to_string(group) + " of " + std::to_string(groups_.size()));
  }
  if (closed && groups_[group].open)
    return InvalidArgument("group " + groups_[group].group->name() + " has an open step");
  return &groups_[group];
}

// ---- groups
// ----------------------------------------------------------------------------------------------------------

// One that an earlier process declared; null: none.
Result<EmbeddedGroup*> Service::FindDeclared(const DeclareMessage& message) {
  const auto same = [&](const DeclareMessage& other) { return other.group == message.group; };
  const auto found = std::ranges::find_if(declarations_, same);
  if (found == declarations_.end()) return nullptr;
  EmbeddedGroup* const group = backend_->groups()[static_cast<std::size_t>(found - declarations_.begin())].get();
  const auto has = [&](const Attached& attached) { return attached.group == group; };
  if (std::ranges::any_of(groups_, has)) return InvalidArgument("group " + message.group + " is declared twice");
  const auto differs = [&](const std::string& what) {
    return Mismatch("group " + message.group + " is not what the rank's last training process declared: " + what);
  };
  if (message.tensors.size() != found->tensors.size()) {
    return differs("expected " + std::to_string(found->tensors.size()) + " tensors, got " +
                   std::to_string(message.tensors.size()));
  }
  for (std::size_t t = 0; t < message.tensors.size(); ++t) {
    const TensorSpec &was = found->tensors[t], &is = message.tensors[t];
    if (was == is) continue;
    const auto text = [](const TensorSpec& spec) {
      return spec.name + " (" + std::to_string(spec.elements.value) + " " + DTypeName(spec.dtype) + ")";
    };
    return differs("tensor " + std::to_string(t) + " was " + text(was) + ", is " + text(is) +
                   (text(was) == text(is) ? " of another shape" : ""));
  }
  if (message.buckets != found->buckets) return differs("other buckets");
  if (message.first_step != StepId{} && message.first_step != group->shape().step) {
    return differs("its next step is " + std::to_string(group->shape().step.value) + ", the first step declared now " +
                   std::to_string(message.first_step.value));
  }
  return group;
}

Result<Message> Service::Answer(Session& session, const DeclareMessage& message) {
  TALLY_ASSIGN_OR_RETURN(EmbeddedGroup * group, FindDeclared(message));
  if (group == nullptr) {
    GroupOptions options{message.group, message.buckets, message.first_step};
    TALLY_RETURN_IF_ERROR(CheckDeclaration(message.tensors, options));
    const std::uint64_t bytes = MemoryOf(message);
    TALLY_RETURN_IF_ERROR(Charge(bytes).WithContext("group " + message.group));
    const auto declare = [&] { return backend_->Declare(message.tensors, options); };
    const auto made = Call(session, engine(), "the declaration of group " + message.group, declare);
    if (!made.ok()) charged_ -= bytes;
    TALLY_RETURN_IF_ERROR(made.status());
    declarations_.push_back(message);
    group = backend_->groups().back().get();
  } else {
    Clear(*group);
  }
  const GroupShape& shape = group->shape();
  const std::vector<Region> regions = group->runtime().regions();
  TALLY_RETURN_IF_ERROR(SendRegions(session, regions));
  groups_.push_back({group, std::vector<bool>(shape.buckets.size(), false), false});
  Declared declared{shape.id, shape.step, shape.buckets, {}, backend_->Describe()};
  for (std::uint32_t t = 0; t < shape.tensors.size(); ++t) {
    const TensorMemory& memory = group->memory(t);
    const void* const input =
        memory.input.empty() ? static_cast<const void*>(memory.input16.data()) : memory.input.data();
    declared.tensors.push_back(
        {PlaceIn(regions, input), PlaceIn(regions, memory.output.data()), PlaceIn(regions, memory.output16.data())});
  }
  return Message(std::move(declared));
}

Status Service::Handle(const Keep& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, false));
  const GroupShape& shape = attached->group->shape();
  if (message.tensor >= shape.tensors.size()) return InvalidArgument("tensor " + std::to_string(message.tensor));
  attached->group->Keep(message.tensor);
  return Status::Ok();
}

// The engine's thread reads the rate once the step is open.
void Service::Open(Attached& attached, float learning_rate) {
  if (!std::exchange(attached.open, true)) attached.group->SetLearningRate(learning_rate);
}

Status Service::Handle(const std::shared_ptr<Session>& session, const Submit& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, false));
  if (message.bucket >= attached->submitted.size() || attached->submitted[message.bucket]) {
    return InvalidArgument("bucket " + std::to_string(message.bucket) + " of " +
                           std::to_string(attached->submitted.size()) +
                           " is not there, or was submitted before in this step");
  }
  Open(*attached, message.learning_rate);
  attached->submitted[message.bucket] = true;
  const auto ended = [session, group = message.group, bucket = message.bucket](const Status& status) {
    (void)session->channel().Send(BucketEnd{group, bucket, Reply(status)});
  };
  const auto ticket = attached->group->Submit(message.bucket, message.weight);
  if (ticket.ok()) {
    (*ticket)->completion.Then(ended);
  } else {
    ended(ticket.status());
  }
  return Status::Ok();
}

// Its end is told as that of every bucket.
Status Service::Handle(const GiveUp& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, false));
  if (message.step != attached->group->shape().step) return Status::Ok();  // that step has ended meanwhile
  if (message.bucket >= attached->submitted.size() || !attached->submitted[message.bucket]) {
    return InvalidArgument("bucket " + std::to_string(message.bucket) + " was not submitted");
  }
  TicketState* const ticket = attached->group->runtime().tickets[message.bucket].get();
  if (ticket != nullptr) (void)engine().GiveUp(ticket);
  return Status::Ok();
}

Status Service::Handle(const Refused& message) {
  if (came_back_) return Status::Ok();  // it may not make the call anyway
  called_ = true;
  engine().NoteRefusal(InvalidArgument(message.why));
  return Status::Ok();
}

Status Service::Handle(const Abort& message) {
  backend_->Abort(message.reason);
  return Status::Ok();
}

Result<Message> Service::Answer(Session& session, const EndStep& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, false));
  EmbeddedGroup& group = *attached->group;
  Open(*attached, message.learning_rate);
  const std::string what = "step " + std::to_string(group.shape().step.value) + " of group " + group.name();
  const auto end = [&] { return group.EndStep(message.vote, message.weight, message.loss_scale); };
  TALLY_ASSIGN_OR_RETURN(StepResult result, Call(session, engine(), what, end));
  attached->open = called_ = came_back_ = false;
  stepped_ = true;
  std::fill(attached->submitted.begin(), attached->submitted.end(), false);
  return Message(StepEnd{result.step, result.outcome, std::move(result.reason)});
}

Result<Message> Service::Answer(Session& session, const ExportState& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, true));
  TALLY_ASSIGN_OR_RETURN(const std::vector<std::byte> state, attached->group->ExportState());
  return SendBytes(session, state);
}

Result<Message> Service::Answer(Session&, const ImportState& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, true));
  TALLY_RETURN_IF_ERROR(memory_status_);
  // A copy, as the process could change it while it is read.
  const std::vector<std::byte> state(memory_.bytes().begin(), memory_.bytes().end());
  return Message(Reply(attached->group->ImportState(state)));
}

Result<Message> Service::Answer(Session& session, const Residual& message) {
  TALLY_ASSIGN_OR_RETURN(Attached * attached, Find(message.group, true));
  if (message.tensor >= attached->group->shape().tensors.size()) {
    return InvalidArgument("tensor " + std::to_string(message.tensor));
  }
  return SendBytes(session, std::as_bytes(attached->group->Residual(message.tensor)));
}

// ---- collectives
// -----------------------------------------------------------------------------------------------------

Result<Message> Service::Answer(Session& session, const Collective& message) {
  const CollectiveShape& shape = message.shape;
  const std::uint32_t workers = backend_->workers();
  const bool reduces = shape.kind == CollectiveKind::kAllReduce || shape.kind == CollectiveKind::kReduceScatter;
  if (shape.elements > kMaxElements || shape.root >= workers || (reduces && !Reducible(shape.dtype, shape.op))) {
    return InvalidArgument("a collective that does not exist");
  }
  const Extent extent = ExtentOf(shape, workers);
  TALLY_RETURN_IF_ERROR(CheckMayCall());
  if (extent.bytes() != 0 && !memory_status_.ok()) {
    engine().Abort(memory_status_);  // the other ranks wait for this one
    return memory_status_;
  }
  if (extent.bytes() > memory_.bytes().size()) {
    return InvalidArgument("a collective in " + std::to_string(memory_.bytes().size()) + " bytes needs " +
                           std::to_string(extent.bytes()));
  }
  std::byte* const in = memory_.bytes().data();
  const bool gradients = shape.kind == CollectiveKind::kAllReduce && shape.dtype == DType::kFloat32 &&
                         (shape.op == ReduceOp::kSum || shape.op == ReduceOp::kMean);
  if (gradients && !sums_.contains({shape.elements, shape.op})) {
    TALLY_RETURN_IF_ERROR(Charge(shape.elements * 8).WithContext("a standalone all-reduce"));
    sums_.emplace(shape.elements, shape.op);
  }
  called_ = true;
  const auto make = [&] {
    if (!gradients) return backend_->Collective(shape, in, in + extent.out_offset);
    return backend_->AllReduce(std::span(reinterpret_cast<float*>(in), shape.elements), shape.op);
  };
  return Message(Reply(Call(session, engine(), "a collective call", make)));
}

Result<Message> Service::Answer(Session& session, const MakeBuffer& message) {
  if (buffers_ == buffer_elements_.size()) {
    if (message.elements > kMaxElements) return InvalidArgument("a buffer of more than 2^40 elements");
    TALLY_RETURN_IF_ERROR(Charge(message.elements * 8).WithContext("a buffer"));
    const auto make = [&] { return backend_->MakeBuffer(message.elements); };
    const auto made = Call(session, engine(), "the making of a buffer", make);
    if (!made.ok()) charged_ -= message.elements * 8;
    TALLY_RETURN_IF_ERROR(made.status());
    buffer_elements_.push_back(message.elements);
  } else if (buffer_elements_[buffers_] != message.elements) {
    return Mismatch("buffer " + std::to_string(buffers_) + " had " + std::to_string(buffer_elements_[buffers_]) +
                    " elements when the rank's last training process made it, now " +
                    std::to_string(message.elements));
  } else {
    std::ranges::fill(backend_->buffer(buffers_).arena_input(0), 0.0F);
  }
  GroupRuntime& runtime = backend_->buffer(buffers_);
  const std::vector<Region> regions = runtime.regions();
  TALLY_RETURN_IF_ERROR(SendRegions(session, regions));
  ++buffers_;
  return Message(Buffer{PlaceIn(regions, runtime.arena_input(0).data()), PlaceIn(regions, runtime.result(0))});
}

Result<Message> Service::Answer(Session& session, const ReduceBuffer& message) {
  if (message.number >= buffers_) return InvalidArgument("buffer " + std::to_string(message.number));
  if (message.op != ReduceOp::kSum && message.op != ReduceOp::kMean) return InvalidArgument("a buffer is added up");
  TALLY_RETURN_IF_ERROR(CheckMayCall());
  called_ = true;
  const auto make = [&] { return backend_->AllReduce(message.number, message.op); };
  return Message(Reply(Call(session, engine(), "a collective call", make)));
}

Result<Message> Service::Answer(Session&, const AskStats&) { return Message(Stats{backend_->Stats()}); }

Result<Message> Service::Answer(Session&, const Leave&) {
  left_ = true;
  return Message(Reply(backend_->Leave()));
}

}  // namespace tally::agent
