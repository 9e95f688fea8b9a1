#include "worker/cli/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "common/check.h"

namespace tally::cli {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 have the bits 10xxxxxx.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Three significant digits, without an exponent.
std::string Short(double value) { return Fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2); }

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  TALLY_CHECK(cells.size() == columns_.size(), "a row has one cell for each column");
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.title);
  lines.insert(lines.end(), rows_.begin(), rows_.end());

  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], Width(line[i]));
  }
  std::string text;
  for (const auto& line : lines) {
    std::string out;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string pad(widths[i] - Width(line[i]), ' ');
      if (i > 0) out += "  ";
      out += columns_[i].align == Align::kRight ? pad + line[i] : line[i] + pad;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

std::string Fixed(double value, int digits) {
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

std::string HumanBytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return (bytes == std::floor(bytes) ? Fixed(bytes, 0) : Short(bytes)) + kUnits[unit];
}

}  // namespace tally::cli
