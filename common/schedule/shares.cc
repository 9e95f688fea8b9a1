#include "common/schedule/shares.h"

#include <algorithm>

#include "common/check.h"

namespace tally {
namespace {

constexpr double kNothing = 1e-9;  // a share that is rounding

// The shares that a NIC may have for which it moves no more than `bound` bytes in either direction.
struct Range {
  double low = 0, high = 1;
  bool empty() const { return low > high; }
};

NicLoad LoadOf(double workers, double all_workers, double share, const ExchangeBytes& bytes) {
  const double pushing = workers * (1 - share), owning = (all_workers - workers) * share;
  return {pushing * bytes.up + owning * bytes.down, pushing * bytes.down + owning * bytes.up};
}

Range SharesWithin(double bound, const NicKind& nic, double all_workers, const ExchangeBytes& bytes) {
  Range range{0, nic.owns ? 1.0 : 0.0};
  const NicLoad none = LoadOf(nic.workers, all_workers, 0, bytes), all = LoadOf(nic.workers, all_workers, 1, bytes);
  const auto limit = [&](double at_none, double at_all) {
    const double slope = at_all - at_none;
    if (slope > 0) {
      range.high = std::min(range.high, (bound - at_none) / slope);
    } else if (slope < 0) {
      range.low = std::max(range.low, (at_none - bound) / -slope);
    } else if (at_none > bound) {
      range.high = -1;
    }
  };
  limit(none.sent_bytes, all.sent_bytes);
  limit(none.received_bytes, all.received_bytes);
  return range;
}

double AllWorkers(std::span<const NicKind> nics) {
  double workers = 0;
  for (const NicKind& nic : nics) workers += static_cast<double>(nic.workers) * static_cast<double>(nic.count);
  return workers;
}

bool SharesExist(double seconds, std::span<const NicKind> nics, double all_workers, const ExchangeBytes& bytes) {
  double low = 0, high = 0;
  for (const NicKind& nic : nics) {
    const Range range = SharesWithin(seconds * nic.bytes_per_s, nic, all_workers, bytes);
    if (range.empty()) return false;
    low += range.low * static_cast<double>(nic.count);
    high += range.high * static_cast<double>(nic.count);
  }
  return low <= 1 && high >= 1;
}

double SecondsOf(std::span<const NicKind> nics, std::span<const double> shares, double all_workers,
                 const ExchangeBytes& bytes) {
  double seconds = 0;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    seconds = std::max(seconds,
                       LoadOf(nics[i].workers, all_workers, shares[i], bytes).seconds(nics[i].bytes_per_s));
  }
  return seconds;
}

}  // namespace

double NicLoad::seconds(double bytes_per_s) const { return std::max(sent_bytes, received_bytes) / bytes_per_s; }

NicShares SolveNicShares(std::span<const NicKind> nics, const ExchangeBytes& bytes) {
  const double workers = AllWorkers(nics);
  double owning = 0;
  for (const NicKind& nic : nics) {
    TALLY_CHECK(nic.bytes_per_s > 0, "a NIC's rate is more than 0");
    if (nic.owns) owning += static_cast<double>(nic.count);
  }
  TALLY_CHECK(workers > 0 && owning > 0, "shares want a worker and an owner");

  NicShares equal;
  for (const NicKind& nic : nics) equal.shares.push_back(nic.owns ? 1 / owning : 0);
  equal.seconds = SecondsOf(nics, equal.shares, workers, bytes);
  double low = 0, high = equal.seconds;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (SharesExist(middle, nics, workers, bytes) ? high : low) = middle;
  }

  // Where the bound leaves room each NIC takes the same part of its own.
  std::vector<Range> ranges;
  double lowest = 0, room = 0;
  for (const NicKind& nic : nics) {
    Range range = SharesWithin(high * nic.bytes_per_s, nic, workers, bytes);
    range.low = std::clamp(range.low, 0.0, 1.0);  // by rounding it may be empty
    range.high = std::clamp(range.high, range.low, 1.0);
    lowest += range.low * static_cast<double>(nic.count);
    room += (range.high - range.low) * static_cast<double>(nic.count);
    ranges.push_back(range);
  }
  const double part = room > 0 ? std::clamp((1 - lowest) / room, 0.0, 1.0) : 0;
  NicShares solved;
  double sum = 0;
  for (std::size_t i = 0; i < nics.size(); ++i) {
    solved.shares.push_back(ranges[i].low + part * (ranges[i].high - ranges[i].low));
    sum += solved.shares.back() * static_cast<double>(nics[i].count);
  }
  // Where no share changes a NIC's load (two workers, one on each) rounding may leave room for none.
  if (!(sum > 0)) return equal;
  for (double& share : solved.shares) share /= sum;
  solved.seconds = SecondsOf(nics, solved.shares, workers, bytes);
  return solved.seconds < equal.seconds ? solved : equal;
}

std::vector<NicLoad> LoadsOfShares(const Placement& placement, std::span<const Share> shares,
                                   const ExchangeBytes& bytes) {
  std::vector<double> workers(placement.nic_bytes_per_s.size()), owned(workers.size());
  for (const std::uint32_t nic : placement.worker_nics) workers[nic] += 1;
  double sum = 0;
  for (const Share& share : shares) sum += share.share;
  for (const Share& share : shares) {
    const auto& nics = share.owner.role == Role::kServer ? placement.server_nics : placement.worker_nics;
    owned[nics[share.owner.index]] += share.share / sum;
  }
  std::vector<NicLoad> loads;
  const auto all = static_cast<double>(placement.worker_nics.size());
  for (std::size_t nic = 0; nic < workers.size(); ++nic) loads.push_back(LoadOf(workers[nic], all, owned[nic], bytes));
  return loads;
}

void FindBusiestNic(const Placement& placement, ShareTable* table) {
  table->seconds = 0;
  for (std::uint32_t nic = 0; nic < table->loads.size(); ++nic) {
    const double seconds = table->loads[nic].seconds(placement.nic_bytes_per_s[nic]);
    if (seconds <= table->seconds) continue;
    table->seconds = seconds;
    table->busiest_nic = nic;
  }
}

ShareTable SolveShares(const Placement& placement, OwnerSet set, const ExchangeBytes& bytes) {
  std::vector<NicKind> nics;
  for (const double rate : placement.nic_bytes_per_s) nics.push_back({.bytes_per_s = rate});
  std::vector<double> owners(nics.size());
  for (const std::uint32_t nic : placement.worker_nics) ++nics[nic].workers;
  const auto nic_of = [&](const OwnerRef& owner) {
    return (owner.role == Role::kServer ? placement.server_nics : placement.worker_nics)[owner.index];
  };
  ShareTable table;
  const std::vector<Share> members =
      EqualShares(set, static_cast<std::uint32_t>(placement.server_nics.size()),
                  static_cast<std::uint32_t>(placement.worker_nics.size()));
  for (const Share& member : members) {
    nics[nic_of(member.owner)].owns = true;
    owners[nic_of(member.owner)] += 1;
  }
  const NicShares solved = SolveNicShares(nics, bytes);
  for (const Share& member : members) {
    const std::uint32_t nic = nic_of(member.owner);
    const double share = solved.shares[nic] / owners[nic];
    if (share > kNothing) table.shares.push_back({member.owner, share});
  }
  table.loads = LoadsOfShares(placement, table.shares, bytes);
  FindBusiestNic(placement, &table);
  return table;
}

}  // namespace tally
