// The best shares: the closed forms, bytes counted one transfer at a time, and that no other shares are better.
#include "common/schedule/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/placement.h"

namespace tally {
namespace {

constexpr double kB = 1e9, kM = 1e8;  // M/B = 0.1 s

Placement Separate(std::uint32_t n, std::uint32_t k) { return test::Separate(n, k, kB); }

double ShareOf(const ShareTable& table, Role role, std::uint32_t index) {
  const auto found = std::ranges::find(table.shares, OwnerRef{role, index}, &Share::owner);
  return found == table.shares.end() ? 0 : found->share;
}

// Every push and every reply, one after the other.
std::vector<NicLoad> CountBytes(const Placement& placement, const std::vector<Share>& shares, ExchangeBytes bytes) {
  std::vector<NicLoad> loads(placement.nic_bytes_per_s.size());
  const auto transfer = [&](std::uint32_t from, std::uint32_t to, double size) {
    if (from == to) return;
    loads[from].sent_bytes += size;
    loads[to].received_bytes += size;
  };
  for (const std::uint32_t worker : placement.worker_nics) {
    for (const Share& share : shares) {
      const std::uint32_t owner = (share.owner.role == Role::kServer ? placement.server_nics
                                                                     : placement.worker_nics)[share.owner.index];
      transfer(worker, owner, share.share * bytes.up);
      transfer(owner, worker, share.share * bytes.down);
    }
  }
  return loads;
}

double Slowest(const Placement& placement, const std::vector<NicLoad>& loads) {
  double slowest = 0;
  for (std::size_t nic = 0; nic < loads.size(); ++nic) {
    slowest = std::max(slowest, std::max(loads[nic].sent_bytes, loads[nic].received_bytes) /
                                    placement.nic_bytes_per_s[nic]);
  }
  return slowest;
}

void ExpectConsistent(const Placement& placement, const ShareTable& table, ExchangeBytes bytes) {
  double sum = 0;
  for (const Share& share : table.shares) {
    EXPECT_GT(share.share, 0);
    sum += share.share;
  }
  EXPECT_NEAR(sum, 1, 1e-6);
  const std::vector<NicLoad> counted = CountBytes(placement, table.shares, bytes);
  const double size = std::max(bytes.up, bytes.down);
  for (std::size_t nic = 0; nic < counted.size(); ++nic) {
    EXPECT_NEAR(table.loads[nic].sent_bytes, counted[nic].sent_bytes, 1e-6 * size) << nic;
    EXPECT_NEAR(table.loads[nic].received_bytes, counted[nic].received_bytes, 1e-6 * size) << nic;
    EXPECT_LE(std::max(counted[nic].sent_bytes, counted[nic].received_bytes),
              table.seconds * placement.nic_bytes_per_s[nic] + 1e-6 * size)
        << nic;
  }
  EXPECT_NEAR(table.loads[table.busiest_nic].seconds(placement.nic_bytes_per_s[table.busiest_nic]), table.seconds, 1e-12);
}

// T = 2n(n-1)M/((n^2+kn-2k)B): k = 0 is the ring's bound, k = n M/B, more servers do not help.
TEST(Shares, EqualSeparateNicsMeetTheClosedForm) {
  for (std::uint32_t n = 3; n <= 64; n += n < 9 ? 1 : 11) {
    for (std::uint32_t k = 0; k <= n + 3; ++k) {
      const ShareTable table = SolveShares(Separate(n, k), OwnerSet::kBoth, {kM, kM});
      const double dn = n, dk = std::min(k, n);
      EXPECT_NEAR(table.seconds, 2 * dn * (dn - 1) / (dn * dn + dk * dn - 2 * dk) * kM / kB, 1e-9) << n << " " << k;
      for (std::uint32_t i = 1; i < n; ++i) {
        EXPECT_DOUBLE_EQ(ShareOf(table, Role::kWorker, i), ShareOf(table, Role::kWorker, 0));
      }
      for (std::uint32_t i = 1; i < k; ++i) {
        EXPECT_DOUBLE_EQ(ShareOf(table, Role::kServer, i), ShareOf(table, Role::kServer, 0));
      }
    }
    EXPECT_NEAR(SolveShares(Separate(n, 0), OwnerSet::kBoth, {kM, kM}).seconds, 2.0 * (n - 1) / n * kM / kB, 1e-9);
    EXPECT_NEAR(SolveShares(Separate(n, n), OwnerSet::kBoth, {kM, kM}).seconds, kM / kB, 1e-9);
  }
}

TEST(Shares, KindsOfNicsGiveWhatTheyGiveOneByOne) {
  for (const std::uint32_t n : {2U, 3U, 7U}) {
    for (const std::uint32_t k : {1U, 2U, 9U}) {
      const std::vector<NicKind> kinds = {{.bytes_per_s = kB, .workers = 1, .owns = true, .count = n},
                                          {.bytes_per_s = kB / 2, .owns = true, .count = k}};
      Placement placement = Separate(n, k);
      std::fill(placement.nic_bytes_per_s.begin() + n, placement.nic_bytes_per_s.end(), kB / 2);
      const NicShares solved = SolveNicShares(kinds, {kM, kM / 3});
      const ShareTable table = SolveShares(placement, OwnerSet::kBoth, {kM, kM / 3});
      EXPECT_NEAR(solved.seconds, table.seconds, 1e-12);
      EXPECT_NEAR(solved.shares[0], ShareOf(table, Role::kWorker, 0), 1e-9);
      EXPECT_NEAR(solved.shares[1], ShareOf(table, Role::kServer, 0), 1e-9);
    }
  }
}

TEST(Shares, OneOrTwoWorkers) {
  const ShareTable one = SolveShares(Separate(1, 2), OwnerSet::kBoth, {kM, kM});
  EXPECT_EQ(one.seconds, 0);
  ASSERT_EQ(one.shares.size(), 1U) << "a lone worker keeps everything";
  EXPECT_EQ(one.shares[0].owner, (OwnerRef{Role::kWorker, 0}));
  EXPECT_DOUBLE_EQ(SolveShares(Separate(1, 2), OwnerSet::kServers, {kM, kM}).seconds, kM / kB);
  for (const std::uint32_t k : {0U, 1U, 5U}) {
    EXPECT_NEAR(SolveShares(Separate(2, k), OwnerSet::kBoth, {kM, kM}).seconds, kM / kB, 1e-12) << k;
  }
}

// One of four workers has 0.3 of the others' speed: what it must push bounds all, so it owns nothing.
TEST(Shares, ASlowWorkerOwnsLess) {
  for (const std::uint32_t k : {0U, 2U}) {
    Placement placement = Separate(4, k);
    placement.nic_bytes_per_s[1] = 0.3 * kB;
    const ShareTable table = SolveShares(placement, OwnerSet::kBoth, {kM, kM});
    EXPECT_NEAR(table.seconds, kM / (0.3 * kB), 1e-9) << k;
    EXPECT_NEAR(ShareOf(table, Role::kWorker, 1), 0, 1e-6);
    EXPECT_EQ(table.busiest_nic, 1U);
    ExpectConsistent(placement, table, {kM, kM});
  }
  Placement placement = Separate(4, 2);
  placement.nic_bytes_per_s[1] = 0.9 * kB;  // now the bound lies between: all finish together
  const ShareTable table = SolveShares(placement, OwnerSet::kBoth, {kM, kM});
  EXPECT_LT(ShareOf(table, Role::kWorker, 1), ShareOf(table, Role::kWorker, 0));
  for (std::size_t nic = 0; nic < table.loads.size(); ++nic) {
    EXPECT_NEAR(table.loads[nic].seconds(placement.nic_bytes_per_s[nic]), table.seconds, 1e-9) << nic;
  }
}

TEST(Shares, ASlowServerOwnsLessInEverySet) {
  Placement placement = Separate(4, 2);
  placement.nic_bytes_per_s[4] = kB / 3;
  const ShareTable servers = SolveShares(placement, OwnerSet::kServers, {kM, kM});
  EXPECT_NEAR(ShareOf(servers, Role::kServer, 0), 0.25, 1e-9);
  EXPECT_NEAR(servers.seconds, 4 * 0.25 * kM / (kB / 3), 1e-9);
  EXPECT_EQ(servers.shares.size(), 2U);
  EXPECT_LT(SolveShares(placement, OwnerSet::kBoth, {kM, kM}).seconds, servers.seconds);
  EXPECT_NEAR(SolveShares(placement, OwnerSet::kWorkers, {kM, kM}).seconds, 0.15, 1e-9) << "servers are no part of it";
}

// A server on each worker's NIC adds no NIC: what is left is the ring's bound. Behind one NIC nothing crosses it.
TEST(Shares, RolesOnOneNicAddUp) {
  Placement placement = Separate(4, 0);
  placement.server_nics = {0, 1, 2, 3};
  for (const OwnerSet set : {OwnerSet::kServers, OwnerSet::kWorkers, OwnerSet::kBoth}) {
    EXPECT_NEAR(SolveShares(placement, set, {kM, kM}).seconds, 0.15, 1e-9);
  }
  EXPECT_NEAR(ShareOf(SolveShares(placement, OwnerSet::kBoth, {kM, kM}), Role::kServer, 2), 0.125, 1e-9);
  placement.server_nics = {0};
  EXPECT_NEAR(SolveShares(placement, OwnerSet::kServers, {kM, kM}).seconds, 0.3, 1e-9) << "(1 + (n-2)/k) M/B";

  Placement pairs;  // two nodes of two workers each
  pairs.nic_bytes_per_s = {kB, kB};
  pairs.worker_nics = {0, 0, 1, 1};
  EXPECT_NEAR(SolveShares(pairs, OwnerSet::kWorkers, {kM, kM}).seconds, 0.2, 1e-9);

  Placement host;
  host.nic_bytes_per_s = {kB};
  host.worker_nics = {0, 0, 0};
  host.server_nics = {0};
  const ShareTable together = SolveShares(host, OwnerSet::kBoth, {kM, kM});
  EXPECT_EQ(together.seconds, 0);
  EXPECT_EQ(together.shares.size(), 4U);
}

TEST(Shares, NothingToSend) {
  const ShareTable table = SolveShares(Separate(3, 2), OwnerSet::kBoth, {0, 0});
  EXPECT_EQ(table.seconds, 0);
  EXPECT_EQ(table.shares.size(), 5U);
}

TEST(Shares, MoreServersAndFasterNicsNeverHurt) {
  for (const double down : {0.25, 1.0, 4.0}) {
    for (const std::uint32_t n : {2U, 3U, 4U, 7U}) {
      double last = 1e9;
      for (std::uint32_t k = 0; k <= 2 * n; ++k) {
        const double seconds = SolveShares(Separate(n, k), OwnerSet::kBoth, {kM, down * kM}).seconds;
        EXPECT_LE(seconds, last + 1e-12) << n << " " << k;
        last = seconds;
      }
      last = 1e9;
      for (const double rate : {0.1, 0.5, 1.0, 3.0}) {
        Placement placement = Separate(n, 2);
        placement.nic_bytes_per_s[0] = rate * kB;
        const double seconds = SolveShares(placement, OwnerSet::kBoth, {kM, down * kM}).seconds;
        EXPECT_LE(seconds, last + 1e-12) << n << " " << rate;
        last = seconds;
      }
    }
  }
}

// Random clusters: bytes counted apart agree, and shares moved between any owners make no exchange faster.
TEST(Shares, NoOtherSharesAreBetter) {
  std::mt19937_64 random(7);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  const auto index = [&](std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random); };
  for (int round = 0; round < 300; ++round) {
    Placement placement;
    for (std::size_t i = 0, nics = 1 + index(7); i < nics; ++i) placement.nic_bytes_per_s.push_back(uniform(0.1, 2) * kB);
    const auto anywhere = [&] { return static_cast<std::uint32_t>(index(placement.nic_bytes_per_s.size())); };
    for (std::size_t i = 0, n = 1 + index(7); i < n; ++i) placement.worker_nics.push_back(anywhere());
    for (std::size_t i = 0, k = 1 + index(6); i < k; ++i) placement.server_nics.push_back(anywhere());
    const ExchangeBytes bytes = {uniform(0.05, 1) * kM, uniform(0.05, 1) * kM};
    for (const OwnerSet set : {OwnerSet::kServers, OwnerSet::kWorkers, OwnerSet::kBoth}) {
      const ShareTable table = SolveShares(placement, set, bytes);
      ExpectConsistent(placement, table, bytes);
      std::vector<Share> all = EqualShares(set, static_cast<std::uint32_t>(placement.server_nics.size()),
                                           static_cast<std::uint32_t>(placement.worker_nics.size()));
      for (Share& share : all) share.share = ShareOf(table, share.owner.role, share.owner.index);
      for (int attempt = 0; attempt < 40; ++attempt) {
        std::vector<Share> other = all;
        for (std::size_t move = 0, moves = 1 + index(3); move < moves; ++move) {
          Share& from = other[index(other.size())];
          const double part = from.share * uniform(0, attempt % 2 == 0 ? 0.01 : 1);
          from.share -= part;
          other[index(other.size())].share += part;
        }
        ASSERT_GE(Slowest(placement, CountBytes(placement, other, bytes)), table.seconds * (1 - 1e-6) - 1e-12)
            << "round " << round;
      }
    }
  }
}

// Of two workers each moves the gradient once whatever it owns; rates and sizes whose quotients round.
TEST(Shares, AreThereWhereTheyChangeNothing) {
  Placement placement;
  placement.worker_nics = {0, 1};
  placement.server_nics = {2, 2};
  for (const double rate : {1.25e8, 1e9 / 3, 7.0}) {
    for (const double bytes : {0.0, 4.0, 16380.0, 16388.0, 400012.0, 1e9 / 7}) {
      placement.nic_bytes_per_s.assign(3, rate);
      const ShareTable table = SolveShares(placement, OwnerSet::kWorkers, {bytes, bytes});
      ASSERT_EQ(table.shares.size(), 2U) << rate << ", " << bytes;
      EXPECT_NEAR(table.shares[0].share + table.shares[1].share, 1, 1e-9);
      EXPECT_NEAR(table.seconds, bytes / rate, 1e-9 * (1 + bytes / rate));
    }
  }
}

}  // namespace
}  // namespace tally
