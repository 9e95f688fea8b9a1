// The C++ interface from an installed library: configuration with its errors, and a job of one rank.
#include <tally.h>

#include <cstdio>

#include "worker/client.h"

int main() {
  tally::ConfigSources sources;
  sources.overrides = {"job.workers=2", "aggregation.mod=ring"};
  if (const auto wrong = tally::LoadConfig(sources); wrong.ok() || tally::ExitCode(wrong.status().kind()) != 2) return 1;
  sources.overrides = {"job.workers=1", "worker.rank=0", "aggregation.mode=ring", "log.level=error"};
  const auto config = tally::LoadConfig(sources);
  if (!config.ok()) return 1;
  auto client = tally::Client::Join(*config);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  float one = 1;
  if (!(*client)->AllReduce(std::span(&one, 1)).ok() || one != 1 || !(*client)->Leave().ok()) return 1;
  std::printf("tally %s: workers %u\n", tally_version(), config->config.job.workers);
  return 0;
}
