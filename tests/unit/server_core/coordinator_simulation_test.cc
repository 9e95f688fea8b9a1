// Seeded random histories: members come, duplicate, declare, step, leave, freeze, vanish and talk nonsense, while the
// invariants of verdicts, epochs and losses are checked after every event. A failing seed is named.
#include <deque>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "tests/unit/server_core/coordinator_fixture.h"

namespace tally {
namespace {

struct Agent {
  JoinMessage join;
  std::deque<ControlMessage> outgoing;  // said, not yet delivered
  bool frozen = false;                  // sends nothing more, but its connection stays open
  bool leaving = false;
  // As the coordinator knows it.
  std::uint64_t job = 0;  // hash; 0 until the epoch came
  EpochId epoch;
  bool over = false;      // is out: refused, told of a failure, has left or reported one
  std::map<std::uint32_t, LayoutMessage> layouts;
  std::map<std::uint32_t, std::uint64_t> step;      // next, by group
  std::optional<std::pair<std::uint32_t, std::uint64_t>> waiting;  // delivered Prepared without verdict
  bool declaring = false;                           // said, no layout yet
  bool declared = false;                            // delivered, no layout yet
};

class Simulation {
 public:
  explicit Simulation(std::uint64_t seed) : random_(seed), seed_(seed) {
    world_ = 1 + Pick(4);
    servers_ = Pick(3);
    text_ = JobText(servers_ > 0 ? "ps" : "ring", servers_, "[membership]\nheartbeat = \"200ms\"\ndead = \"1s\"\n");
  }

  void Run(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFailure(); ++i) {
      OneEvent();
      CheckWaiters();
    }
    CheckEnd();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed_;
  }

  std::uint64_t verdicts() const { return verdicts_.size(); }
  std::uint64_t losses() const { return losses_; }

 private:
  using StepKey = std::tuple<std::uint64_t, std::uint32_t, std::uint64_t>;  // job, group, step

  std::uint32_t Pick(std::uint32_t below) { return static_cast<std::uint32_t>(random_() % below); }

  Agent* PickAgent(ConnectionId* id) {
    if (agents_.empty()) return nullptr;
    const auto found = std::next(agents_.begin(), Pick(static_cast<std::uint32_t>(agents_.size())));
    *id = found->first;
    return &found->second;
  }

  void OneEvent() {
    const std::uint32_t dice = Pick(100);
    ConnectionId id = 0;
    if (dice < 12 && agents_.size() < 12) return Spawn();
    if (dice < 15) return Tick();
    Agent* agent = PickAgent(&id);
    if (agent == nullptr) return Spawn();
    if (dice < 16) return Vanish(id);
    if (dice < 17) {
      if (Pick(8) == 0) agent->frozen = true;
      return;
    }
    if (dice < 60) return Act(*agent);
    return Deliver(id, *agent);
  }

  void Spawn() {
    const ConnectionId id = ++last_id_;
    Agent& agent = agents_[id];
    if (servers_ > 0 && Pick(3) == 0) {
      agent.join = CoordinatorFixture::ServerJoin(Pick(servers_));
    } else {
      const std::uint32_t world = Pick(30) == 0 ? world_ + 1 : world_;
      agent.join = CoordinatorFixture::WorkerJoin(Pick(world), world, text_);
    }
    agent.join.incarnation = id;
    if (Pick(40) == 0) agent.outgoing.push_back(PreparedMessage{});
    agent.outgoing.push_back(agent.join);
    if (Pick(60) == 0) agent.outgoing.push_back(agent.join);
  }

  // What a member might say next, given what it has heard.
  void Act(Agent& agent) {
    if (agent.frozen || agent.leaving || agent.over) return;
    if (Pick(400) == 0) return agent.outgoing.push_back(VerdictMessage{});
    if (Pick(400) == 0) return agent.outgoing.push_back(FailureMessage{StatusKind::kInternal, "boom", false, {}, 0});
    if (agent.join.role == Role::kServer || agent.job == 0) return;
    if (Pick(150) == 0) {
      agent.leaving = true;
      return agent.outgoing.push_back(LeaveMessage{"done"});
    }
    if (agent.declaring || agent.waiting.has_value()) {
      if (agent.waiting.has_value() && Pick(10) == 0) {  // a repeat
        const LayoutMessage& layout = agent.layouts.at(agent.waiting->first);
        agent.outgoing.push_back(CoordinatorFixture::Prepared(layout, agent.waiting->second));
      }
      return;
    }
    if (agent.layouts.empty() || (agent.layouts.size() < 3 && Pick(20) == 0)) {
      agent.declaring = true;
      const std::string group = "g" + std::to_string(agent.layouts.size());
      return agent.outgoing.push_back(CoordinatorFixture::Declare({CoordinatorFixture::Tensor("w", 5)}, group));
    }
    // Groups in turn, so that members mostly agree on what comes next.
    const LayoutMessage& layout = agent.layouts.rbegin()->second;
    PreparedMessage prepared = CoordinatorFixture::Prepared(layout, agent.step[layout.group.value]);
    prepared.non_finite = Pick(20) == 0;
    prepared.skip_vote = Pick(20) == 0;
    if (Pick(200) == 0) prepared.step = StepId{prepared.step.value + 5};
    agent.waiting = {layout.group.value, prepared.step.value};
    agent.outgoing.push_back(prepared);
  }

