#include "worker/agent/message.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/envelope.h"
#include "schemas/agent.capnp.h"

namespace tally::agent {
namespace {

using Root = schema::AgentMessage;

unsigned Size(std::size_t size) { return static_cast<unsigned>(size); }

void Write(const Place& from, schema::Place::Builder to) {
  to.setRegion(from.region);
  to.setOffset(from.offset);
}

void Write(const Reply& from, schema::Outcome::Builder to) {
  to.setKind(static_cast<std::uint8_t>(from.kind));
  to.setText(from.text);
}

template <typename Builder>
void WriteWeight(const StepWeight& from, Builder to) {
  to.setFactor(from.factor);
  to.setDeclared(from.declared);
}

struct Writer {
  Root::Builder to;

  void operator()(const Body& m) { to.setBody(m.bytes); }
  void operator()(const Memory& m) { to.setMemory(m.bytes); }
  void operator()(const Attach& m) {
    auto attach = to.initAttach();
    attach.setProtocol(m.protocol);
    attach.setVersion(m.version);
    attach.setConfig(m.config);
  }
  void operator()(const DeclareMessage& m) {
    const std::vector<std::byte> bytes = EncodeControl(m);
    std::memcpy(to.initDeclare(Size(bytes.size())).begin(), bytes.data(), bytes.size());
  }
  void operator()(const Keep& m) { SetTensor(m, to.initKeep()); }
  void operator()(const Residual& m) { SetTensor(m, to.initResidual()); }
  void operator()(const Submit& m) {
    auto submit = to.initSubmit();
    SetBucket(m, submit.initBucket());
    WriteWeight(m.weight, submit);
    submit.setLearningRate(m.learning_rate);
  }
  void operator()(const EndStep& m) {
    auto end = to.initEndStep();
    end.setGroup(m.group);
    end.setSkip(m.vote == Vote::kSkip);
    WriteWeight(m.weight, end);
    end.setLearningRate(m.learning_rate);
    end.setLossScale(m.loss_scale);
  }
  void operator()(const GiveUp& m) {
    auto give_up = to.initGiveUp();
    SetBucket(m, give_up.initBucket());
    give_up.setStep(m.step.value);
  }
  void operator()(const Collective& m) {
    auto collective = to.initCollective();
    collective.setKind(static_cast<std::uint8_t>(m.shape.kind));
    collective.setDtype(static_cast<std::uint8_t>(m.shape.dtype));
    collective.setOp(static_cast<std::uint8_t>(m.shape.op));
    collective.setRoot(m.shape.root);
    collective.setElements(m.shape.elements);
  }
  void operator()(const MakeBuffer& m) { to.setMakeBuffer(m.elements); }
  void operator()(const ReduceBuffer& m) {
    auto reduce = to.initReduceBuffer();
    reduce.setNumber(m.number);
    reduce.setOp(static_cast<std::uint8_t>(m.op));
  }
  void operator()(const ExportState& m) { to.setExportState(m.group); }
  void operator()(const ImportState& m) { to.setImportState(m.group); }
  void operator()(const AskStats&) { to.setAskStats(); }
  void operator()(const Leave&) { to.setLeave(); }
  void operator()(const Refused& m) { to.setRefused(m.why); }
  void operator()(const Abort& m) { to.setAbort(m.reason); }
  void operator()(const Attached& m) {
    auto attached = to.initAttached();
    attached.setWorkers(m.workers);
    attached.setServers(m.servers);
    attached.setLocalRank(m.local_rank);
    attached.setEpoch(m.epoch.value);
    attached.setDescription(m.description);
  }
  void operator()(const Declared& m) {
    auto declared = to.initDeclared();
    declared.setId(m.id.value);
    declared.setStep(m.step.value);
    auto buckets = declared.initBuckets(Size(m.buckets.size()));
    for (unsigned b = 0; b < buckets.size(); ++b) {
      auto tensors = buckets[b].initTensors(Size(m.buckets[b].size()));
      for (unsigned i = 0; i < tensors.size(); ++i) tensors.set(i, m.buckets[b][i]);
    }
    auto memory = declared.initMemory(Size(m.tensors.size()));
    for (unsigned t = 0; t < memory.size(); ++t) {
      Write(m.tensors[t].input, memory[t].initInput());
      Write(m.tensors[t].output, memory[t].initOutput());
      Write(m.tensors[t].output16, memory[t].initOutput16());
    }
    declared.setDescription(m.description);
  }
  void operator()(const BucketEnd& m) {
    auto end = to.initBucketEnd();
    SetBucket(m, end.initBucket());
    Write(m.reply, end.initOutcome());
  }
  void operator()(const StepEnd& m) {
    auto end = to.initStepEnd();
    end.setStep(m.step.value);
    end.setSkipped(m.outcome == Outcome::kSkipped);
    end.setReason(m.reason);
  }
  void operator()(const Buffer& m) {
    auto buffer = to.initBuffer();
    Write(m.input, buffer.initInput());
    Write(m.output, buffer.initOutput());
  }
  void operator()(const Stats& m) {
    auto stats = to.initStats();
    stats.setBytesSent(m.stats.bytes_sent);
    stats.setBytesReceived(m.stats.bytes_received);
    stats.setFramesSent(m.stats.frames_sent);
    stats.setFramesReceived(m.stats.frames_received);
    stats.setStepsCommitted(m.stats.steps_committed);
    stats.setStepsSkipped(m.stats.steps_skipped);
    stats.setPoolAllocations(m.stats.pool_allocations);
    stats.setEngineCpuSeconds(m.stats.engine_cpu_s);
    stats.setSaturated(m.stats.saturated);
    stats.setResidualL1(m.stats.residual_l1);
    stats.setResidualBytes(m.stats.residual_bytes);
    stats.setConnections(m.stats.connections);
    stats.setMeasuredBytesPerSecond(m.stats.measured_bytes_per_s);
  }
  void operator()(const Reply& m) { Write(m, to.initReply()); }

