#include "worker/cli/free_cores.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tally::cli {
namespace {

constexpr std::chrono::milliseconds kTime(200);
constexpr unsigned kThreadsPerCpu = 3;  // as of a job on one machine: what others leave goes by thread

}  // namespace

double FreeCores() {
  const unsigned cpus = std::max(1U, std::thread::hardware_concurrency());
  std::vector<double> shares(std::size_t{kThreadsPerCpu} * cpus);
  std::vector<std::thread> threads;
  for (double& share : shares) {
    threads.emplace_back([&share] {
      const auto cpu = [] {
        timespec t{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
      };
      const auto begin = std::chrono::steady_clock::now();
      const double before = cpu();
      auto now = begin;
      while (now - begin < kTime) now = std::chrono::steady_clock::now();
      share = (cpu() - before) / std::chrono::duration<double>(now - begin).count();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return std::clamp(std::accumulate(shares.begin(), shares.end(), 0.0), 0.1, static_cast<double>(cpus));
}

}  // namespace tally::cli
