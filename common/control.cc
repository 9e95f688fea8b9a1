// Control messages to and from schemas/control.capnp. A message that a newer program added comes back as kUnsupported,
// which a receiver may ignore; everything else that is wrong is kCorrupt.
#include "common/control.h"

#include <capnp/message.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/envelope.h"
#include "common/schedule/topology.h"
#include "schemas/control.capnp.h"

namespace tally {
namespace {

constexpr std::size_t kMaxNameBytes = 128;
constexpr std::size_t kSmallMessageWords = 64;  // a step's messages
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 10;
constexpr std::uint64_t kMaxElements = std::uint64_t{1} << 40;

unsigned Size(std::size_t size) { return static_cast<unsigned>(size); }

// Collects the first fault of a message, so that reading stays one line per field.
class Checker {
 public:
  bool Check(bool good, std::string_view field) {
    if (!good && status_.ok()) status_ = Corrupt("control message: " + std::string(field));
    return good;
  }
  std::string Name(capnp::Text::Reader from, std::string_view field) {
    const std::string_view text(from.cStr(), from.size());
    return Check(IsPrintableName(text), field) ? std::string(text) : std::string();
  }
  // For people: what cannot be printed becomes '?'.
  std::string Words(capnp::Text::Reader from, std::string_view field) {
    if (!Check(from.size() <= kMaxTextBytes, field)) return {};
    std::string text(from.cStr(), from.size());
    std::ranges::replace_if(text, [](char c) { return (c < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }, '?');
    return text;
  }
  // For a parser: any bytes but zero.
  std::string Document(capnp::Text::Reader from, std::string_view field) {
    std::string text(from.cStr(), from.size());
    return Check(text.find('\0') == std::string::npos, field) ? text : std::string();
  }
  template <typename Enum>
  Enum Value(std::uint8_t from, Enum last, std::string_view field) {
    return Check(from <= static_cast<std::uint8_t>(last), field) ? static_cast<Enum>(from) : Enum{};
  }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

template <typename List>
void WriteNames(const std::vector<std::string>& from, List to) {
  for (unsigned i = 0; i < to.size(); ++i) to.set(i, from[i]);
}

std::vector<std::string> ReadNames(capnp::List<capnp::Text>::Reader from, std::string_view field, Checker& check) {
  std::vector<std::string> names;
  names.reserve(from.size());
  for (const auto name : from) names.push_back(check.Name(name, field));
  return names;
}

std::string ReadSwitchPath(capnp::Text::Reader from, std::string_view field, Checker& check) {
  const std::string_view path(from.cStr(), from.size());
  return check.Check(CheckSwitchPath(path).ok(), field) ? std::string(path) : std::string();
}

void WriteTensors(const std::vector<TensorSpec>& from, capnp::List<schema::TensorSpec>::Builder to) {
  for (unsigned i = 0; i < to.size(); ++i) {
    to[i].setName(from[i].name);
    to[i].setElements(from[i].elements.value);
    to[i].setDtype(static_cast<std::uint8_t>(from[i].dtype));
    if (from[i].shape.empty()) continue;
    auto shape = to[i].initShape(Size(from[i].shape.size()));
    for (unsigned d = 0; d < shape.size(); ++d) shape.set(d, from[i].shape[d]);
  }
}

std::vector<TensorSpec> ReadTensors(capnp::List<schema::TensorSpec>::Reader from, Checker& check) {
  std::vector<TensorSpec> tensors;
  tensors.reserve(from.size());
  for (const auto tensor : from) {
    check.Check(tensor.getElements() <= kMaxElements, "tensor elements");
    tensors.push_back({check.Name(tensor.getName(), "tensor name"), ElementCount{tensor.getElements()},
                       check.Value(tensor.getDtype(), DType::kBFloat16, "tensor dtype")});
    if (!check.Check(tensor.getShape().size() <= kMaxDimensions, "tensor dimensions")) return {};
    for (const std::uint64_t dimension : tensor.getShape()) tensors.back().shape.push_back(dimension);
    check.Check(ShapeFits(tensors.back()), "tensor shape");
  }
  return tensors;
}

double ReadRate(double value, std::string_view field, Checker& check) {
  check.Check(std::isfinite(value) && value >= 0, field);
  return value;
}

void Write(const JoinMessage& from, schema::Join::Builder to) {
  to.setProtocol(from.protocol);
  to.setVersion(from.version);
  to.setRole(static_cast<std::uint8_t>(from.role));
  to.setIndex(from.index);
  to.setWorld(from.world);
  to.setJob(from.job);
  to.setIncarnation(from.incarnation);
  to.setHost(from.host);
  to.setNode(from.node);
  to.setPid(from.pid);
  WriteNames(from.endpoints, to.initEndpoints(Size(from.endpoints.size())));
  to.setConfigDigest(from.config_digest);
  to.setConfigText(from.config_text);
  to.setNicBytesPerSecond(from.nic_bytes_per_s);
  to.setNic(from.nic);
  to.setSwitchPath(from.switch_path);
}

JoinMessage Read(schema::Join::Reader from, Checker& check) {
  JoinMessage to;
  to.protocol = from.getProtocol();
  to.version = check.Name(from.getVersion(), "join version");
  to.role = check.Value(from.getRole(), Role::kServer, "join role");
  to.index = from.getIndex();
  to.world = from.getWorld();
  to.job = check.Name(from.getJob(), "join job");
  to.incarnation = from.getIncarnation();
  to.host = check.Name(from.getHost(), "join host");
  to.node = check.Name(from.getNode(), "join node");
  to.pid = from.getPid();
  to.endpoints = ReadNames(from.getEndpoints(), "join endpoint", check);
  to.config_digest = from.getConfigDigest();
  to.config_text = check.Document(from.getConfigText(), "join configuration");
  to.nic_bytes_per_s = ReadRate(from.getNicBytesPerSecond(), "join NIC", check);
  to.nic = check.Name(from.getNic(), "join NIC's name");
  to.switch_path = ReadSwitchPath(from.getSwitchPath(), "join switch path", check);
  return to;
}

void Write(const FailureMessage& from, schema::Failure::Builder to) {
  to.setKind(static_cast<std::uint8_t>(from.kind));
  to.setText(from.text);
  to.setRole(static_cast<std::uint8_t>(from.role));
  to.setIndex(from.index);
  to.setIsMember(from.is_member);
}

FailureMessage Read(schema::Failure::Reader from, Checker& check) {
  FailureMessage to;
  to.kind = check.Value(from.getKind(), StatusKind::kInternal, "failure kind");
  check.Check(to.kind != StatusKind::kOk, "failure kind");
  to.text = check.Words(from.getText(), "failure text");
  to.is_member = from.getIsMember();
  to.role = check.Value(from.getRole(), Role::kServer, "failure role");
  to.index = from.getIndex();
  return to;
}

void Write(const Member& from, schema::Member::Builder to) {
  to.setRole(static_cast<std::uint8_t>(from.role));
  to.setIndex(from.index);
  to.setPosition(from.position.value);
  to.setIncarnation(from.incarnation);
  to.setHost(from.host);
  to.setNode(from.node);
  to.setPid(from.pid);
  WriteNames(from.endpoints, to.initEndpoints(Size(from.endpoints.size())));
  to.setNicBytesPerSecond(from.nic_bytes_per_s);
  to.setSwitchPath(from.switch_path);
}

Member Read(schema::Member::Reader from, Checker& check) {
  Member to;
  to.role = check.Value(from.getRole(), Role::kServer, "member role");
  to.index = from.getIndex();
  to.position = Position{from.getPosition()};
  to.incarnation = from.getIncarnation();
  to.host = check.Name(from.getHost(), "member host");
  to.node = check.Name(from.getNode(), "member node");
  to.pid = from.getPid();
  to.endpoints = ReadNames(from.getEndpoints(), "member endpoint", check);
  to.nic_bytes_per_s = ReadRate(from.getNicBytesPerSecond(), "member NIC", check);
  to.switch_path = ReadSwitchPath(from.getSwitchPath(), "member switch path", check);
  return to;
}

void Write(const EpochMessage& from, schema::Epoch::Builder to) {
  to.setEpoch(from.epoch.value);
  to.setJobHash(from.job_hash);
  to.setJob(from.job);
  auto members = to.initMembers(Size(from.members.size()));
  for (unsigned i = 0; i < members.size(); ++i) Write(from.members[i], members[i]);
  to.setConfigText(from.config_text);
}

EpochMessage Read(schema::Epoch::Reader from, Checker& check) {
  EpochMessage to;
  to.epoch = EpochId{from.getEpoch()};
  to.job_hash = from.getJobHash();
  to.job = check.Name(from.getJob(), "epoch job");
  for (const auto member : from.getMembers()) to.members.push_back(Read(member, check));
  to.config_text = check.Document(from.getConfigText(), "epoch configuration");
  return to;
}

void Write(const DeclareMessage& from, schema::Declare::Builder to) {
  to.setGroup(from.group);
  WriteTensors(from.tensors, to.initTensors(Size(from.tensors.size())));
  auto buckets = to.initBuckets(Size(from.buckets.size()));
  for (unsigned i = 0; i < buckets.size(); ++i) {
    std::string joined;
    for (const std::string& name : from.buckets[i]) joined.append(joined.empty() ? "" : "\n").append(name);
    buckets.set(i, joined);
  }
  to.setFirstStep(from.first_step.value);
}

DeclareMessage Read(schema::Declare::Reader from, Checker& check) {
  DeclareMessage to;
  to.group = check.Name(from.getGroup(), "declare group");
  to.tensors = ReadTensors(from.getTensors(), check);
  for (const TensorSpec& tensor : to.tensors) check.Check(!tensor.name.empty(), "tensor name");
  for (const auto joined : from.getBuckets()) {
    std::vector<std::string>& bucket = to.buckets.emplace_back();
    std::string_view rest(joined.cStr(), joined.size());
    while (!rest.empty()) {
      const std::string_view name = rest.substr(0, rest.find('\n'));
      if (!check.Check(!name.empty() && IsPrintableName(name), "bucket's tensor name")) return to;
      bucket.emplace_back(name);
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    }
  }
  to.first_step = StepId{from.getFirstStep()};
  return to;
}

void Write(const LayoutMessage& from, schema::GroupLayout::Builder to) {
  to.setGroup(from.group.value);
  to.setName(from.name);
  to.setEpoch(from.epoch.value);
  WriteTensors(from.tensors, to.initTensors(Size(from.tensors.size())));
  auto buckets = to.initBuckets(Size(from.buckets.size()));
  for (unsigned i = 0; i < buckets.size(); ++i) {
    auto tensors = buckets[i].initTensors(Size(from.buckets[i].size()));
    for (unsigned j = 0; j < tensors.size(); ++j) tensors.set(j, from.buckets[i][j]);
  }
  to.setExchange(static_cast<std::uint8_t>(from.exchange));
  to.setSchedule(from.schedule);
  auto owners = to.initOwners(Size(2 * from.owners.size()));
  for (std::size_t u = 0; u < from.owners.size(); ++u) {
    owners[2 * u] = static_cast<capnp::byte>(from.owners[u] & 0xFF);
    owners[2 * u + 1] = static_cast<capnp::byte>(from.owners[u] >> 8);
  }
  auto owner_list = to.initOwnerList(Size(from.owner_list.size()));
  for (unsigned i = 0; i < owner_list.size(); ++i) {
    owner_list[i].setRole(static_cast<std::uint8_t>(from.owner_list[i].role));
    owner_list[i].setIndex(from.owner_list[i].index);
  }
  to.setCodecs(kj::arrayPtr(from.codecs.data(), from.codecs.size()));
  to.setFirstStep(from.first_step.value);
}

LayoutMessage Read(schema::GroupLayout::Reader from, Checker& check) {
  LayoutMessage to;
  to.group = GroupId{from.getGroup()};
  to.name = check.Name(from.getName(), "layout group");
  to.epoch = EpochId{from.getEpoch()};
  to.tensors = ReadTensors(from.getTensors(), check);
  for (const auto bucket : from.getBuckets()) {
    std::vector<std::uint32_t>& indices = to.buckets.emplace_back();
    for (const std::uint32_t index : bucket.getTensors()) {
      check.Check(index < to.tensors.size(), "layout bucket's tensor index");
      indices.push_back(index);
    }
  }
  to.exchange = check.Value(from.getExchange(), ExchangeKind::kSchedule, "layout exchange");
  to.schedule = check.Name(from.getSchedule(), "layout schedule");
  for (const auto owner : from.getOwnerList()) {
    to.owner_list.push_back({check.Value(owner.getRole(), Role::kServer, "layout owner's role"), owner.getIndex()});
  }
  const auto owners = from.getOwners();
  check.Check(owners.size() % 2 == 0, "layout owners");
  to.owners.resize(owners.size() / 2);
  for (std::size_t u = 0; u < to.owners.size(); ++u) {
    to.owners[u] = static_cast<std::uint16_t>(owners[2 * u] | owners[2 * u + 1] << 8);
    check.Check(to.owners[u] < to.owner_list.size(), "layout owners");
  }
  const auto codecs = from.getCodecs();
  to.codecs.assign(codecs.begin(), codecs.end());
  to.first_step = StepId{from.getFirstStep()};
  return to;
}

void Write(const PreparedMessage& from, schema::Prepared::Builder to) {
  to.setGroup(from.group.value);
  to.setStep(from.step.value);
  to.setEpoch(from.epoch.value);
  to.setNonFinite(from.non_finite);
  to.setSkipVote(from.skip_vote);
  to.setNote(from.note);
  to.setLossScale(from.loss_scale);
  to.setSharedState(from.shared_state);
  to.setLearningRate(from.learning_rate);
}

PreparedMessage Read(schema::Prepared::Reader from, Checker& check) {
  check.Check(std::isfinite(from.getLossScale()) && from.getLossScale() > 0, "prepared loss scale");
  check.Check(std::isfinite(from.getLearningRate()) && from.getLearningRate() >= 0, "prepared learning rate");
  return {GroupId{from.getGroup()}, StepId{from.getStep()}, EpochId{from.getEpoch()}, from.getNonFinite(),
          from.getSkipVote(),       check.Words(from.getNote(), "prepared note"), from.getLossScale(),
          from.getSharedState(),    from.getLearningRate()};
}

void Write(const VerdictMessage& from, schema::Verdict::Builder to) {
  to.setGroup(from.group.value);
  to.setStep(from.step.value);
  to.setEpoch(from.epoch.value);
  to.setCommit(from.commit);
  to.setReason(from.reason);
}

VerdictMessage Read(schema::Verdict::Reader from, Checker& check) {
  return {GroupId{from.getGroup()}, StepId{from.getStep()}, EpochId{from.getEpoch()}, from.getCommit(),
          check.Words(from.getReason(), "verdict reason")};
}

std::uint32_t ReadConnections(std::uint32_t connections, Checker& check) {
  check.Check(connections >= 1 && connections <= kMaxLinkConnections, "number of connections");
  return connections;
}

void Write(const MeasuredMessage& from, schema::Measured::Builder to) {
  to.setBytesPerSecond(from.bytes_per_s);
  to.setConnections(from.connections);
}

MeasuredMessage Read(schema::Measured::Reader from, Checker& check) {
  return {ReadRate(from.getBytesPerSecond(), "measured rate", check), ReadConnections(from.getConnections(), check)};
}

ControlMessage Read(schema::ControlMessage::Reader from, Checker& check, Status* unknown) {
  switch (from.which()) {
    case schema::ControlMessage::JOIN: return Read(from.getJoin(), check);
    case schema::ControlMessage::REFUSED: return RefusedMessage{Read(from.getRefused(), check)};
    case schema::ControlMessage::WAITING: return WaitingMessage{check.Words(from.getWaiting(), "waiting")};
    case schema::ControlMessage::EPOCH: return Read(from.getEpoch(), check);
    case schema::ControlMessage::DECLARE: return Read(from.getDeclare(), check);
    case schema::ControlMessage::LAYOUT: return Read(from.getLayout(), check);
    case schema::ControlMessage::PREPARED: return Read(from.getPrepared(), check);
    case schema::ControlMessage::VERDICT: return Read(from.getVerdict(), check);
    case schema::ControlMessage::HEARTBEAT: return HeartbeatMessage{from.getHeartbeat()};
    case schema::ControlMessage::FAILURE: return Read(from.getFailure(), check);
    case schema::ControlMessage::LEAVE: return LeaveMessage{check.Words(from.getLeave(), "leave")};
    case schema::ControlMessage::RELOAD: return ReloadMessage{check.Document(from.getReload(), "reload")};
    case schema::ControlMessage::MEASURED: return Read(from.getMeasured(), check);
    case schema::ControlMessage::LINKS: return LinksMessage{ReadConnections(from.getLinks().getConnections(), check)};
  }
  *unknown = Unsupported("control message of kind " + std::to_string(static_cast<unsigned>(from.which())) +
                         ", unknown to this version");
  return HeartbeatMessage{};
}

struct Writer {
  schema::ControlMessage::Builder to;

  void operator()(const JoinMessage& m) { Write(m, to.initJoin()); }
  void operator()(const RefusedMessage& m) { Write(m.failure, to.initRefused()); }
  void operator()(const WaitingMessage& m) { to.setWaiting(m.text); }
  void operator()(const EpochMessage& m) { Write(m, to.initEpoch()); }
  void operator()(const DeclareMessage& m) { Write(m, to.initDeclare()); }
  void operator()(const LayoutMessage& m) { Write(m, to.initLayout()); }
  void operator()(const PreparedMessage& m) { Write(m, to.initPrepared()); }
  void operator()(const VerdictMessage& m) { Write(m, to.initVerdict()); }
  void operator()(const HeartbeatMessage& m) { to.setHeartbeat(m.count); }
  void operator()(const FailureMessage& m) { Write(m, to.initFailure()); }
  void operator()(const LeaveMessage& m) { to.setLeave(m.reason); }
  void operator()(const ReloadMessage& m) { to.setReload(m.text); }
  void operator()(const MeasuredMessage& m) { Write(m, to.initMeasured()); }
  void operator()(const LinksMessage& m) { to.initLinks().setConnections(m.connections); }
};

}  // namespace

bool ShapeFits(const TensorSpec& tensor) {
  if (tensor.shape.empty()) return true;
  if (tensor.shape.size() > kMaxDimensions) return false;
  std::uint64_t product = 1;
  for (const std::uint64_t dimension : tensor.shape) {
    if (dimension != 0 && product > kMaxElements / dimension) return false;
    product *= dimension;
  }
  return product == tensor.elements.value;
}

bool IsPrintableName(std::string_view text) {
  return text.size() <= kMaxNameBytes && std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

std::vector<std::byte> EncodeControl(const ControlMessage& message) {
  std::vector<std::byte> bytes;
  EncodeControl(message, &bytes);
  return bytes;
}

void EncodeControl(const ControlMessage& message, std::vector<std::byte>* out) {
  capnp::word first_segment[kSmallMessageWords] = {};
  capnp::MallocMessageBuilder builder(kj::arrayPtr(first_segment, kSmallMessageWords));
  std::visit(Writer{builder.initRoot<schema::ControlMessage>()}, message);
  const auto segments = builder.getSegmentsForOutput();
  // The segment table: their number less one, their words, padding to a whole word.
  std::size_t words = segments.size() / 2 + 1;
  for (const auto& segment : segments) words += segment.size();
  out->assign(words * sizeof(capnp::word), std::byte{0});
  std::byte* table = out->data();
  const auto put = [&table](std::size_t number) {
    const auto word32 = static_cast<std::uint32_t>(number);
    std::memcpy(table, &word32, sizeof word32);
    table += sizeof word32;
  };
  put(segments.size() - 1);
  std::byte* body = out->data() + (segments.size() / 2 + 1) * sizeof(capnp::word);
  for (const auto& segment : segments) {
    put(segment.size());
    std::memcpy(body, segment.begin(), segment.size() * sizeof(capnp::word));
    body += segment.size() * sizeof(capnp::word);
  }
}

Result<ControlMessage> DecodeControl(std::span<const std::byte> bytes) {
  ControlMessage message;
  TALLY_RETURN_IF_ERROR(ReadEnvelope<schema::ControlMessage>(
      bytes, kMaxControlBytes, [&](schema::ControlMessage::Reader from) {
        Checker check;
        Status unknown;
        message = Read(from, check, &unknown);
        return unknown.ok() ? check.status() : unknown;
      }));
  return message;
}

std::string Describe(const Member& member) {
  return (member.role == Role::kServer ? "server " : "rank ") + std::to_string(member.index) + " (" + member.host +
         ", pid " + std::to_string(member.pid) + ")";
}

}  // namespace tally