  template <typename M>
  static void SetTensor(const M& m, schema::Tensor::Builder tensor) {
    tensor.setGroup(m.group);
    tensor.setTensor(m.tensor);
  }
  template <typename M>
  static void SetBucket(const M& m, schema::Bucket::Builder bucket) {
    bucket.setGroup(m.group);
    bucket.setBucket(m.bucket);
  }
};

// Collects the first fault.
class Reader {
 public:
  Status status;

  bool Check(bool good, const char* field) {
    if (!good && status.ok())
      status = Corrupt(std::string("message between training process and tally-worker: ") + field);
    return good;
  }
  template <typename Enum>
  Enum Value(std::uint8_t from, Enum last, const char* field) {
    return Check(from <= static_cast<std::uint8_t>(last), field) ? static_cast<Enum>(from) : Enum{};
  }
  // For people: what cannot be printed becomes '?'.
  static std::string Words(capnp::Text::Reader from) {
    std::string text(from.cStr(), from.size());
    std::ranges::replace_if(
        text, [](char c) { return (c < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }, '?');
    return text;
  }

  static Place Read(schema::Place::Reader from) { return {from.getRegion(), from.getOffset()}; }
  Reply Read(schema::Outcome::Reader from) {
    Reply reply;
    reply.kind = Value(from.getKind(), StatusKind::kInternal, "kind of a status");
    reply.text = Words(from.getText());
    return reply;
  }
  template <typename From>
  StepWeight Weight(From from) {
    // A factor that overflowed makes gradients that are not finite, for which the step is skipped.
    Check(std::isfinite(from.getDeclared()) && from.getDeclared() >= 0, "weight");
    return {from.getFactor(), from.getDeclared()};
  }
  float Rate(float from) {
    Check(!(from < 0), "learning rate");
    return from;
  }

  Message Read(schema::Attach::Reader from) {
    std::string config(from.getConfig().cStr(), from.getConfig().size());
    Check(config.find('\0') == std::string::npos, "configuration");
    return Attach{from.getProtocol(), Words(from.getVersion()), std::move(config)};
  }
  Message ReadDeclare(capnp::Data::Reader from) {
    auto control = DecodeControl(std::as_bytes(std::span(from.begin(), from.size())));
    if (!control.ok()) {
      status = control.status();
      return DeclareMessage{};
    }
    auto* const declare = std::get_if<DeclareMessage>(&*control);
    return Check(declare != nullptr, "a declaration of another kind") ? std::move(*declare) : DeclareMessage{};
  }
  Message Read(schema::Submit::Reader from) {
    const auto bucket = from.getBucket();
    return Submit{bucket.getGroup(), bucket.getBucket(), Weight(from), Rate(from.getLearningRate())};
  }
  static Message Read(schema::GiveUp::Reader from) {
    return GiveUp{from.getBucket().getGroup(), from.getBucket().getBucket(), StepId(from.getStep())};
  }
  Message Read(schema::EndStep::Reader from) {
    Check(std::isfinite(from.getLossScale()) && from.getLossScale() > 0, "loss scale");
    return EndStep{from.getGroup(), from.getSkip() ? Vote::kSkip : Vote::kCommit, Weight(from),
                   Rate(from.getLearningRate()), from.getLossScale()};
  }
  Message Read(schema::Collective::Reader from) {
    CollectiveShape shape;
    shape.kind = Value(from.getKind(), kLastCollectiveKind, "kind of a collective");
    shape.dtype = Value(from.getDtype(), kLastDType, "type of a collective");
    shape.op = Value(from.getOp(), kLastReduceOp, "operation of a collective");
    shape.root = from.getRoot();
    shape.elements = from.getElements();
    return Collective{shape};
  }
  Message Read(schema::Declared::Reader from) {
    Declared declared{GroupId(from.getId()), StepId(from.getStep()), {}, {}, Words(from.getDescription())};
    for (const auto bucket : from.getBuckets()) {
      std::vector<std::uint32_t>& tensors = declared.buckets.emplace_back();
      for (const std::uint32_t tensor : bucket.getTensors()) tensors.push_back(tensor);
    }
    for (const auto places : from.getMemory()) {
      declared.tensors.push_back({Read(places.getInput()), Read(places.getOutput()), Read(places.getOutput16())});
    }
    return declared;
  }
  Message Read(schema::BucketEnd::Reader from) {
    return BucketEnd{from.getBucket().getGroup(), from.getBucket().getBucket(), Read(from.getOutcome())};
  }
  Message Read(schema::Stats::Reader from) {
    ClientStats stats;
    stats.bytes_sent = from.getBytesSent();
    stats.bytes_received = from.getBytesReceived();
    stats.frames_sent = from.getFramesSent();
    stats.frames_received = from.getFramesReceived();
    stats.steps_committed = from.getStepsCommitted();
    stats.steps_skipped = from.getStepsSkipped();
    stats.pool_allocations = from.getPoolAllocations();
    stats.engine_cpu_s = from.getEngineCpuSeconds();
    stats.saturated = from.getSaturated();
    stats.residual_l1 = from.getResidualL1();
    stats.residual_bytes = from.getResidualBytes();
    stats.connections = from.getConnections();
    stats.measured_bytes_per_s = from.getMeasuredBytesPerSecond();
    return Stats{stats};
  }

  Message Read(Root::Reader from) {
    switch (from.which()) {
      case Root::BODY:
        return Body{from.getBody()};
      case Root::MEMORY:
        return Memory{from.getMemory()};
      case Root::ATTACH:
        return Read(from.getAttach());
      case Root::DECLARE:
        return ReadDeclare(from.getDeclare());
      case Root::KEEP:
        return Keep{from.getKeep().getGroup(), from.getKeep().getTensor()};
      case Root::SUBMIT:
        return Read(from.getSubmit());
      case Root::END_STEP:
        return Read(from.getEndStep());
      case Root::GIVE_UP:
        return Read(from.getGiveUp());
      case Root::COLLECTIVE:
        return Read(from.getCollective());
      case Root::MAKE_BUFFER:
        return MakeBuffer{from.getMakeBuffer()};
      case Root::REDUCE_BUFFER:
        return ReduceBuffer{from.getReduceBuffer().getNumber(),
                            Value(from.getReduceBuffer().getOp(), kLastReduceOp, "operation of a buffer")};
      case Root::EXPORT_STATE:
        return ExportState{from.getExportState()};
      case Root::IMPORT_STATE:
        return ImportState{from.getImportState()};
      case Root::RESIDUAL:
        return Residual{from.getResidual().getGroup(), from.getResidual().getTensor()};
      case Root::ASK_STATS:
        return AskStats{};
      case Root::LEAVE:
        return Leave{};
      case Root::REFUSED:
        return Refused{Words(from.getRefused())};
      case Root::ABORT:
        return Abort{Words(from.getAbort())};
      case Root::ATTACHED: {
        const auto attached = from.getAttached();
        return Attached{attached.getWorkers(), attached.getServers(), attached.getLocalRank(), EpochId(attached.getEpoch()),
                        Words(attached.getDescription())};
      }
      case Root::DECLARED:
        return Read(from.getDeclared());
      case Root::BUCKET_END:
        return Read(from.getBucketEnd());
      case Root::STEP_END:
        return StepEnd{StepId(from.getStepEnd().getStep()),
                       from.getStepEnd().getSkipped() ? Outcome::kSkipped : Outcome::kCommitted,
                       Words(from.getStepEnd().getReason())};
      case Root::BUFFER:
        return Buffer{Read(from.getBuffer().getInput()), Read(from.getBuffer().getOutput())};
      case Root::STATS:
        return Read(from.getStats());
      case Root::REPLY:
        return Read(from.getReply());
    }
    status = Unsupported("message of kind " + std::to_string(static_cast<unsigned>(from.which())) +
                         " between training process and tally-worker, unknown to this version");
    return Reply{};
  }
};

}  // namespace

Extent ExtentOf(const CollectiveShape& shape, std::uint32_t workers) {
  const std::uint64_t block = shape.elements * DTypeBytes(shape.dtype), all = block * workers;
  const auto apart = [](std::uint64_t in, std::uint64_t out) { return Extent{in, out, (in + 63) / 64 * 64}; };
  switch (shape.kind) {
    case CollectiveKind::kAllGather:
      return apart(block, all);
    case CollectiveKind::kReduceScatter:
      return apart(all, block);
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBroadcast:
      break;
  }
  return {block, block, 0};
}

std::vector<std::byte> Encode(const Message& message) {
  capnp::MallocMessageBuilder builder(64);
  std::visit(Writer{builder.initRoot<Root>()}, message);
  const auto words = capnp::messageToFlatArray(builder);
  const auto bytes = std::as_bytes(std::span(words.begin(), words.size()));
  return {bytes.begin(), bytes.end()};
}

Result<Message> Decode(std::span<const std::byte> bytes) {
  Message message;
  TALLY_RETURN_IF_ERROR(ReadEnvelope<Root>(bytes, kMaxMessageBytes, [&](Root::Reader from) {
    Reader reader;
    message = reader.Read(from);
    return reader.status;
  }));
  return message;
}

}  // namespace tally::agent
