// BottleneckTour of topology.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "common/schedule/topology.h"

namespace tally {
namespace {

constexpr std::uint32_t kExact = 16, kMaxMembers = 4096;
constexpr std::uint32_t kTries = 3, kStepsPerMember = 60;

using Order = std::vector<std::uint32_t>;

// The graph of the edges that are at least so fast.
class Graph {
 public:
  Graph(std::span<const double> bandwidth, std::uint32_t n) : bandwidth_(bandwidth), n_(n) {}

  std::uint32_t size() const { return n_; }
  void Keep(double threshold) { threshold_ = threshold; }
  double Speed(std::uint32_t i, std::uint32_t j) const {
    return std::min(bandwidth_[std::size_t{i} * n_ + j], bandwidth_[std::size_t{j} * n_ + i]);
  }
  bool Edge(std::uint32_t i, std::uint32_t j) const { return Speed(i, j) >= threshold_; }

  // What every graph with a tour has: each member two edges, and no member whose loss cuts the rest apart (found by
  // depth-first search with low points, Tarjan 1972, without recursion).
  bool MayHaveTour() const {
    std::vector<std::uint32_t> entered(n_, 0), low(n_, 0), parent(n_, 0), next(n_, 0), stack = {0};
    std::uint32_t time = 1, root_children = 0;
    entered[0] = low[0] = time++;
    while (!stack.empty()) {
      const std::uint32_t v = stack.back();
      if (next[v] == n_) {
        stack.pop_back();
        if (stack.empty()) break;
        const std::uint32_t p = parent[v];
        low[p] = std::min(low[p], low[v]);
        if (p != 0 && low[v] >= entered[p] && n_ > 2) return false;
        continue;
      }
      const std::uint32_t u = next[v]++;
      if (u == v || !Edge(v, u)) continue;
      if (entered[u] != 0) {
        low[v] = std::min(low[v], entered[u]);
        continue;
      }
      parent[u] = v;
      entered[u] = low[u] = time++;
      root_children += v == 0 ? 1 : 0;
      stack.push_back(u);
    }
    return time == n_ + 1 && (root_children <= 1);
  }

 private:
  std::span<const double> bandwidth_;
  std::uint32_t n_;
  double threshold_ = 0;
};

// For each set that holds 0: at which members a path from 0 through all of it may end (Bellman 1962).
std::optional<Order> ExactTour(const Graph& graph) {
  const std::uint32_t n = graph.size();
  std::vector<std::uint32_t> near(n, 0);
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t j = 0; j < n; ++j) near[i] |= i != j && graph.Edge(i, j) ? 1u << j : 0;
  }
  std::vector<std::uint32_t> ends(std::size_t{1} << n, 0);
  ends[1] = 1;
  for (std::uint32_t set = 1; set < ends.size(); set += 2) {
    for (std::uint32_t left = ends[set]; left != 0; left &= left - 1) {
      for (std::uint32_t more = near[static_cast<std::uint32_t>(std::countr_zero(left))] & ~set; more != 0;
           more &= more - 1) {
        ends[set | (more & -more)] |= more & -more;
      }
    }
  }
  std::uint32_t set = static_cast<std::uint32_t>(ends.size() - 1), choice = ends[set] & near[0];
  if (choice == 0) return std::nullopt;
  Order order;
  while (set != 1) {
    const auto last = static_cast<std::uint32_t>(std::countr_zero(choice));
    order.push_back(last);
    set &= ~(1u << last);
    choice = ends[set] & near[last];
  }
  order.push_back(0);
  std::ranges::reverse(order);
  return order;
}