  void Deliver(ConnectionId id, Agent& agent) {
    if (agent.outgoing.empty() || agent.frozen) return;
    const ControlMessage message = std::move(agent.outgoing.front());
    agent.outgoing.pop_front();
    const auto* prepared = std::get_if<PreparedMessage>(&message);
    if (prepared != nullptr && agent.job != 0 && !agent.over) {
      prepared_[{agent.job, prepared->group.value, prepared->step.value}][agent.join.index].push_back(*prepared);
    }
    if (std::holds_alternative<DeclareMessage>(message) && agent.job != 0 && !agent.over) {
      declared_[agent.job].insert(agent.join.index);
      agent.declared = true;
    }
    const bool farewell =
        std::holds_alternative<LeaveMessage>(message) || std::holds_alternative<FailureMessage>(message);
    if (farewell && !agent.over) {
      agent.over = true;
      if (agent.job != 0 && agent.join.role == Role::kWorker) gone_[agent.job].insert(agent.join.index);
    }
    fixture_.Say(id, message);
    Hear();
  }

  void Vanish(ConnectionId id) {
    const Agent lost = agents_.at(id);
    agents_.erase(id);
    fixture_.Disconnect(id);
    Hear();
    if (lost.job == 0 || lost.over) return;
    ++losses_;
    for (const auto& [other_id, other] : agents_) {
      EXPECT_TRUE(other.job != lost.job || other.over) << "connection " << other_id << " was not told of a loss";
    }
  }

  void Tick() {
    const Nanos time = std::chrono::milliseconds(50) * static_cast<int>(1 + Pick(6));
    std::vector<ConnectionId> alive;
    for (const auto& [id, agent] : agents_) {
      // A heartbeat overtakes nothing: only who has said all it had to say.
      if (!agent.frozen && agent.outgoing.empty()) alive.push_back(id);
    }
    fixture_.Pass(time, alive);
    Hear();
  }

  // Takes in what the coordinator said and checks it.
  void Hear() {
    for (const auto& [to, outputs] : fixture_.said) {
      const auto found = agents_.find(to);
      if (found == agents_.end()) {
        ADD_FAILURE() << "message to a connection that is gone";
        continue;
      }
      for (const CoordinatorOutput& output : outputs) HearOne(found->second, output);
    }
    fixture_.Forget();
    for (const auto& [id, closed] : fixture_.closed) agents_.erase(id);  // the shell closes without a callback
    fixture_.closed.clear();
  }

  void HearOne(Agent& agent, const CoordinatorOutput& output) {
    if (const auto* epoch = std::get_if<EpochMessage>(&output.message)) {
      EXPECT_GE(epoch->epoch, last_epoch_);
      EXPECT_GT(epoch->epoch, agent.epoch);
      last_epoch_ = agent.epoch = epoch->epoch;
      const auto [known, fresh] = epochs_.try_emplace(epoch->epoch, *epoch);
      EXPECT_EQ(known->second, *epoch);
      agent.job = epoch->job_hash;
      workers_[agent.job] = epoch->members.size() - servers_;  // now and then one more than world_
      agent.layouts.clear();  // a server goes from job to job
      agent.over = false;
    } else if (const auto* layout = std::get_if<LayoutMessage>(&output.message)) {
      EXPECT_FALSE(agent.over);
      EXPECT_GE(layout->epoch, last_epoch_);
      EXPECT_GT(layout->epoch, agent.epoch);
      last_epoch_ = agent.epoch = layout->epoch;
      agent.layouts[layout->group.value] = *layout;
      agent.declaring = agent.declared = false;
      declared_[agent.job].clear();
    } else if (const auto* verdict = std::get_if<VerdictMessage>(&output.message)) {
      HearVerdict(agent, *verdict);
    } else if (std::holds_alternative<FailureMessage>(output.message) ||
               std::holds_alternative<RefusedMessage>(output.message)) {
      // The first cause wins: whoever is out hears nothing more (a frozen one is told why it is closed).
      EXPECT_TRUE(!agent.over || agent.frozen || output.close_after);
      agent.over = true;
      if (agent.job != 0 && agent.join.role == Role::kWorker) gone_[agent.job].insert(agent.join.index);
    } else if (std::holds_alternative<LeaveMessage>(output.message) && agent.join.role == Role::kServer) {
      agent.over = true;
    }
  }

