// A worker process for fault tests: joins from its environment, makes steps until told otherwise, says each on stdout.
//   step_worker STEPS [PAUSE_MS]   exit code as the command line's: 0 done, 4 peer lost, …
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "tests/support/cluster.h"

namespace tally::test {
namespace {

Status Work(int steps, int pause_ms) {
  ConfigSources sources;
  sources.environment = ProcessEnvironment();
  TALLY_ASSIGN_OR_RETURN(const LoadedConfig config, LoadConfig(sources));
  TALLY_ASSIGN_OR_RETURN(auto client, Client::Join(config));
  constexpr std::uint64_t kElements = 300007;
  const TensorSpec tensor{"w", ElementCount(kElements), DType::kFloat32};
  TALLY_ASSIGN_OR_RETURN(Group * group, client->DeclareGroup(std::span(&tensor, 1)));
  for (int step = 0; step < steps; ++step) {
    auto g = group->Input(0);
    for (std::size_t j = 0; j < kElements; ++j) g[j] = IntValue(client->rank().value, j + static_cast<std::size_t>(step));
    TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
    TALLY_RETURN_IF_ERROR(group->EndStep().status());
    const auto mean = group->Output(0);
    for (std::size_t j = 0; j < kElements; ++j) {
      if (mean[j] != IntSum(client->workers(), j + static_cast<std::size_t>(step)) / static_cast<float>(client->workers())) {
        return Internal("wrong sum in step " + std::to_string(step));
      }
    }
    std::printf("step %d\n", step);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return client->Leave();
}

}  // namespace
}  // namespace tally::test

int main(int argc, char** argv) {
  const tally::Status status = tally::test::Work(argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? std::atoi(argv[2]) : 5);
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.text().c_str());
  return tally::ExitCode(status.kind());
}
