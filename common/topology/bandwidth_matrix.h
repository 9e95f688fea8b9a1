// Measured bandwidths between hosts: the file that `tally topology --measure` writes, and the order of positions that
// it leads to. Takes hostile text: everything is bounded. Pure but for Read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace tally {

inline constexpr std::size_t kMaxMatrixBytes = std::size_t{256} << 20;
// That a job's coordinator solves for, in at most some seconds; `tally topology --matrix` takes 4096.
inline constexpr std::uint32_t kMaxJobMatrixHosts = 256;

// values[i * size + j]: from i to j, bytes per second or any other unit.
struct BandwidthMatrix {
  std::vector<std::string> names;  // of the hosts, each once; none if the file gives no names
  std::vector<double> values;
  std::uint32_t size = 0;
};

// n lines of n numbers of 0 or more, separated by blanks or commas, before each the host's name and a colon, or before
// none; # begins a comment. Errors: kInvalidArgument with the line and what is wrong.
Result<BandwidthMatrix> ParseBandwidthMatrix(std::string_view text);
// Errors: as above, and a file that cannot be read or is too large, with its path.
Result<BandwidthMatrix> ReadBandwidthMatrix(const std::string& path);
std::string PrintBandwidthMatrix(const BandwidthMatrix& matrix);

// Where a rank runs: a row is that of its node if one is named so, else that of its host.
struct MatrixPlace {
  std::string node, host;
};
struct MatrixOrder {
  std::vector<std::uint32_t> order;  // ranks by position
  double least = 0, least_before = 0;  // of the slowest edge between nodes, in this order and in the usual one
};
// The usual order of ranks (topology.h, nodes together), with its nodes around the ring whose slowest edge is the
// fastest; that order itself where none is better. Ranks keep their order within a node; the first node stays first.
// Errors: kInvalidArgument: a node that no row names, two nodes of one row, no names, too many hosts.
Result<MatrixOrder> OrderByMatrix(const BandwidthMatrix& matrix, std::span<const MatrixPlace> places,
                                  std::span<const std::uint32_t> usual);

}  // namespace tally
