// What a process sends on tally-worker's socket.
#include "common/check.h"
#include "tests/fuzz/target.h"
#include "worker/agent/message.h"

namespace tally {

void FuzzAgent(std::span<const std::byte> input) {
  const Result<agent::Message> message = agent::Decode(input);
  if (!message.ok()) {
    const StatusKind kind = message.status().kind();
    TALLY_CHECK(kind == StatusKind::kCorrupt || kind == StatusKind::kUnsupported, message.status().ToString());
    return;
  }
  const std::vector<std::byte> bytes = agent::Encode(*message);
  const Result<agent::Message> back = agent::Decode(bytes);
  if (bytes.size() > agent::kMaxMessageBytes) return;
  TALLY_CHECK(back.ok(), back.status().ToString());
  TALLY_CHECK(agent::Encode(*back) == bytes, "a message changed by writing and reading it");
}

std::vector<FuzzBytes> AgentSeeds() {
  const agent::Declared declared{GroupId{2}, StepId{9}, {{1, 0}, {}}, {{{0, 64}, {1, 128}, {2, 0}}, {}}, "ring"};
  const DeclareMessage declare{"g", {{"w", ElementCount{6}, DType::kFloat16, {2, 3}}}, {{"w"}}, StepId{7}};
  std::vector<FuzzBytes> seeds;
  for (const agent::Message& message : std::initializer_list<agent::Message>{
           agent::Attach{agent::kProtocol, "0.1.0", "[job]\n"}, declare, declared,
           agent::Submit{1, 2, {0.5F, 1}, 0.1F}, agent::EndStep{1, Vote::kSkip, {0.5F, 1}, 0.1F, 4},
           agent::Collective{}, agent::BucketEnd{1, 2, agent::Reply()},
           agent::StepEnd{StepId{3}, Outcome::kSkipped, "why"}, agent::Buffer{{0, 1}, {1, 2}}, agent::Stats{},
           agent::Body{9}}) {
    seeds.push_back(agent::Encode(message));
  }
  return seeds;
}

}  // namespace tally