  void HearVerdict(Agent& agent, const VerdictMessage& verdict) {
    EXPECT_FALSE(agent.over);
    const StepKey key{agent.job, verdict.group.value, verdict.step.value};
    const auto [known, fresh] = verdicts_.try_emplace(key, verdict);
    EXPECT_EQ(known->second, verdict) << "two verdicts of one step";
    const auto& prepared = prepared_[key];
    EXPECT_EQ(prepared.size(), workers_[agent.job]) << "a verdict before all were prepared";
    bool objection = false;
    for (const auto& [rank, said] : prepared) objection |= said.front().non_finite || said.front().skip_vote;
    EXPECT_EQ(verdict.commit, !objection);
    if (agent.waiting == std::pair{verdict.group.value, verdict.step.value}) {
      agent.waiting.reset();
      agent.step[verdict.group.value] = verdict.step.value + 1;
    }
  }

  // Nobody waits for a member that is gone.
  void CheckWaiters() {
    for (const auto& [id, agent] : agents_) {
      if (agent.over || agent.job == 0 || agent.join.role != Role::kWorker) continue;
      for (const std::uint32_t rank : gone_[agent.job]) {
        EXPECT_TRUE(!agent.declared || declared_[agent.job].contains(rank))
            << "connection " << id << " declares in vain: rank " << rank << " is gone";
        if (!agent.waiting.has_value()) continue;
        const auto& prepared = prepared_[{agent.job, agent.waiting->first, agent.waiting->second}];
        EXPECT_TRUE(!prepared.contains(agent.join.index) || prepared.contains(rank))
            << "connection " << id << " waits for rank " << rank << ", which is gone";
      }
    }
  }

  // Afterwards everybody goes, nothing is left over, and a good job runs.
  void CheckEnd() {
    while (!agents_.empty()) Vanish(agents_.begin()->first);
    EXPECT_EQ(fixture_.coordinator.phase(), Coordinator::Phase::kIdle);
    for (std::uint32_t s = 0; s < servers_; ++s) fixture_.Say(++last_id_, CoordinatorFixture::ServerJoin(s));
    for (std::uint32_t r = 0; r < world_; ++r) {
      fixture_.Say(++last_id_, CoordinatorFixture::WorkerJoin(r, world_, text_));
    }
    EXPECT_EQ(fixture_.coordinator.phase(), Coordinator::Phase::kRunning);
    EXPECT_GT(fixture_.Only<EpochMessage>(last_id_).epoch, last_epoch_);
  }

  std::mt19937_64 random_;
  std::uint64_t seed_;
  std::uint32_t world_ = 1, servers_ = 0;
  std::string text_;
  CoordinatorFixture fixture_;
  std::map<ConnectionId, Agent> agents_;
  ConnectionId last_id_ = 0;
  EpochId last_epoch_;
  std::map<EpochId, EpochMessage> epochs_;
  std::map<StepKey, VerdictMessage> verdicts_;
  std::map<StepKey, std::map<std::uint32_t, std::vector<PreparedMessage>>> prepared_;
  std::map<std::uint64_t, std::size_t> workers_;               // how many, by job
  std::map<std::uint64_t, std::set<std::uint32_t>> gone_;      // ranks, by job
  std::map<std::uint64_t, std::set<std::uint32_t>> declared_;  // ranks with an open declaration, by job
  std::uint64_t losses_ = 0;
};

TEST(CoordinatorSimulation, KeepsItsInvariantsInRandomHistories) {
  std::uint64_t verdicts = 0, losses = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Simulation simulation(seed);
    simulation.Run(3000);
    if (::testing::Test::HasFatalFailure()) return;
    verdicts += simulation.verdicts();
    losses += simulation.losses();
  }
  // The histories must not be empty ones.
  EXPECT_GT(verdicts, 1000u);
  EXPECT_GT(losses, 100u);
}

}  // namespace
}  // namespace tally
