// A worker process for fault tests: joins from its environment, makes steps until told otherwise, says each on stdout.
//   step_worker STEPS [PAUSE_MS [calls]]   exit code as the command line's: 0 done, 4 peer lost, …
// With "calls" a step is two standalone all-reduces, of the worker's own memory and of a buffer.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

constexpr std::uint64_t kElements = 300007;

Status Check(std::span<const float> values, float divisor, std::uint32_t workers, int step) {
  for (std::size_t j = 0; j < values.size(); ++j) {
    if (values[j] != IntSum(workers, j + static_cast<std::size_t>(step)) / divisor) {
      return Internal("wrong sum in step " + std::to_string(step));
    }
  }
  return Status::Ok();
}

Status Call(Client& client, Buffer& buffer, int step) {
  std::vector<float> own(kElements);
  for (std::size_t j = 0; j < kElements; ++j) own[j] = IntValue(client.rank().value, j + static_cast<std::size_t>(step));
  std::ranges::copy(own, buffer.input().begin());
  TALLY_RETURN_IF_ERROR(client.AllReduce(own));
  TALLY_RETURN_IF_ERROR(client.AllReduce(buffer));
  TALLY_RETURN_IF_ERROR(Check(own, 1, client.workers(), step));
  return Check(buffer.output(), 1, client.workers(), step);
}

Status Step(Client& client, Group& group, int step) {
  auto g = group.Input(0);
  for (std::size_t j = 0; j < kElements; ++j) g[j] = IntValue(client.rank().value, j + static_cast<std::size_t>(step));
  TALLY_RETURN_IF_ERROR(group.Submit(BucketId(0)).status());
  TALLY_RETURN_IF_ERROR(group.EndStep().status());
  return Check(group.Output(0), static_cast<float>(client.workers()), client.workers(), step);
}

Status Work(int steps, int pause_ms, bool calls) {
  ConfigSources sources;
  sources.environment = ProcessEnvironment();
  TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, LoadConfig(sources));
  TALLY_ASSIGN_OR_RETURN(auto client, Client::Join(config));
  const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
  TALLY_ASSIGN_OR_RETURN(Group * group, client->DeclareGroup(std::span(&tensor, 1)));
  Buffer* buffer = nullptr;
  if (calls) {
    TALLY_ASSIGN_OR_RETURN(buffer, client->MakeBuffer(kElements));
  }
  for (int step = 0; step < steps; ++step) {
    TALLY_RETURN_IF_ERROR(calls ? Call(*client, *buffer, step) : Step(*client, *group, step));
    std::printf("step %d\n", step);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return client->Leave();
}

}  // namespace
}  // namespace tally::test

int main(int argc, char** argv) {
  const tally::Status status = tally::test::Work(argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? std::atoi(argv[2]) : 5, argc > 3);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.text().c_str());
  return tally::ExitCode(status.kind());
}
