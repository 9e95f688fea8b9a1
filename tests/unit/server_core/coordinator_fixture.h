// A coordinator on a clock of its own, with everything it says sorted by connection.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/core/coordinator.h"

namespace tally {

inline std::string JobText(const std::string& mode, std::size_t servers, const std::string& more = "") {
  std::string text = "[aggregation]\nmode = \"" + mode + "\"\n";
  if (servers > 0) {
    text += "[servers]\naddresses = [";
    for (std::size_t i = 0; i < servers; ++i) {
      text += (i == 0 ? "\"" : ", \"") + ("tcp://h:" + std::to_string(70 + i)) + "\"";
    }
    text += "]\n";
  }
  return text + more;
}

class CoordinatorFixture {
 public:
  explicit CoordinatorFixture(decltype(CoordinatorOptions::advise_codec) advise_codec = nullptr,
                              std::optional<BandwidthMatrix> matrix = std::nullopt)
      : coordinator(CoordinatorOptions{"tcp://h:70", "0.1", 7, std::chrono::seconds(5), std::move(advise_codec), nullptr,
                                       std::move(matrix)}) {}

  static JoinMessage WorkerJoin(std::uint32_t rank, std::uint32_t world, std::string text = JobText("ring", 0)) {
    JoinMessage join;
    join.version = "0.1";
    join.index = rank;
    join.world = world;
    join.job = "resnet";
    join.incarnation = 1000 + rank;
    join.host = "host" + std::string(1, static_cast<char>('A' + rank % 26));
    join.pid = 4000 + rank;
    join.endpoints = {"tcp://127.0.0.1:" + std::to_string(5000 + rank)};
    join.config_digest = std::hash<std::string>{}(text);
    join.config_text = std::move(text);
    return join;
  }
  static JoinMessage ServerJoin(std::uint32_t index) {
    JoinMessage join = WorkerJoin(index, 0, "");
    join.role = Role::kServer;
    join.job.clear();
    return join;
  }
  static DeclareMessage Declare(std::vector<TensorSpec> tensors, std::string group = "default") {
    return {std::move(group), std::move(tensors), {}};
  }
  static TensorSpec Tensor(std::string name, std::uint64_t elements, DType dtype = DType::kFloat32) {
    return {std::move(name), ElementCount{elements}, dtype};
  }

  void Say(ConnectionId from, const ControlMessage& message) {
    coordinator.OnMessage(from, message, now);
    Collect();
  }
  void Disconnect(ConnectionId from, const std::string& why = "connection reset") {
    coordinator.OnDisconnect(from, PeerLost(why), now);
    Collect();
  }
  // Time passes in ticks of 50 ms; the connections in `alive` say something each time.
  void Pass(Nanos time, const std::vector<ConnectionId>& alive = {}) {
    for (Nanos gone{0}; gone < time; gone += std::chrono::milliseconds(50)) {
      now += std::chrono::milliseconds(50);
      for (const ConnectionId id : alive) coordinator.OnMessage(id, HeartbeatMessage{}, now);
      coordinator.OnTick(now);
      Collect();
    }
  }

  // Ranks 0..world-1 on connections 100+rank, servers on 200+index, all joined.
  void StartJob(std::uint32_t world, std::uint32_t servers = 0, const std::string& mode = "ring") {
    for (std::uint32_t s = 0; s < servers; ++s) Say(200 + s, ServerJoin(s));
    for (std::uint32_t r = 0; r < world; ++r) Say(100 + r, WorkerJoin(r, world, JobText(mode, servers)));
  }
  // A group of one tensor, declared by all; returns its layout as rank 0 heard it.
  LayoutMessage DeclareAll(std::uint32_t world, std::uint64_t elements = 100) {
    for (std::uint32_t r = 0; r < world; ++r) Say(100 + r, Declare({Tensor("w", elements)}));
    return Only<LayoutMessage>(100);
  }
  static PreparedMessage Prepared(const LayoutMessage& layout, std::uint64_t step) {
    return {layout.group, StepId{step}, layout.epoch, false, false, ""};
  }
  void FinishStep(const LayoutMessage& layout, std::uint32_t world, std::uint64_t step) {
    for (std::uint32_t r = 0; r < world; ++r) Say(100 + r, Prepared(layout, step));
  }

  // Every message of that type said to `to` since the last Forget.
  template <typename Message>
  std::vector<Message> All(ConnectionId to) const {
    std::vector<Message> found;
    const auto heard = said.find(to);
    if (heard == said.end()) return found;
    for (const CoordinatorOutput& output : heard->second) {
      if (const auto* message = std::get_if<Message>(&output.message)) found.push_back(*message);
    }
    return found;
  }
  // The only one; a default-made message if there is none or more than one.
  template <typename Message>
  Message Only(ConnectionId to) const {
    const std::vector<Message> all = All<Message>(to);
    return all.size() == 1 ? all.front() : Message{};
  }
  std::string Refusal(ConnectionId to) const { return Only<RefusedMessage>(to).failure.text; }
  bool Closed(ConnectionId to) const { return closed.contains(to); }
  void Forget() { said.clear(); }

  TimePoint now{};
  Coordinator coordinator;
  std::map<ConnectionId, std::vector<CoordinatorOutput>> said;
  std::map<ConnectionId, bool> closed;

 private:
  void Collect() {
    std::vector<CoordinatorOutput> outputs;
    coordinator.Take(&outputs);
    for (CoordinatorOutput& output : outputs) {
      if (output.close_after) closed[output.to] = true;
      said[output.to].push_back(std::move(output));
    }
  }
};

}  // namespace tally
