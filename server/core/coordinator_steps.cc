// What happens while a job runs: groups are declared and published, steps prepared and decided.
#include <algorithm>
#include <charconv>
#include <set>
#include <string>
#include <utility>

#include "server/core/coordinator_state.h"
#include "server/core/group_plan.h"
#include "server/core/placement.h"

namespace tally {

using namespace coordination;

namespace {

constexpr std::size_t kMaxGroups = 1024;

// As short as it can be told apart from its neighbours.
std::string Number(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

void Coordinator::Impl::OnDeclare(Peer& worker, const DeclareMessage& declare, TimePoint now) {
  std::optional<DeclareMessage>& declared = job->declared[worker.join.index];
  if (declared.has_value()) return Violation(worker, "declares a group while its declaration of another is open", now);
  if (declare.group.empty() || declare.group.size() > kMaxNameBytes) {
    return Violation(worker, "declares a group whose name is not 1 to 128 bytes long", now);
  }
  declared = declare;
  worker.wait = Wait{{}, true, now + options.speak_up};
  if (std::all_of(job->declared.begin(), job->declared.end(), [](const auto& d) { return d.has_value(); })) {
    PublishGroup(now);
  } else {
    DismissWaiters(now);
  }
}

// What was measured counts only where nobody says a rate: next to it a lower bound would look slow.
PlanBasis Coordinator::Impl::Basis() {
  PlanBasis basis{job->auto_codecs, std::nullopt, job->nodes, job->positions, std::nullopt};
  std::vector<JoinMessage> workers, of_servers;
  const Result<ModeExpansion> mode = ExpandMode(job->config);
  std::set<std::string> nodes;
  for (const Rank rank : job->positions.ranks()) {
    const std::optional<Peer>& peer = job->seats[rank.value].peer;
    if (!peer.has_value()) return basis;  // it has left: no step will end, and nobody's share matters
    const std::string& node = peer->join.node;
    if (!mode.ok() || !mode->node_stages || node.empty() || nodes.insert(node).second) {
      workers.push_back(peer->join);  // with node stages the first of a node stands for all
    }
  }
  ForEachMember([&](const Peer& peer) {
    if (peer.join.role == Role::kServer) of_servers.push_back(peer.join);
  });
  basis.placement = PlaceMembers(workers, of_servers);
  const auto says_rate = [](const JoinMessage& join) { return join.nic_bytes_per_s > 0; };
  if (job->nic_rates.empty() || std::ranges::any_of(workers, says_rate) || std::ranges::any_of(of_servers, says_rate)) {
    return basis;
  }
  for (std::vector<JoinMessage>* members : {&workers, &of_servers}) {
    for (JoinMessage& join : *members) {
      const auto rate = job->nic_rates.find({join.role, join.index});
      if (rate != job->nic_rates.end()) join.nic_bytes_per_s = rate->second;
    }
  }
  basis.measured = PlaceMembers(workers, of_servers);
  return basis;
}

void Coordinator::Impl::PublishGroup(TimePoint now) {
  std::vector<DeclareMessage> declarations;
  for (std::optional<DeclareMessage>& d : job->declared) declarations.push_back(*std::exchange(d, std::nullopt));
  const std::string& name = declarations.front().group;
  Status why;
  for (const Group& group : job->groups) {
    if (group.name == name) why = InvalidArgument("group " + name + " is declared a second time");
  }
  if (job->groups.size() >= kMaxGroups) {
    why = InvalidArgument("a job has at most " + std::to_string(kMaxGroups) + " groups");
  }
  if (!why.ok()) return FailJob(Failure(why), 0, now);

  if (job->advice) job->auto_codecs = std::exchange(job->advice, nullptr)();
  PlanNotes notes;
  Result<LayoutMessage> planned = PlanGroup(declarations, job->config, Basis(), &notes);
  if (!planned.ok()) return FailJob(Failure(planned.status()), 0, now);
  if (options.on_plan) options.on_plan(notes);

  LayoutMessage layout = std::move(planned).value();
  Group group;
  group.id = layout.group = GroupId{static_cast<std::uint32_t>(job->groups.size() + 1)};
  group.epoch = layout.epoch = EpochId{++epoch};
  group.name = layout.name;
  group.step = layout.first_step;
  group.prepared.resize(job->world());
  job->groups.push_back(std::move(group));
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value()) seat.peer->wait.reset();
  }
  SendToMembers(layout);
}

void Coordinator::Impl::OnPrepared(Peer& worker, const PreparedMessage& prepared, TimePoint now) {
  const std::uint32_t rank = worker.join.index;
  if (prepared.group.value == 0 || prepared.group.value > job->groups.size()) {
    return Violation(worker, "ends a step of group " + std::to_string(prepared.group.value) + ", which does not exist",
                     now);
  }
  Group& group = job->groups[prepared.group.value - 1];
  const auto misfit = [&](const std::string& text) {
    const std::string whole = Who(worker.join) + ", group " + group.name + ": " + text;
    FailJob({StatusKind::kMismatch, whole, true, Role::kWorker, rank}, 0, now);
  };
  if (prepared.epoch != group.epoch) {
    return misfit("stale epoch " + std::to_string(prepared.epoch.value) + ", the group's is " +
                  std::to_string(group.epoch.value));
  }
  if (group.last.has_value() && prepared.step == group.last->step) return Send(worker.connection, *group.last);
  if (prepared.step != group.step) {
    return misfit("ends step " + std::to_string(prepared.step.value) + ", open is step " +
                  std::to_string(group.step.value));
  }
  if (group.prepared[rank].has_value()) return;
  const auto first = std::ranges::find_if(group.prepared, [](const auto& other) { return other.has_value(); });
  if (first != group.prepared.end() && (*first)->loss_scale != prepared.loss_scale) {
    return misfit("loss scale " + Number(prepared.loss_scale) + " in step " + std::to_string(prepared.step.value) +
                  ", rank " + std::to_string(first - group.prepared.begin()) + " has " + Number((*first)->loss_scale) +
                  ": all ranks use the same one in a step");
  }
  if (first != group.prepared.end() && (*first)->learning_rate != prepared.learning_rate) {
    return misfit("learning rate " + Number(prepared.learning_rate) + " in step " + std::to_string(prepared.step.value) +
                  ", rank " + std::to_string(first - group.prepared.begin()) + " has " +
                  Number((*first)->learning_rate) + ": all ranks set the same one");
  }
  if (first != group.prepared.end() && (*first)->shared_state != prepared.shared_state) {
    return misfit("codecs' shared state " + std::to_string(prepared.shared_state) + " in step " +
                  std::to_string(prepared.step.value) + ", rank " + std::to_string(first - group.prepared.begin()) +
                  " has " + std::to_string((*first)->shared_state) +
                  ": saved state is read back on all ranks, of one checkpoint, or on none");
  }
  group.prepared[rank] = prepared;
  worker.wait = Wait{group.id, false, now + options.speak_up};
  if (++group.prepared_count == group.prepared.size()) {
    Decide(group);
  } else {
    DismissWaiters(now);
  }
}

void Coordinator::Impl::Decide(Group& group) {
  VerdictMessage verdict{group.id, group.step, group.epoch, true, {}};
  std::size_t objections = 0;
  for (std::uint32_t rank = 0; rank < group.prepared.size(); ++rank) {
    const PreparedMessage& prepared = *group.prepared[rank];
    if (!prepared.non_finite && !prepared.skip_vote) continue;
    verdict.commit = false;
    if (++objections > kMaxListed) continue;
    verdict.reason += (verdict.reason.empty() ? "rank " : "; rank ") + std::to_string(rank);
    verdict.reason += !prepared.non_finite    ? std::string(" voted skip")
                      : prepared.note.empty() ? std::string(": non-finite value")
                                              : ": non-finite value in " + prepared.note;
  }
  if (objections > kMaxListed) verdict.reason += "; and " + std::to_string(objections - kMaxListed) + " more";
  group.prepared.assign(group.prepared.size(), std::nullopt);
  group.prepared_count = 0;
  group.last = verdict;
  ++group.step;
  for (Seat& seat : job->seats) {
    if (seat.peer.has_value() && seat.peer->wait.has_value() && seat.peer->wait->group == group.id) {
      seat.peer->wait.reset();
    }
  }
  SendToMembers(verdict);
}

}  // namespace tally
