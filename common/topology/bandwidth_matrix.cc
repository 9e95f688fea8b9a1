#include "common/topology/bandwidth_matrix.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "common/control.h"
#include "common/schedule/topology.h"

namespace tally {
namespace {

constexpr std::string_view kBlanks = " \t\r,";

Status Fault(std::size_t line, const std::string& what) {
  return InvalidArgument("line " + std::to_string(line) + ": " + what);
}

// Appends the row's numbers.
Status ReadNumbers(std::string_view line, std::size_t number, std::vector<double>* values) {
  for (;;) {
    line.remove_prefix(std::min(line.find_first_not_of(kBlanks), line.size()));
    if (line.empty()) return Status::Ok();
    double value = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    const bool ends = rest == line.data() + line.size() || kBlanks.find(*rest) != std::string_view::npos;
    if (error != std::errc() || !ends || !std::isfinite(value) || value < 0) {
      return Fault(number, "not a row of numbers of 0 or more");
    }
    line.remove_prefix(static_cast<std::size_t>(rest - line.data()));
    values->push_back(value);
  }
}

// "name: 1 2 3" -> "name"; the rest stays in `line`.
Result<std::string> ReadName(std::string_view* line, std::size_t number) {
  const std::size_t begin = std::min(line->find_first_not_of(kBlanks), line->size());
  const std::size_t end = std::min(line->find_first_of(kBlanks, begin), line->size());
  const std::string_view word = line->substr(begin, end - begin);
  if (!word.ends_with(':')) return std::string();
  std::string name(word.substr(0, word.size() - 1));
  if (name.empty() || !IsPrintableName(name)) return Fault(number, "not a host's name before the colon");
  line->remove_prefix(end);
  return name;
}

}  // namespace

Result<BandwidthMatrix> ParseBandwidthMatrix(std::string_view text) {
  BandwidthMatrix matrix;
  std::size_t rows = 0, number = 0;
  std::set<std::string> names;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    ++number;
    TALLY_ASSIGN_OR_RETURN(std::string name, ReadName(&line, number));
    const std::size_t before = matrix.values.size();
    TALLY_RETURN_IF_ERROR(ReadNumbers(line, number, &matrix.values));
    const std::size_t columns = matrix.values.size() - before;
    if (columns == 0 && name.empty()) continue;
    if (rows++ == 0) matrix.size = static_cast<std::uint32_t>(columns);
    if (columns != matrix.size || rows > matrix.size) {
      return Fault(number, "row " + std::to_string(rows) + " has " + std::to_string(columns) + " numbers; expected " +
                               std::to_string(matrix.size) + " rows of " + std::to_string(matrix.size));
    }
    if (name.empty() != matrix.names.empty() && rows > 1) return Fault(number, "some rows have a name, some have none");
    if (name.empty()) continue;
    if (!names.insert(name).second) return Fault(number, "a second row of " + name);
    matrix.names.push_back(std::move(name));
  }
  if (rows != matrix.size || rows == 0) {
    return InvalidArgument("has " + std::to_string(rows) + " rows; expected as many as columns");
  }
  return matrix;
}

Result<BandwidthMatrix> ReadBandwidthMatrix(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  const std::streamoff bytes = in ? static_cast<std::streamoff>(in.tellg()) : -1;
  if (bytes < 0) return InvalidArgument(path + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read"));
  if (static_cast<std::uint64_t>(bytes) > kMaxMatrixBytes) return InvalidArgument(path + ": too large");
  std::string text(static_cast<std::size_t>(bytes), '\0');
  in.seekg(0);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.gcount() != bytes) return InvalidArgument(path + ": cannot be read");
  auto matrix = ParseBandwidthMatrix(text);
  return matrix.ok() ? std::move(matrix) : matrix.status().WithContext(path);
}

std::string PrintBandwidthMatrix(const BandwidthMatrix& matrix) {
  std::string text;
  for (std::uint32_t i = 0; i < matrix.size; ++i) {
    if (!matrix.names.empty()) text += matrix.names[i] + ":";
    for (std::uint32_t j = 0; j < matrix.size; ++j) {
      char number[32];
      const double value = matrix.values[std::size_t{i} * matrix.size + j];
      const auto end = std::to_chars(number, number + sizeof number, value).ptr;
      text.append(j == 0 && matrix.names.empty() ? "" : " ").append(number, end);
    }
    text += "\n";
  }
  return text;
}

Result<MatrixOrder> OrderByMatrix(const BandwidthMatrix& matrix, std::span<const MatrixPlace> places,
                                  std::span<const std::uint32_t> usual) {
  if (matrix.names.empty()) return InvalidArgument("its rows have no names of hosts");
  std::map<std::string_view, std::uint32_t> rows;
  for (std::uint32_t i = 0; i < matrix.size; ++i) rows[matrix.names[i]] = i;

  std::vector<std::vector<std::uint32_t>> nodes;  // their ranks, in the usual order
  std::vector<std::uint32_t> row_of;
  std::map<std::string_view, std::size_t> node_of;
  std::map<std::uint32_t, std::string_view> node_at;
  for (const std::uint32_t rank : usual) {
    const MatrixPlace& place = places[rank];
    if (const auto known = node_of.find(place.node); known != node_of.end() && !place.node.empty()) {
      nodes[known->second].push_back(rank);
      continue;
    }
    auto row = rows.find(place.node);
    if (row == rows.end()) row = rows.find(place.host);
    if (row == rows.end()) return InvalidArgument("no row names host " + place.host + " (node " + place.node + ")");
    if (const auto [other, added] = node_at.try_emplace(row->second, place.node); !added) {
      return InvalidArgument("row " + std::string(row->first) + " is that of two nodes, " + std::string(other->second) +
                             " and " + place.node + "; name rows by node");
    }
    node_of[place.node] = nodes.size();
    nodes.push_back({rank});
    row_of.push_back(row->second);
  }
  const auto n = static_cast<std::uint32_t>(nodes.size());
  if (n > kMaxJobMatrixHosts) {
    return InvalidArgument(std::to_string(n) + " nodes; an order is looked for among at most " +
                           std::to_string(kMaxJobMatrixHosts));
  }
  std::vector<double> among(std::size_t{n} * n);
  for (std::uint32_t i = 0; i < n; ++i) {
    for (std::uint32_t j = 0; j < n; ++j) {
      among[std::size_t{i} * n + j] = matrix.values[std::size_t{row_of[i]} * matrix.size + row_of[j]];
    }
  }
  TALLY_ASSIGN_OR_RETURN(const Tour tour, BottleneckTour(among, n));
  std::vector<std::uint32_t> as_they_are(n);
  for (std::uint32_t i = 0; i < n; ++i) as_they_are[i] = i;
  MatrixOrder result{{}, tour.least, LeastBandwidth(among, as_they_are)};
  for (const std::uint32_t node : tour.order) {
    result.order.insert(result.order.end(), nodes[node].begin(), nodes[node].end());
  }
  return result;
}

}  // namespace tally
