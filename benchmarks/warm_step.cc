// Question: what does a warm step allocate? Counts calls of operator new and blocks taken by the buffer pools, per step
// and rank, in whole jobs inside this process. Only what the engine and the caller do in steps is counted: the
// heartbeats are a second apart. Over ZeroMQ the count includes libzmq's own messages. warm_step N fails where a step takes
// more than N blocks.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "tests/support/cluster.h"

namespace {
std::atomic<std::uint64_t> allocations{0};
}

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tally::test {
namespace {

constexpr std::uint32_t kWorkers = 2, kWarmUp = 100, kSteps = 100;

struct Way {
  const char* name;
  std::uint32_t servers;
  std::vector<std::string> settings;
  DType type = DType::kFloat32;
};

// Returns the calls of operator new per step and rank.
Result<double> Measure(const Way& way) {
  ClusterOptions options;
  options.workers = kWorkers;
  options.servers = way.servers;
  options.settings = way.settings;
  options.settings.push_back("membership.heartbeat=1s");
  options.settings.push_back("membership.dead=10s");
  TestCluster cluster(options);
  std::atomic<std::uint64_t> counted{0}, pool{0}, frames{0};
  const auto statuses = cluster.Run([&](Client& client, std::uint32_t rank) -> Status {
    const TensorSpec tensor{"w", ElementCount(std::uint64_t{1} << 20), way.type};
    TALLY_ASSIGN_OR_RETURN(Group * group, client.DeclareGroup(std::span(&tensor, 1)));
    for (float& g : group->Input(0)) g = static_cast<float>(rank + 1);
    for (std::uint16_t& g : group->Input16(0)) g = static_cast<std::uint16_t>(0x3C00 + rank);
    ClientStats warm;
    std::uint64_t before = 0;
    for (std::uint32_t step = 0; step < kWarmUp + kSteps; ++step) {
      if (step == kWarmUp) {
        TALLY_RETURN_IF_ERROR(client.Barrier());
        warm = client.stats();
        before = allocations;
      }
      TALLY_RETURN_IF_ERROR(group->Submit(BucketId(0)).status());
      TALLY_RETURN_IF_ERROR(group->EndStep().status());
    }
    if (rank == 0) counted = allocations - before;
    const ClientStats after = client.stats();
    pool += after.pool_allocations - warm.pool_allocations;
    frames += after.frames_sent - warm.frames_sent;
    return client.Barrier();
  });
  const std::string failures = Failures(statuses);
  if (!failures.empty()) return Internal(failures);
  const double per = kSteps * kWorkers;
  std::printf("%-22s %10.1f %14.2f %12.1f\n", way.name, static_cast<double>(counted) / per,
              static_cast<double>(pool) / per, static_cast<double>(frames) / per);
  return static_cast<double>(counted) / per;
}

}  // namespace
}  // namespace tally::test

int main(int argc, char** argv) {
  const double most = argc > 1 ? std::atof(argv[1]) : 1e9;
  using tally::test::Way;
  std::printf("%u workers, 2^20 numbers; per rank and step (servers' share included)\n", tally::test::kWorkers);
  std::printf("%-22s %10s %14s %12s\n", "way", "new calls", "pool blocks", "frames sent");
  for (const Way& way : {Way{"ring tcp", 0, {"aggregation.mode=ring", "link.shm=false"}},
                         Way{"ring shm", 0, {"aggregation.mode=ring"}},
                         Way{"ps tcp", 1, {"aggregation.mode=ps", "servers.transport=tcp", "link.shm=false"}},
                         Way{"ps zmq", 1, {"aggregation.mode=ps", "link.shm=false"}},
                         Way{"ps shm", 1, {"aggregation.mode=ps"}},
                         Way{"direct int8", 0, {"aggregation.mode=ring", "compression.codec=int8"}},
                         Way{"ps topk", 1, {"aggregation.mode=ps", "compression.codec=topk"}},
                         Way{"ps, fp16 tensors", 1, {"aggregation.mode=ps"}, tally::DType::kFloat16}}) {
    const tally::Result<double> calls = tally::test::Measure(way);
    if (!calls.ok() || *calls > most) {
      std::fprintf(stderr, "%s: %s\n", way.name, calls.ok() ? "allocates too often" : calls.status().text().c_str());
      return 1;
    }
  }
  return 0;
}