// Extends a path, or turns its end around where it cannot, until it is a tour. May give up though there is one.
std::optional<Order> RotatedTour(const Graph& graph, std::uint32_t seed) {
  const std::uint32_t n = graph.size();
  std::uint64_t random = 0x9E3779B97F4A7C15u * (seed + 1);
  const auto draw = [&random](std::size_t below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>((random >> 33) % below);
  };
  Order path = {0};
  std::vector<bool> on_path(n, false);
  on_path[0] = true;
  std::vector<std::uint32_t> fresh, turns;
  for (std::uint32_t step = 0; step < kStepsPerMember * n; ++step) {
    const std::uint32_t end = path.back();
    if (path.size() == n && graph.Edge(end, path.front())) return path;
    fresh.clear();
    turns.clear();
    for (std::uint32_t u = 0; u < n; ++u) {
      if (!on_path[u] && graph.Edge(end, u)) fresh.push_back(u);
    }
    if (!fresh.empty()) {
      path.push_back(fresh[draw(fresh.size())]);
      on_path[path.back()] = true;
      continue;
    }
    for (std::uint32_t i = 0; i + 2 < path.size(); ++i) {
      if (graph.Edge(end, path[i])) turns.push_back(i);
    }
    if (turns.empty()) return std::nullopt;
    const auto at = static_cast<std::ptrdiff_t>(turns[draw(turns.size())]);
    std::reverse(path.begin() + at + 1, path.end());
  }
  return std::nullopt;
}

std::optional<Order> FindTour(const Graph& graph) {
  if (graph.size() <= kExact) return ExactTour(graph);
  for (std::uint32_t seed = 0; seed < kTries; ++seed) {
    if (std::optional<Order> tour = RotatedTour(graph, seed)) return tour;
  }
  return std::nullopt;
}

}  // namespace

double LeastBandwidth(std::span<const double> bandwidth, std::span<const std::uint32_t> order) {
  const Graph graph(bandwidth, static_cast<std::uint32_t>(order.size()));
  double least = order.size() > 1 ? INFINITY : 0;
  for (std::size_t i = 0; order.size() > 1 && i < order.size(); ++i) {
    least = std::min(least, graph.Speed(order[i], order[(i + 1) % order.size()]));
  }
  return least;
}

Result<Tour> BottleneckTour(std::span<const double> bandwidth, std::uint32_t n) {
  if (n == 0 || n > kMaxMembers || bandwidth.size() != std::size_t{n} * n) {
    return InvalidArgument("a bandwidth matrix has as many rows as columns, 1 to " + std::to_string(kMaxMembers));
  }
  if (!std::ranges::all_of(bandwidth, [](double b) { return std::isfinite(b) && b >= 0; })) {
    return InvalidArgument("a bandwidth is 0 or more");
  }
  Tour tour;
  tour.order.resize(n);
  std::iota(tour.order.begin(), tour.order.end(), 0u);
  tour.least = tour.bound = LeastBandwidth(bandwidth, tour.order);
  if (n <= 3) return tour;  // one ring there is

  Graph graph(bandwidth, n);
  std::vector<double> speeds;
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t j = 0; j < i; ++j) speeds.push_back(graph.Speed(i, j));
  }
  std::ranges::sort(speeds);
  speeds.erase(std::unique(speeds.begin(), speeds.end()), speeds.end());
  // The largest speed of which `holds`; the slowest edge of all always does.
  const auto largest = [&](const auto& holds) {
    std::size_t low = 0, high = speeds.size();
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      graph.Keep(speeds[middle]);
      (holds() ? low : high) = middle;
    }
    return speeds[low];
  };
  tour.bound = std::max(tour.least, largest([&] { return graph.MayHaveTour(); }));
  const auto search = [&] {
    std::optional<Order> found = FindTour(graph);
    if (!found.has_value()) return false;
    if (const double least = LeastBandwidth(bandwidth, *found); least > tour.least) {
      tour.order = std::move(*found);
      tour.least = least;
    }
    return true;
  };
  // The search may miss a tour in a denser graph that it finds in a sparser one, so it begins where only the best are.
  graph.Keep(tour.bound);
  if (!search()) (void)largest(search);
  if (n <= kExact) tour.bound = tour.least;
  return tour;
}

}  // namespace tally
