// A worker process for fault tests: joins from its environment, makes steps until told otherwise, says each on stdout.
//   step_worker STEPS [PAUSE_MS [calls|collectives|hang|pause|call]]   exit code as the command line's: 0 done, 4 peer lost, …
// With "hang" rank 1 submits its third step and stands still, with "pause" before it, unless it came back to its rank.
// With "call" all make a standalone call before their third step, after which rank 1 stands still.
// A child, as loaders of data are, then holds its descriptors.
// With "calls" a step is two standalone all-reduces, of the worker's own memory and of a buffer, with "collectives" one of
// each other kind.
#include <unistd.h>

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

Status Collectives(Client& client, int step) {
  const std::int64_t n = client.workers(), rank = client.rank().value, root = step % n;
  std::vector<std::int64_t> own(kElements, rank + step), all(kElements * client.workers());
  TALLY_RETURN_IF_ERROR(client.AllGather(std::span(own), std::span(all)));
  for (std::size_t j = 0; j < all.size(); ++j) {
    if (all[j] != static_cast<std::int64_t>(j / kElements) + step) return Internal("wrong all-gather");
  }
  TALLY_RETURN_IF_ERROR(client.ReduceScatter(std::span(all), std::span(own), ReduceOp::kSum));
  for (const std::int64_t x : own) {
    if (x != n * (rank + step)) return Internal("wrong reduce-scatter");
  }
  TALLY_RETURN_IF_ERROR(client.Broadcast(std::span(own), Rank(static_cast<std::uint32_t>(root))));
  for (const std::int64_t x : own) {
    if (x != n * (root + step)) return Internal("wrong broadcast");
  }
  return Status::Ok();
}

// Until it is killed.
void StandStill(const char* why) {
  if (const pid_t child = fork(); child == 0) {
    setsid();  // not killed with its parent
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
    sleep(120);
    _exit(0);
  } else {
    std::printf("child %d\n", child);
  }
  std::printf("%s\n", why);
  std::fflush(stdout);
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

Status Step(Client& client, Group& group, int step, bool hang) {
  auto g = group.Input(0);
  for (std::size_t j = 0; j < kElements; ++j) g[j] = IntValue(client.rank().value, j + static_cast<std::size_t>(step));
  TALLY_RETURN_IF_ERROR(group.Submit(BucketId(0)).status());
  if (hang) StandStill("hanging");
  TALLY_RETURN_IF_ERROR(group.EndStep().status());
  return Check(group.Output(0), static_cast<float>(client.workers()), client.workers(), step);
}

Status Work(int steps, int pause_ms, const std::string& doing) {
  const bool calls = doing == "calls";
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
  const int first = static_cast<int>(group->step().value);
  const bool stands = client->rank().value == 1 && first == 0;
  for (int step = first; step < steps; ++step) {
    if (doing == "call" && step == 2) TALLY_RETURN_IF_ERROR(client->Barrier());
    if ((doing == "pause" || doing == "call") && stands && step == 2) StandStill("pausing");
    TALLY_RETURN_IF_ERROR(calls                    ? Call(*client, *buffer, step)
                          : doing == "collectives" ? Collectives(*client, step)
                                                   : Step(*client, *group, step, doing == "hang" && stands && step == 2));
    std::printf("step %d\n", step);
    std::fflush(stdout);
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return client->Leave();
}

}  // namespace
}  // namespace tally::test

int main(int argc, char** argv) {
  const tally::Status status = tally::test::Work(argc > 1 ? std::atoi(argv[1]) : 10, argc > 2 ? std::atoi(argv[2]) : 5,
                                                 argc > 3 ? argv[3] : "steps");
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", status.text().c_str());
  return tally::ExitCode(status.kind());
}
