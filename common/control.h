// Control messages as plain C++ and their bytes (schemas/control.capnp). Decoding takes hostile bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/frame.h"
#include "common/status.h"
#include "common/units.h"

namespace tally {

inline constexpr std::size_t kMaxControlBytes = std::size_t{1} << 20;

// One named gradient, as declared by a worker.
struct TensorSpec {
  std::string name;            // unique in its group, printable, at most 128 bytes
  ElementCount elements;
  DType dtype = DType::kFloat32;
  std::vector<std::uint64_t> shape = {};  // dimensions, whose product is `elements`; empty: one dimension
  bool operator==(const TensorSpec&) const = default;
};

inline constexpr std::size_t kMaxDimensions = 16;
// Whether the shape's product is `elements` (always, if it is empty) and it has at most kMaxDimensions.
bool ShapeFits(const TensorSpec& tensor);

enum class ExchangeKind : std::uint8_t { kOwners = 0, kSchedule = 1 };

// Who sums a slab: a server (index) or a worker (position).
struct OwnerRef {
  Role role = Role::kServer;
  std::uint32_t index = 0;
  auto operator<=>(const OwnerRef&) const = default;
};

struct Member {
  Role role = Role::kWorker;
  std::uint32_t index = 0;  // rank or server index
  Position position;        // workers only
  std::uint64_t incarnation = 0;
  std::string host, node;
  std::uint32_t pid = 0;
  std::vector<std::string> endpoints;  // "tcp://10.0.0.1:4711", "zmq://…", "inproc://…"
  double nic_bytes_per_s = 0;          // of the NIC that its data links use, in each direction; 0: not known
  std::string switch_path = {};        // switches above its machine (schedule/topology.h); empty: not known
  bool operator==(const Member&) const = default;
};

struct JoinMessage {
  std::uint32_t protocol = kProtocolVersion;
  std::string version;
  Role role = Role::kWorker;
  std::uint32_t index = 0;
  std::uint32_t world = 0;
  std::string job;
  std::uint64_t incarnation = 0;
  std::string host, node;
  std::uint32_t pid = 0;
  std::vector<std::string> endpoints;
  std::uint64_t config_digest = 0;
  std::string config_text;
  double nic_bytes_per_s = 0;
  std::string nic;  // tells the NICs of a node apart; empty: the node has one, or none (loopback)
  std::string switch_path = {};
  bool operator==(const JoinMessage&) const = default;
};

struct FailureMessage {
  StatusKind kind = StatusKind::kInternal;
  std::string text;
  bool is_member = false;  // role and index name the member that failed
  Role role = Role::kWorker;
  std::uint32_t index = 0;
  bool operator==(const FailureMessage&) const = default;
};
struct RefusedMessage {
  FailureMessage failure;
  bool operator==(const RefusedMessage&) const = default;
};

struct WaitingMessage {
  std::string text;
  bool operator==(const WaitingMessage&) const = default;
};

struct EpochMessage {
  EpochId epoch;
  std::uint64_t job_hash = 0;
  std::string job;
  std::vector<Member> members;
  std::string config_text;
  bool operator==(const EpochMessage&) const = default;
};

struct DeclareMessage {
  std::string group;
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<std::string>> buckets;  // the caller's own buckets by tensor name; empty = by bucket.cap
  StepId first_step{};
  bool operator==(const DeclareMessage&) const = default;
};

struct LayoutMessage {
  GroupId group;  // from 1; 0 is the standalone collectives
  std::string name;
  EpochId epoch;  // frames of this group carry it
  std::vector<TensorSpec> tensors;                  // rank 0's declaration order
  std::vector<std::vector<std::uint32_t>> buckets;  // tensor indices, bucket number = place
  ExchangeKind exchange = ExchangeKind::kOwners;
  std::string schedule;                 // exchange kSchedule: its name
  std::vector<OwnerRef> owner_list;
  std::vector<std::uint16_t> owners;    // per slab: index into owner_list (both exchanges). If a codec
                                        // begins later than step 0: first those of the declared tensors
  std::vector<std::uint8_t> codecs;     // per tensor: codec id
  StepId first_step{};                  // the group's first one
  bool operator==(const LayoutMessage&) const = default;
};

struct PreparedMessage {
  GroupId group;
  StepId step;
  EpochId epoch;
  bool non_finite = false;
  bool skip_vote = false;
  std::string note;  // where the non-finite value was seen: "tensor fc1.weight"
  float loss_scale = 1;
  std::uint64_t shared_state = 0;  // digest of what codecs carry that must be equal on all ranks
  float learning_rate = 0;         // that residuals follow; 0 if they do not
  bool operator==(const PreparedMessage&) const = default;
};

struct VerdictMessage {
  GroupId group;
  StepId step;
  EpochId epoch;
  bool commit = true;
  std::string reason;  // of a skip
  bool operator==(const VerdictMessage&) const = default;
};

struct HeartbeatMessage {
  std::uint64_t count = 0;
  bool operator==(const HeartbeatMessage&) const = default;
};
struct LeaveMessage {
  std::string reason;
  bool operator==(const LeaveMessage&) const = default;
};
struct ReloadMessage {
  std::string text;
  bool operator==(const ReloadMessage&) const = default;
};

inline constexpr std::uint32_t kMaxLinkConnections = 64;  // to one neighbour

// What a worker has found between its host and another one (common/transport/connection_probe.h).
struct MeasuredMessage {
  double bytes_per_s = 0;  // 0: nothing
  std::uint32_t connections = 1;
  bool operator==(const MeasuredMessage&) const = default;
};
struct LinksMessage {
  std::uint32_t connections = 1;  // to each neighbour
  bool operator==(const LinksMessage&) const = default;
};

using ControlMessage =
    std::variant<JoinMessage, RefusedMessage, WaitingMessage, EpochMessage, DeclareMessage, LayoutMessage,
                 PreparedMessage, VerdictMessage, HeartbeatMessage, FailureMessage, LeaveMessage, ReloadMessage,
                 MeasuredMessage, LinksMessage>;

// May be longer than kMaxControlBytes where a layout is huge: whoever sends it compares.
std::vector<std::byte> EncodeControl(const ControlMessage& message);
// The same into `out` (cleared first): small messages take no memory beyond it.
void EncodeControl(const ControlMessage& message, std::vector<std::byte>* out);
// Errors: kCorrupt with the field; kUnsupported for a message that a newer version added, to be ignored.
// Bounds: total <= 1 MiB, nesting <= 16, names as IsPrintableName; in texts for people the unprintable becomes '?'.
Result<ControlMessage> DecodeControl(std::span<const std::byte> bytes);

// Printable ASCII, at most 128 bytes: what a name in a message must be.
bool IsPrintableName(std::string_view text);

// "rank 2 (hostA, pid 4711)" or "server 0 (hostB, pid 12)".
std::string Describe(const Member& member);

}  // namespace tally
