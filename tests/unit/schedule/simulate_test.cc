// The event simulation against the closed forms, its own bounds, and itself by classes.
#include "common/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/schedule/cost_model.h"

namespace tally {
namespace {

constexpr double kB = 1e9, kM = 1e8;  // M/B = 0.1 s
using Detail = SimulationOptions::Detail;

Cluster Flat(std::uint32_t workers, std::uint32_t servers = 0, double alpha = 0) {
  Cluster cluster;
  cluster.workers = workers;
  cluster.servers = servers;
  cluster.nic_bytes_per_s = kB;
  cluster.alpha_s = alpha;
  return cluster;
}

SimulatedExchange Schedule(std::string_view name) {
  SimulatedExchange exchange;
  exchange.schedule = *FindSchedule(name);
  exchange.bytes = exchange.up_bytes = exchange.down_bytes = kM;
  return exchange;
}

// Each server's and each position's share, before they are scaled to add up to 1.
SimulatedExchange Owners(const Cluster& cluster, double server, double position) {
  SimulatedExchange exchange;
  exchange.bytes = exchange.up_bytes = exchange.down_bytes = kM;
  const double sum = cluster.servers * server + cluster.workers * position;
  if (server > 0) exchange.server_shares.assign(cluster.servers, server / sum);
  if (position > 0) exchange.position_shares.assign(cluster.workers, position / sum);
  return exchange;
}

double ClosedForm(std::string_view schedule, std::uint32_t n, double alpha = 0) {
  return (*FindSchedule(schedule))->seconds(kM, kB, alpha, n);
}

SimulatedTime Simulated(const Cluster& cluster, const SimulatedExchange& exchange, Detail detail = Detail::kFull) {
  SimulationOptions options;
  options.detail = detail;
  options.pipeline_messages = 20000;
  const Result<SimulatedTime> time = Simulate(cluster, exchange, options);
  EXPECT_TRUE(time.ok()) << time.status().text();
  return time.ok() ? *time : SimulatedTime{};
}

// With one chunk per owner a ring goes round by round, as the closed form counts; with more, latency hides behind other
// chunks, so the closed form is a bound from above and the busiest NIC one from below.
TEST(Simulate, RingAndDirectMeetTheClosedForms) {
  for (const std::uint32_t n : {2u, 3u, 4u, 7u, 16u, 61u, 128u}) {
    for (const double alpha : {0.0, 1e-4}) {
      SimulationOptions rounds;
      rounds.detail = Detail::kFull;
      rounds.pipeline_messages = 1;
      const Result<SimulatedTime> ring = Simulate(Flat(n, 0, alpha), Schedule("ring"), rounds);
      ASSERT_TRUE(ring.ok());
      EXPECT_EQ(ring->chunks_per_owner, 1u);
      EXPECT_NEAR(ring->seconds, ClosedForm("ring", n, alpha), 1e-9) << n;
      const SimulatedTime piped = Simulated(Flat(n, 0, alpha), Schedule("ring"));
      EXPECT_LE(piped.seconds, ClosedForm("ring", n, alpha) + 1e-9) << n;
      EXPECT_GE(piped.seconds, 2 * kM / kB * (n - 1) / n - 1e-9) << n;
      const double direct = PredictTimes({kB, alpha, n, 0}, kM, kM).direct_s;
      EXPECT_NEAR(Simulated(Flat(n, 0, alpha), Owners(Flat(n), 0, 1)).seconds, direct, 0.001 * direct) << n;
    }
    const SimulatedTime halving = Simulated(Flat(n), Schedule("halving_doubling"));
    EXPECT_NEAR(halving.seconds, ClosedForm("halving_doubling", n), 1e-9) << n;
  }
}

// Two trees as pipelines: never faster than the busiest NIC, and within a fifth of the closed form, which counts neither
// filling and draining nor that inner positions send unequally many slabs.
TEST(Simulate, TreeIsNearItsClosedForm) {
  for (const std::uint32_t n : {4u, 8u, 13u, 64u}) {
    const SimulatedTime tree = Simulated(Flat(n), Schedule("tree"));
    EXPECT_GE(tree.seconds, tree.busiest_link_s - 1e-9);
    EXPECT_NEAR(tree.seconds, ClosedForm("tree", n), 0.2 * 0.2) << n;
  }
}

// What is left open is the last chunk's way: a server answers once all pushes of a chunk are in, so a tail of at most
// two chunks' time on the busiest NIC. On shared NICs replies also stand in line with the host's own pushes: 8 %.
TEST(Simulate, ServersMeetTheClosedForms) {
  for (const std::uint32_t n : {1u, 2u, 3u, 7u, 16u}) {
    for (const std::uint32_t k : {1u, 2u, 4u, 16u}) {
      const ModelTimes model = PredictTimes({kB, 0, n, k}, kM, kM);
      Cluster cluster = Flat(n, k);
      const SimulatedTime ps = Simulated(cluster, Owners(cluster, 1, 0));
      const double tail = 2 * std::max(1.0, static_cast<double>(n) / k) * kM / kB / ps.chunks_per_owner;
      EXPECT_GE(ps.seconds, model.ps_sharded_s - 1e-9) << n << " " << k;
      EXPECT_LE(ps.seconds, model.ps_sharded_s + tail) << n << " " << k;
      if (k > n || n % k != 0) continue;
      cluster.servers_colocated = true;
      const SimulatedTime colocated = Simulated(cluster, Owners(cluster, 1, 0));
      EXPECT_GE(colocated.seconds, model.ps_colocated_s - 1e-9) << n << " " << k;
      EXPECT_LE(colocated.seconds, 1.08 * model.ps_colocated_s + tail) << n << " " << k;
    }
  }
}

// n = 8, k = 4: the best shares are w and v with (1-w) + 7w = 8v, 8w + 4v = 1.
TEST(Simulate, HybridMeetsItsClosedForm) {
  const Cluster cluster = Flat(8, 4);
  const double w = 1.0 / 22, v = (1 - 8 * w) / 4;
  EXPECT_NEAR(1 + 6 * w, 8 * v, 1e-12);
  const SimulatedTime hybrid = Simulated(cluster, Owners(cluster, v, w));
  const double model = PredictTimes({kB, 0, 8, 4}, kM, kM).hybrid_s;
  EXPECT_NEAR(hybrid.busiest_link_s, model, 1e-9);
  EXPECT_GE(hybrid.seconds, model - 1e-9);
  EXPECT_LE(hybrid.seconds, 1.05 * model) << "32 chunks per owner, of which the first fills and the last drains";
  EXPECT_LT(hybrid.seconds, Simulated(cluster, Owners(cluster, 1, 0)).seconds);
  EXPECT_LT(hybrid.seconds, Simulated(cluster, Owners(cluster, 0, 1)).seconds);
}

TEST(Simulate, BytesAreConserved) {
  Cluster cluster = Flat(12, 3);
  cluster.workers_per_host = 4;
  cluster.inside_bytes_per_s = 50 * kB;
  SimulatedExchange ps = Owners(cluster, 1, 0);
  ps.up_bytes = kM / 4;
  ps.down_bytes = kM / 2;
  const SimulatedTime time = Simulated(cluster, ps);
  EXPECT_NEAR(time.nic_sent_bytes, 12 * (kM / 4 + kM / 2), 1);
  EXPECT_NEAR(time.nic_received_bytes, time.nic_sent_bytes, 1);
  const SimulatedTime ring = Simulated(cluster, Schedule("ring"));
  EXPECT_NEAR(ring.nic_sent_bytes, 3 * 2 * 11 * kM / 12, 1) << "three of twelve edges leave a host";
  EXPECT_NEAR(ring.inside_bytes, 9 * 2 * 11 * kM / 12, 1);
  SimulatedExchange staged = Schedule("ring");
  staged.node_stages = true;
  const SimulatedTime hierarchical = Simulated(cluster, staged);
  EXPECT_NEAR(hierarchical.nic_sent_bytes, 3 * 2 * 2 * kM / 3, 1);
  EXPECT_NEAR(hierarchical.inside_bytes, 3 * 2 * 3 * kM, 1) << "each host: in and out of the carriers";
}

TEST(Simulate, OversubscriptionSlowsOnlyWhatCrossesLeaves) {
  Cluster cluster = Flat(16);
  cluster.leaf_hosts = 4;
  const auto slower = [&](const SimulatedExchange& exchange) {
    Cluster tight = cluster;
    tight.oversubscription = 4;
    return Simulated(tight, exchange).seconds / Simulated(cluster, exchange).seconds;
  };
  // One edge of the ring leaves each leaf and the uplink has one NIC's rate; all to all, 12 of 15 parts cross.
  EXPECT_NEAR(slower(Schedule("ring")), 1, 1e-9);
  EXPECT_NEAR(slower(Owners(cluster, 0, 1)), 4 * 12.0 / 15, 0.1);
  cluster.leaf_hosts = 16;
  EXPECT_NEAR(slower(Owners(cluster, 0, 1)), 1, 1e-9) << "one leaf: nothing crosses";
}

TEST(Simulate, AnUnequalNicHoldsUpWhatUsesIt) {
  Cluster cluster = Flat(4);
  cluster.other_nics_bytes_per_s = {kB / 4};
  EXPECT_NEAR(Simulated(cluster, Schedule("ring")).seconds, 4 * 0.15, 0.03);
  // The slow host owns nothing: in and out of its NIC goes M once.
  SimulatedExchange direct = Owners(cluster, 0, 1);
  direct.position_shares = {0, 1.0 / 3, 1.0 / 3, 1.0 / 3};
  const SimulatedTime avoided = Simulated(cluster, direct);
  EXPECT_NEAR(avoided.busiest_link_s, 4 * 0.1, 1e-9);
  EXPECT_LT(avoided.seconds, 0.42);
}

TEST(Simulate, HierarchicalBeatsFlatWhereWorkersShareANic) {
  Cluster cluster = Flat(16, 4);
  cluster.workers_per_host = 4;
  cluster.inside_bytes_per_s = 40 * kB;
  SimulatedExchange direct = Owners(cluster, 0, 1), ps = Owners(cluster, 1, 0), ring = Schedule("ring");
  SimulatedExchange staged_ring = ring, staged_ps = ps, staged_direct = direct;
  staged_ring.node_stages = staged_ps.node_stages = staged_direct.node_stages = true;
  staged_direct.position_shares.assign(4, 0.25);
  EXPECT_LT(Simulated(cluster, staged_ring).seconds, 0.85 * Simulated(cluster, ring).seconds);
  EXPECT_LT(Simulated(cluster, staged_ps).seconds, 0.5 * Simulated(cluster, ps).seconds);
  EXPECT_LT(Simulated(cluster, staged_direct).seconds, 0.5 * Simulated(cluster, direct).seconds);
  cluster.workers = 14;  // the last host has two workers
  EXPECT_NEAR(Simulated(cluster, staged_ring).seconds, 0.15, 0.02);
}

// The same bits, because ties are broken by what a rotation keeps.
TEST(Simulate, ClassesGiveTheTimesOfTheFullSimulation) {
  for (const std::uint32_t per_host : {1u, 2u, 4u}) {
    for (const std::uint32_t leaf_hosts : {0u, 2u, 4u}) {
      for (const std::uint32_t n : {16u, 32u}) {
        for (const bool colocated : {false, true}) {
          Cluster cluster = Flat(n, n / 8, 1e-5);
          cluster.workers_per_host = per_host;
          cluster.inside_bytes_per_s = 20 * kB;
          cluster.inside_alpha_s = 1e-6;
          cluster.leaf_hosts = leaf_hosts;
          cluster.oversubscription = leaf_hosts == 0 ? 1 : 4;
          cluster.servers_colocated = colocated;
          std::vector<SimulatedExchange> exchanges = {Schedule("ring"), Schedule("halving_doubling"),
                                                      Owners(cluster, 1, 0), Owners(cluster, 0, 1),
                                                      Owners(cluster, 2, 1)};
          for (std::size_t i = 0; i < exchanges.size(); ++i) {
            for (const bool staged : {false, true}) {
              SimulatedExchange exchange = exchanges[i];
              if (staged) {
                exchange.node_stages = true;
                Cluster hosts = cluster;
                hosts.workers /= per_host;
                if (!exchange.position_shares.empty()) exchange = Owners(hosts, i == 4 ? 2 : 0, 1);
                exchange.node_stages = true;
              }
              exchange.bytes = exchange.down_bytes = kM / 8;
              exchange.up_bytes = i == 2 ? kM / 16 : kM / 8;
              const SimulatedTime full = Simulated(cluster, exchange), classes = Simulated(cluster, exchange, Detail::kClasses);
              EXPECT_EQ(full.seconds, classes.seconds)
                  << n << " x " << per_host << ", leaf " << leaf_hosts << ", exchange " << i << (staged ? " staged" : "");
              EXPECT_NEAR(full.nic_sent_bytes, classes.nic_sent_bytes, 1);
              EXPECT_NEAR(full.leaf_bytes, classes.leaf_bytes, 1);
              EXPECT_NEAR(full.busiest_link_s, classes.busiest_link_s, 1e-12);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(SymmetryPeriod(Flat(64), Schedule("ring")), 1u);
  EXPECT_EQ(SymmetryPeriod(Flat(64), Schedule("tree")), 64u) << "two fixed trees have no rotation";
  Cluster uneven = Flat(64);
  uneven.other_nics_bytes_per_s = {kB};
  EXPECT_EQ(SymmetryPeriod(uneven, Schedule("ring")), 64u);
}

TEST(Simulate, SizesAreBoundedAndLargeOnesGoByClasses) {
  Cluster large = Flat(65536, 4096, 1e-5);
  const SimulatedTime ring = Simulated(large, Schedule("ring"), Detail::kAuto);
  EXPECT_TRUE(ring.by_classes);
  EXPECT_NEAR(ring.seconds, ClosedForm("ring", 65536, 1e-5), 1e-6);
  const SimulatedTime ps = Simulated(large, Owners(large, 1, 0), Detail::kAuto);
  EXPECT_GE(ps.seconds, PredictTimes({kB, 1e-5, 65536, 4096}, kM, kM).ps_sharded_s - 1e-9);

  const Result<SimulatedTime> tree = Simulate(large, Schedule("tree"));
  ASSERT_FALSE(tree.ok());
  EXPECT_EQ(tree.status().kind(), StatusKind::kUnsupported);
  EXPECT_NE(tree.status().text().find("more than the bound"), std::string::npos) << tree.status().text();
  Cluster wrong = Flat(4);
  wrong.nic_bytes_per_s = 0;
  EXPECT_EQ(Simulate(wrong, Schedule("ring")).status().kind(), StatusKind::kInvalidArgument);
  SimulatedExchange shares = Owners(Flat(4), 0, 1);
  shares.position_shares.pop_back();
  EXPECT_EQ(Simulate(Flat(4), shares).status().kind(), StatusKind::kInvalidArgument);
}

// Whatever the cluster: no exchange is faster than its busiest link, nor than one gradient through the narrowest NIC.
TEST(Simulate, RandomClustersKeepTheLowerBound) {
  std::mt19937 random(7);
  const auto pick = [&](std::uint32_t least, std::uint32_t most) {
    return least + static_cast<std::uint32_t>(random() % (most - least + 1));
  };
  for (int round = 0; round < 150; ++round) {
    Cluster cluster = Flat(pick(1, 13), pick(1, 5), pick(0, 1) * 1e-4);
    cluster.workers_per_host = pick(1, 4);
    cluster.servers_colocated = pick(0, 1) == 1;
    cluster.inside_bytes_per_s = pick(0, 3) * kB;
    cluster.leaf_hosts = pick(0, 3);
    cluster.oversubscription = pick(1, 4);
    const std::uint32_t hosts = ClusterMap(cluster).worker_hosts();
    for (std::uint32_t i = pick(0, hosts); i > 0; --i) cluster.other_nics_bytes_per_s.push_back(pick(1, 4) * kB / 2);
    SimulatedExchange exchange = Schedule(Schedules()[random() % Schedules().size()].name);
    const std::uint32_t kind = pick(0, 3);
    if (kind > 0) exchange = Owners(cluster, kind != 2 ? 1 : 0, kind != 1 ? 1 : 0);
    if (pick(0, 1) == 1) {
      exchange.node_stages = true;
      if (!exchange.position_shares.empty()) {
        const double all = exchange.server_shares.empty() ? 1 : 0.5;
        exchange.position_shares.assign(hosts, all / hosts);
        for (double& share : exchange.server_shares) share = 0.5 / cluster.servers;
      }
    }
    const SimulatedTime time = Simulated(cluster, exchange);
    EXPECT_GE(time.seconds, time.busiest_link_s - 1e-9);
    EXPECT_NEAR(time.nic_sent_bytes, time.nic_received_bytes, 1);
    double narrowest = cluster.nic_bytes_per_s;
    for (const double nic : cluster.other_nics_bytes_per_s) narrowest = std::min(narrowest, nic);
    // Everything that a host does not own itself comes in through its NIC.
    if (hosts > 1 && exchange.schedule != nullptr) {
      EXPECT_GE(time.seconds, kM / narrowest * (hosts - 1) / hosts - 1e-9);
    }
  }
}

}  // namespace
}  // namespace tally
