// The bound of an all-reduce in shared memory: how long do N reads and one write of so many bytes take with all cores,
// nothing else? Arguments: N, bytes, iterations. Prints one line of JSON; the loop is the one that Tally sums with.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/arena.h"
#include "common/reduce/reduce.h"

int main(int argc, char** argv) {
  const std::size_t ranks = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 4;
  const std::size_t bytes = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : std::size_t{25} << 20;
  const std::size_t iterations = argc > 3 ? std::strtoul(argv[3], nullptr, 10) : 9;
  const std::size_t n = bytes / sizeof(float), cores = std::max(1U, std::min(std::thread::hardware_concurrency(), 64U));
  std::vector<tally::Arena> arenas;
  for (std::size_t r = 0; r <= ranks; ++r) {
    auto arena = tally::Arena::Make("memory-sum", bytes);
    if (!arena.ok()) {
      std::fprintf(stderr, "memory_sum: %s\n", arena.status().ToString().c_str());
      return 1;
    }
    auto* values = reinterpret_cast<float*>(arena->bytes().data());
    for (std::size_t j = 0; j < n; ++j) values[j] = static_cast<float>((r + 1) * (j % 251));
    arenas.push_back(std::move(arena).value());
  }
  std::vector<double> times;
  for (std::size_t i = 0; i < iterations + 2; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (std::size_t core = 0; core < cores; ++core) {
      threads.emplace_back([&, core] {
        const std::size_t first = n / 16 * core / cores * 16, end = core + 1 == cores ? n : n / 16 * (core + 1) / cores * 16;
        std::vector<tally::Term> terms;
        for (std::size_t r = 0; r < ranks; ++r) {
          terms.push_back({reinterpret_cast<const float*>(arenas[r].bytes().data()) + first, 1});
        }
        auto* out = reinterpret_cast<float*>(arenas[ranks].bytes().data()) + first;
        (void)tally::SumTerms(out, terms, 1, end - first, bytes >= (std::size_t{8} << 20));
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (i >= 2) times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::ranges::sort(times);
  const double median = times[times.size() / 2];
  std::printf("{\"time_s\": %.9f, \"gb_per_s\": %.2f}\n", median,
              static_cast<double>((ranks + 1) * bytes) / median / 1e9);
  return 0;
}
